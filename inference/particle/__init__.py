"""Particle filters over hard trees: trees grown from the root, weighed and resampled on the way.

References
----------
Lakshminarayanan, Roy and Teh 2013, Top-down particle filtering for Bayesian decision trees.
"""
