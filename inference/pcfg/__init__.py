"""The exact posterior of hard trees, by the inside algorithm of a weighted grammar."""
