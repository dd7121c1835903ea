"""Counts of trees and nodes, and the bound of chains from the prior, against enumeration."""

import math

import enumeration as en
import exact_problems as ep
import numpy as np
import pytest

from bdtppl.inference.metropolis.convergence import independence_bound
from bdtppl.inference.prior_predictive.counts import (
    log_num_trees,
    num_partition_spaces,
    num_trees,
)
from bdtppl.models.data.design import Design


def distinct(num_rows, num_features):
    rng = np.random.default_rng(num_rows)
    return np.stack([rng.permutation(num_rows) for _ in range(num_features)], axis=1)


def listed_spaces(problem, rows):
    """Count nodes and all that is below each way to split them."""
    parts = [en.part(problem, rows, rule) for rule in en.available_rules(problem, rows, 0)]
    return 1 + sum(listed_spaces(problem, side) for sides in parts for side in sides)


@pytest.mark.parametrize(("num_rows", "num_features"), [(1, 2), (2, 3), (4, 1), (5, 2), (4, 3)])
def test_counts_equal_the_enumeration(num_rows, num_features):
    codes = distinct(num_rows, num_features)
    problem = en.Problem(codes)
    assert num_trees(num_rows, num_features) == en.count_trees(problem)
    assert num_partition_spaces(num_rows, num_features) == listed_spaces(problem, problem.all_rows)
    counted = log_num_trees(Design.from_matrix(codes.astype(float)))
    assert counted == pytest.approx(math.log(en.count_trees(problem)), abs=1e-9)


def test_other_counts_are_noticed():
    tied = en.Problem([[0, 0], [0, 1], [1, 2], [2, 3]])
    assert num_trees(4, 2) != en.count_trees(tied)
    assert num_partition_spaces(4, 2) != listed_spaces(tied, tied.all_rows)
    counted = log_num_trees(Design.from_matrix(np.array(tied.codes, float)))
    assert counted == pytest.approx(math.log(en.count_trees(tied)), abs=1e-9)
    with pytest.raises(ValueError, match="num_rows must be an integer of at least 1; got 0"):
        num_trees(0, 1)


def distances(case, num_steps):
    """Total variation after steps of chains that propose from the prior, from the worst start."""
    prior = np.exp([each.log_prior for each in case.scored])
    likelihood = np.exp([each.log_likelihood for each in case.scored])
    prior /= prior.sum()
    step = prior[None] * np.minimum(1, likelihood[None] / likelihood[:, None])
    step[np.diag_indices(len(prior))] += 1 - step.sum(axis=1)
    posterior = prior * likelihood / (prior * likelihood).sum()
    power, found = np.eye(len(prior)), []
    for _ in range(num_steps + 1):
        found.append(np.abs(power - posterior).sum(axis=1).max() / 2)
        power = power @ step
    return np.array(found)


def test_chains_from_the_prior_keep_to_the_bound():
    case = ep.random_case("depth decay, gaps", "classes", 3, most_trees=300)
    best = max(each.log_likelihood for each in case.scored)
    steps = np.arange(40)
    found = distances(case, 39)
    bound = independence_bound(en.log_evidence(case.scored), best, steps)
    assert (found <= bound + 1e-12).all()
    assert found[1] > bound[1] ** 2  # it is no bound of something else
    # The twin takes a likelihood that is not the greatest.
    wrong = independence_bound(en.log_evidence(case.scored), en.log_evidence(case.scored), steps)
    assert (found > wrong + 1e-12).any()
    with pytest.raises(ValueError, match="log_likelihood must be the greatest"):
        independence_bound(0.0, -1.0, 3)
    with pytest.raises(ValueError, match="num_steps must be at least 0"):
        independence_bound(-1.0, 0.0, -3)
