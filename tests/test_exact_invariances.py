"""What must not change the exact posterior: order, names, units, repetition.

Properties by hypothesis, compared to rounding error. Each has a mutation twin: a model that does
depend on what is changed, for which the same check must fail.
"""

from dataclasses import dataclass, replace
from typing import Any

import exact_problems as ep
import jax.numpy as jnp
import numpy as np
import pytest
from exact_problems import TIGHT
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import slow_but

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, LeafPenalty
from bdtppl.models.pytrees import pytree_dataclass

MODELS = (
    "leaf penalty, gaps",
    "description length, cuts",
    "depth decay, gaps",
    "depth decay by gap, cuts",
    "greedy partition, cuts",
)
CONCENTRATION = np.array([0.5, 1.0, 2.0])
EXAMPLES = settings(max_examples=6)


@dataclass(frozen=True)
class Model:
    """All that decides a posterior."""

    matrix: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    prior: Any
    leaf: Any
    constraints: Constraints

    def fit(self) -> ExactPosterior:
        design = Design.from_matrix(self.matrix, weights=self.weights)
        grammar = compile_grammar(design, rules=self.prior.rules, constraints=self.constraints)
        return ExactPosterior(grammar, self.prior, self.leaf, self.y)


@st.composite
def models(draw, name, family=None, prior=None):
    """Draw a small table with ties, missing values and weights, and a model of it."""
    prior_name, rules, num_features = ep.MODELS[name]
    num_rows = draw(st.integers(3, 7))
    levels = st.sampled_from([0.0, 1.0, 2.5, 4.0, np.nan])
    rows = st.lists(levels, min_size=num_features, max_size=num_features)
    matrix = np.array(draw(st.lists(rows, min_size=num_rows, max_size=num_rows)))
    matrix[0] = np.nan_to_num(matrix[0])  # no column is empty
    if family is None:
        family = draw(st.sampled_from(ep.FAMILIES))
    numbers = st.integers(0, 2) if family == "classes" else st.floats(-3, 3, width=16)
    y = np.array(draw(st.lists(numbers, min_size=num_rows, max_size=num_rows)))
    leaf = (
        DirichletCategorical(CONCENTRATION)
        if family == "classes"
        else NormalInverseGamma(0.2, 0.7, 1.5, 0.9)
    )
    weights = draw(st.lists(st.integers(1, 3), min_size=num_rows, max_size=num_rows))
    constraints = Constraints(min_leaf=draw(st.integers(1, 2)))
    prior = ep.PRIORS[prior_name][0](rules) if prior is None else prior
    return Model(matrix, y, np.array(weights), prior, leaf, constraints)


def check_same(model, other, *, columns=None, features=True):
    """Two models have the same posterior, whatever their trees are called.

    ``columns`` are the places in the first model of the second one's columns.
    """
    one, two = model.fit(), other.fit()
    assert abs(one.log_partition - two.log_partition) < TIGHT
    assert abs(one.log_evidence - two.log_evidence) < TIGHT
    assert abs(one.entropy - two.entropy) < TIGHT
    assert abs(one.expected_leaves - two.expected_leaves) < TIGHT
    # Ties come in no order, so only the weights of the best trees are compared.
    ranked = [posterior.k_best(20).log_joint for posterior in (one, two)]
    assert len(ranked[0]) == len(ranked[1])
    assert np.abs(ranked[0] - ranked[1]).max() < TIGHT
    if features:
        places = np.arange(model.matrix.shape[1]) if columns is None else columns
        assert np.abs(one.expected_splits[places] - two.expected_splits).max() < TIGHT
        assert np.abs(one.split_inclusion[places] - two.split_inclusion).max() < TIGHT


def in_order(model, rows):
    return replace(model, matrix=model.matrix[rows], y=model.y[rows], weights=model.weights[rows])


def repeated(model):
    """Repeat rows by their weights; a limit of leaves would count each of them."""
    return replace(
        in_order(model, np.repeat(np.arange(len(model.y)), model.weights)),
        weights=np.ones(model.weights.sum(), int),
        constraints=Constraints(),
    )


# --------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", slow_but(MODELS[:1], MODELS))
@EXAMPLES
@given(data=st.data())
def test_order_of_rows(name, data):
    model = data.draw(models(name))
    check_same(model, in_order(model, data.draw(st.permutations(range(len(model.y))))))


@pytest.mark.parametrize("name", slow_but(MODELS[1:2], MODELS))
@EXAMPLES
@given(data=st.data())
def test_order_of_columns(name, data):
    model = data.draw(models(name))
    columns = list(data.draw(st.permutations(range(model.matrix.shape[1]))))
    check_same(model, replace(model, matrix=model.matrix[:, columns]), columns=columns)


TRANSFORMS = {
    "steep": lambda x: np.exp(2 * x),
    "falling": lambda x: -np.arctan(x),
    "reversed": lambda x: 7 - 3 * x,
    "units": lambda x: 1e3 * x - 5,
}


@pytest.mark.parametrize("name", slow_but(MODELS[2:3], MODELS))
@EXAMPLES
@given(data=st.data())
def test_strictly_monotone_transforms(name, data):
    model = data.draw(models(name))
    # A prior that looks at widths sees units alone go by.
    names = list(TRANSFORMS)[2 if "by gap" in name else 0 :]
    matrix = model.matrix.copy()
    for column in range(matrix.shape[1]):
        transform = TRANSFORMS[data.draw(st.sampled_from(names))]
        matrix[:, column] = transform(matrix[:, column])
    check_same(model, replace(model, matrix=matrix))


@pytest.mark.parametrize("name", slow_but(MODELS[1:2], MODELS))
@EXAMPLES
@given(data=st.data())
def test_weights_are_repeated_rows(name, data):
    model = data.draw(models(name))
    check_same(replace(model, constraints=Constraints()), repeated(model))


@pytest.mark.parametrize("name", MODELS[:2])
@EXAMPLES
@given(data=st.data())
def test_names_of_classes(name, data):
    model = data.draw(models(name, family="classes"))
    check_same(model, relabelled(model, [2, 0, 1], CONCENTRATION[[1, 2, 0]]))


def relabelled(model, names, concentration):
    return replace(
        model, y=np.array(names)[model.y], leaf=DirichletCategorical(np.array(concentration))
    )


@pytest.mark.parametrize("name", slow_but(MODELS[:1], MODELS))
@EXAMPLES
@given(data=st.data())
def test_nothing_observed_is_the_prior(name, data):
    model = data.draw(models(name))
    fitted = model.fit()
    prior = ExactPosterior(
        fitted.grammar, model.prior, model.leaf, model.y, observed=np.zeros(len(model.y), bool)
    )
    assert abs(prior.log_evidence) < 1e-12
    assert abs(prior.log_partition - fitted.log_prior_normaliser) < 1e-12
    if "depth decay" in name:
        assert abs(fitted.log_prior_normaliser) < 1e-12
    if name != MODELS[0]:
        return
    # No target says anything: all rows have the predictive of an empty leaf.
    mean = prior.predictive(model.matrix).mean()
    assert np.abs(mean - mean[:1]).max() < 1e-12


@EXAMPLES
@given(model=models("leaf penalty, gaps"))
def test_a_copied_column_under_leaf_penalty(model):
    check_copied_column(model)


def check_copied_column(model):
    """Writing a column twice changes nothing but the names of rules."""
    # Three columns against two of the same: as many, so that nothing else is compiled.
    constant = np.zeros((len(model.y), 1))
    once = replace(model, matrix=np.concatenate([model.matrix, constant], axis=1))
    twice = replace(
        model, matrix=np.concatenate([model.matrix, np.exp(model.matrix[:, :1])], axis=1)
    )
    check_same(once, twice, features=False)
    splits, shared = once.fit().expected_splits, twice.fit().expected_splits
    assert abs(splits.sum() - shared.sum()) < TIGHT
    assert abs(shared[0] - shared[2]) < TIGHT


# ----------------------------------------------------------------------------- mutation twins


ORDERED = Model(
    matrix=np.array([[0.0, 1.0], [1.0, 0.0], [2.5, 0.0], [4.0, 1.0]]),
    y=np.array([0, 1, 1, 2]),
    weights=np.array([1, 2, 1, 3]),
    prior=LeafPenalty(1.3),
    leaf=DirichletCategorical(CONCENTRATION),
    constraints=Constraints(),
)


@pytree_dataclass
class _FavoursFirstFeatures(LeafPenalty):
    def log_split(self, node, rule):
        return super().log_split(node, rule) - 0.01 * rule.feature


@pytree_dataclass
class _FavoursFirstRows(DirichletCategorical):
    def statistics(self, y, weight):
        growing = jnp.linspace(1, 1.01, len(y))
        return super().statistics(y, jnp.asarray(weight) * growing)


def test_a_model_that_sees_the_order_is_noticed():
    check_same(ORDERED, in_order(ORDERED, [3, 1, 0, 2]))
    model = replace(ORDERED, leaf=_FavoursFirstRows(CONCENTRATION))
    with pytest.raises(AssertionError):
        check_same(model, in_order(model, [3, 1, 0, 2]))
    columns = [1, 0]
    swapped = replace(ORDERED, matrix=ORDERED.matrix[:, columns])
    check_same(ORDERED, swapped, columns=columns)
    with pytest.raises(AssertionError):
        check_same(ORDERED, swapped)
    prior = _FavoursFirstFeatures(1.3)
    with pytest.raises(AssertionError):
        check_same(replace(ORDERED, prior=prior), replace(swapped, prior=prior), columns=columns)


def test_a_model_that_sees_widths_is_noticed():
    model = replace(ORDERED, prior=DepthDecay(0.9, 0.7, cut_weights="gap"))
    for transform, changes in ((np.exp, True), (lambda x: 3 - 2 * x, False)):
        other = replace(model, matrix=transform(model.matrix))
        if changes:
            with pytest.raises(AssertionError):
                check_same(model, other)
        else:
            check_same(model, other)


def test_wrong_names_weights_and_copies_are_noticed():
    check_same(ORDERED, relabelled(ORDERED, [2, 0, 1], CONCENTRATION[[1, 2, 0]]))
    with pytest.raises(AssertionError):
        check_same(ORDERED, relabelled(ORDERED, [2, 0, 1], CONCENTRATION))
    check_same(ORDERED, repeated(ORDERED))
    with pytest.raises(AssertionError):
        check_same(ORDERED, replace(ORDERED, weights=np.ones(4, int)))
    check_copied_column(ORDERED)
    with pytest.raises(AssertionError):
        check_copied_column(replace(ORDERED, prior=DescriptionLength(1.3, rules="gaps")))
