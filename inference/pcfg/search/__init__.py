"""Search for trees of any depth, with certified bounds."""
