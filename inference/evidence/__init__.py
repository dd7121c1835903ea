"""Estimates of the evidence, by importance sampling, bridges and tempering."""
