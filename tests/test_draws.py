"""Draws of any number are compiled for one, and independent from piece to piece."""

import jax
import numpy as np
import pytest

from bdtppl.inference import draws
from bdtppl.models.leaves import DirichletCategorical

LEAF = DirichletCategorical([1.0, 3.0])
NUM_DRAWS = 3 * draws._LEAVES_DRAWN // 2


def check_pieces(drawn):
    """Frequencies within 5 standard errors (rate 6e-7 each): of a label, and of unequal pairs."""
    pairs = drawn[: draws._LEAVES_DRAWN // 2] != drawn[draws._LEAVES_DRAWN :]
    for found, probability in ((drawn, 0.75), (pairs, 2 * 0.75 * 0.25)):
        error = np.sqrt(probability * (1 - probability) / len(found))
        assert abs(found.mean() - probability) < 5 * error


def test_targets_of_all_pieces_follow_the_leaf():
    check_pieces(draws.draw_targets(jax.random.key(0), LEAF, np.zeros((NUM_DRAWS, 2))))


def test_one_key_for_all_pieces_is_seen(monkeypatch):
    monkeypatch.setattr(jax.random, "fold_in", lambda rng_key, start: rng_key)
    with pytest.raises(AssertionError):
        check_pieces(draws.draw_targets(jax.random.key(0), LEAF, np.zeros((NUM_DRAWS, 2))))


def test_uniforms_of_all_pieces_are_independent():
    uniforms = draws.draw_uniforms(jax.random.key(1), (NUM_DRAWS,))
    check_pieces((uniforms < 0.75).astype(int))
    assert uniforms.dtype == np.float64


def test_another_number_of_draws_compiles_nothing():
    draws.draw_targets(jax.random.key(0), LEAF, np.zeros((7, 2)))
    compiled = draws._draw._cache_size()
    assert draws.draw_targets(jax.random.key(0), LEAF, np.zeros((5, 9, 2))).shape == (5, 9)
    assert draws._draw._cache_size() == compiled
