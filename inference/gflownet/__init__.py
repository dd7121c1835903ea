"""Amortised posteriors over trees: generative flow networks."""
