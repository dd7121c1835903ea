"""Benchmarks of amortised trees (`benchmarks.amortised`)."""
