"""Summaries of draws, and diagnostics of their quality."""
