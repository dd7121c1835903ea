"""Soft trees: their log density, posterior draws and what these predict."""
