"""Soft trees: their log density, posterior draws and predictions."""
