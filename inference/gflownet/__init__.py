"""Generative flow networks over hard trees: policies that learn to draw from the posterior.

References
----------
Mahfoud et al. 2025, Learning Decision Trees as Amortized Structure Inference (DT-GFN);
Malkin, Jain, Bengio, Sun and Bengio 2022, Trajectory balance: improved credit assignment in
GFlowNets.
"""
