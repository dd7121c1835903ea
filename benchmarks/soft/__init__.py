"""Benchmarks of soft trees (`benchmarks.soft_trees`)."""
