"""Predictions of draws: replicated data, and each training row from all others."""
