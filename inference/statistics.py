"""Statistics of weighted draws."""

import numpy as np


def effective_sample_size(weights: np.ndarray) -> float:
    """Return the effective sample size of weighted draws (Kish 1965).

    Parameters
    ----------
    weights
        Weights of any shape, at least 0, not all 0; they need not be normalised.
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def systematic_resampling(seed: int, weights: np.ndarray, size: int) -> np.ndarray:
    """Draw places in proportion to weights by systematic resampling, int [size], in random order.

    Parameters
    ----------
    seed
        Seed of the resampling.
    weights
        float64 [m]; they need not be normalised.
    size
        Number of draws.
    """
    rng, running = np.random.default_rng(seed), np.cumsum(weights)
    places = (np.arange(size) + rng.random()) / size * running[-1]
    return rng.permutation(np.searchsorted(running[:-1], places, side="right"))
