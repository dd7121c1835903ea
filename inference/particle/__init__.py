"""Particle filters over hard trees, which are grown from the root, weighted and resampled.

References
----------
Lakshminarayanan, Roy and Teh 2013, Top-down particle filtering for Bayesian decision trees.
"""
