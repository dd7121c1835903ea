"""Greedy modal trees (GMT): the most probable partition at every node, node by node.

References
----------
Nuti, Jimenez Rugama and Cross 2021 (GMT).
"""
