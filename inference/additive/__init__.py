"""Sums of trees, sampled by Gibbs steps: each tree given all the others."""
