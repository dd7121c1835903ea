"""Sums of trees: each tree is redrawn exactly given all the others."""
