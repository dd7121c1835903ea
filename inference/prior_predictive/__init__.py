"""Predictions of priors: trees drawn from a prior, and targets drawn with them."""
