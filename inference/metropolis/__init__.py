"""Markov chains over hard trees: Metropolis-Hastings with the proposals of four papers.

References
----------
Chipman, George and McCulloch 1998, Bayesian CART model search; Denison, Mallick and Smith 1998, A
Bayesian CART algorithm; Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian
Classification and Regression Trees; Wu, Tjelmeland and West 2007, Bayesian CART: prior
specification and posterior simulation.
"""
