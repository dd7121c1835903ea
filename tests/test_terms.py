"""Sums of trees as terms over boxes, against trees that are followed row by row."""

import numpy as np
import pytest

from bdtppl.inference.additive.tables import row_tables
from bdtppl.inference.additive.terms import BoxTerms, Evaluation, bins_of
from bdtppl.models.data.design import Design

RNG = np.random.default_rng(0)


def _design(gaps):
    matrix = RNG.normal(size=(300, 4))
    matrix[:, 3] = matrix[:, 3] > 0
    matrix[RNG.random(matrix.shape) < gaps] = np.nan
    return Design.from_matrix(matrix, bins=6)


def _grown(rules, num_sums, num_trees, levels):
    """Trees of any rules, also of those that leave a child without rows."""
    internal = 2**levels - 1
    rule = RNG.integers(len(rules.feature), size=(num_sums, num_trees, internal))
    rule[RNG.random(rule.shape) < 0.3] = -1
    for node in range(1, internal):
        rule[..., node] = np.where(rule[..., (node - 1) // 2] < 0, -1, rule[..., node])
    return rule.astype(np.int32), RNG.normal(size=(num_sums, num_trees, 2 * internal + 1))


def _followed(design, rules, rule, value, matrix):
    codes, total = design.encode(matrix), np.zeros((len(rule), len(matrix)))
    for s, t, i in np.ndindex(*rule.shape[:2], len(matrix)):
        node = 0
        while node < rule.shape[2] and (q := rule[s, t, node]) >= 0:
            code = codes[i, rules.feature[q]]
            left = rules.missing[q] >= 0 if code < 0 else code <= rules.last[q]
            node = 2 * node + 2 - left
        total[s, i] += value[s, t, node]
    return total


@pytest.mark.parametrize("gaps", [0, 0.3])
@pytest.mark.parametrize(("levels", "num_trees"), [(1, 2), (2, 60), (3, 12), (6, 3)])
def test_terms_add_up_to_the_trees(gaps, levels, num_trees):
    design = _design(gaps)
    rules = row_tables(design)
    rule, value = _grown(rules, 5, num_trees, levels)
    matrix = RNG.normal(size=(80, 4))
    matrix[RNG.random(matrix.shape) < 0.2] = np.nan
    wanted = _followed(design, rules, rule, value, matrix)
    terms, bins = BoxTerms.of(design, rules, rule, value), bins_of(design, matrix)
    found = Evaluation(terms, design.num_codes)(bins)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    mean = Evaluation(terms.mean(), design.num_codes)(bins)
    np.testing.assert_allclose(mean[0], wanted.mean(axis=0), rtol=0, atol=1e-12)


def test_a_row_has_the_same_bits_alone_and_among_many():
    design = _design(0.1)
    rules = row_tables(design)
    terms = BoxTerms.of(design, rules, *_grown(rules, 4, 40, 3))
    bins = bins_of(design, RNG.normal(size=(5000, 4)))
    for own in (terms, terms.mean()):
        evaluate = Evaluation(own, design.num_codes)
        alone = np.column_stack([evaluate(bins[:, i : i + 1].copy()) for i in range(4090, 4100)])
        np.testing.assert_array_equal(evaluate(bins)[:, 4090:4100], alone)
