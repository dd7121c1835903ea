"""Divide, conquer, combine: soft trees of all topologies."""
