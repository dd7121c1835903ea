"""How many trees there are: equation 1 of DT-GFN against the grammar."""

from functools import cache
from itertools import product
from math import comb

import numpy as np
import pytest

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DescriptionLength


def equation_1(depth: int, num_features: int, *, repeats: bool = False) -> int:
    """Trees of so many levels of splits over p binary features, as the paper sums them."""

    @cache
    def below(level: int, splits_above: int) -> int:
        if level == depth:
            return 1
        p = num_features if repeats else num_features - level
        return sum(
            comb(2 * splits_above, n) * p**n * below(level + 1, n)
            for n in range(1, 2 * splits_above + 1)
        )

    return num_features * below(1, 1)


@pytest.mark.parametrize(
    ("depth", "num_features", "printed"),
    [
        (1, 10, 10),
        (2, 10, 1000),
        (3, 10, 5.329e6),
        (4, 10, 5.609e13),
        (1, 20, 20),
        (2, 20, 8000),
        (3, 20, 9.411e8),
        (4, 20, 8.358e18),
    ],
)
def test_equation_1_gives_the_printed_counts(depth, num_features, printed):
    total = sum(equation_1(level, num_features) for level in range(1, depth + 1))
    assert total == pytest.approx(printed, rel=1e-3)


def number_of_trees(depth: int, num_features: int) -> float:
    """Count trees that split, on a table of all rows, by the grammar with weights of one."""
    rows = np.array(list(product((0.0, 1.0), repeat=num_features)))
    constraints = Constraints(max_depth=depth)
    grammar = compile_grammar(Design.from_matrix(rows), rules="cuts", constraints=constraints)
    nothing = np.zeros(len(rows), bool)
    leaf, y = DirichletCategorical.symmetric(2), np.zeros(len(rows), int)
    posterior = ExactPosterior(grammar, DescriptionLength(0.0), leaf, y, observed=nothing)
    return float(np.exp(posterior.log_partition)) - 1


@pytest.mark.parametrize(("depth", "num_features"), [(1, 5), (2, 5), (3, 5)])
def test_equation_1_counts_the_trees_of_the_grammar(depth, num_features):
    found = number_of_trees(depth, num_features)
    counts = {
        repeats: sum(
            equation_1(level, num_features, repeats=repeats) for level in range(1, depth + 1)
        )
        for repeats in (False, True)
    }
    assert found == pytest.approx(counts[False], rel=1e-9)
    if depth > 1:  # the twin splits on a feature again below itself
        assert found != pytest.approx(counts[True], rel=0.01)
