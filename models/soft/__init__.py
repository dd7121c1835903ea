"""Soft trees: topologies, batches of trees, and NumPyro models."""
