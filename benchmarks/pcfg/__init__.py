"""Benchmarks of the exact posterior (`benchmarks.exact`)."""
