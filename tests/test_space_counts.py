"""Counts of trees, against enumeration."""

import math

import enumeration as en
import numpy as np
import pytest

from bdtppl.inference.prior_predictive.counts import log_num_trees, num_trees
from bdtppl.models.data.design import Design


def distinct(num_rows, num_features):
    rng = np.random.default_rng(num_rows)
    return np.stack([rng.permutation(num_rows) for _ in range(num_features)], axis=1)


@pytest.mark.parametrize(("num_rows", "num_features"), [(1, 2), (2, 3), (4, 1), (5, 2), (4, 3)])
def test_counts_equal_the_enumeration(num_rows, num_features):
    codes = distinct(num_rows, num_features)
    problem = en.Problem(codes)
    assert num_trees(num_rows, num_features) == en.count_trees(problem)
    counted = log_num_trees(Design.from_matrix(codes.astype(float)))
    assert counted == pytest.approx(math.log(en.count_trees(problem)), abs=1e-9)


def test_other_counts_are_noticed():
    tied = en.Problem([[0, 0], [0, 1], [1, 2], [2, 3]])
    assert num_trees(4, 2) != en.count_trees(tied)
    counted = log_num_trees(Design.from_matrix(np.array(tied.codes, float)))
    assert counted == pytest.approx(math.log(en.count_trees(tied)), abs=1e-9)
    with pytest.raises(ValueError, match="num_rows must be an integer of at least 1; got 0"):
        num_trees(0, 1)
