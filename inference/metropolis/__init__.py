"""Markov chains over hard trees: Metropolis-Hastings with the moves of three papers.

References
----------
Chipman, George and McCulloch 1998, Bayesian CART model search; Denison, Mallick and Smith 1998, A
Bayesian CART algorithm; Wu, Tjelmeland and West 2007, Bayesian CART: prior specification and
posterior simulation.
"""
