"""Hard trees: arrays, rules, and the log joint of a tree and its rows."""
