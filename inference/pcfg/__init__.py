"""The exact posterior of hard trees, as the inside algorithm of a weighted grammar."""
