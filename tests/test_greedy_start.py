"""Chains over soft trees start at greedy hard trees."""

from itertools import product

import jax
import numpy as np
import pytest
from tiers import slow_but

from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.rjhmc import RJHMC
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.soft.greedy_start import greedy_start
from bdtppl.models.soft.topology import TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression, leaf_probabilities

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(200, 3))
X = X[(abs(X[:, 0] - 0.6) > 0.05) & (abs(X[:, 2] - 0.4) > 0.05)]
CORNER = (X[:, 0] > 0.6) & (X[:, 2] < 0.4)
Y = np.where(CORNER, 2.0, -0.5) + RNG.normal(0, 0.1, len(X))
PRIOR = TopologyPrior()
MODELS = {
    "values": (SoftRegression(), Y),
    "values, noise by leaf": (SoftRegression(by_leaf=True, noise_on="sd"), Y),
    "classes": (SoftClassification(likelihood="mixture"), CORNER.astype(int)),
    "compound": (SoftClassification(), CORNER.astype(int)),
}


def log_density(model, y, start, hard_inputs, sharpness=0.02):
    topology, sites, inputs = start
    density = SoftDensity(model, X, y, topology.num_splits, hard_inputs)
    position = density.position(sites)
    with jax.numpy_rank_promotion("allow"):
        return float(density.log_density(position, topology.paths, sharpness, inputs=inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hard_inputs"),
    slow_but([("values", True)], product(MODELS, [False, True])),
)
def test_a_greedy_start_is_far_better_than_draws_of_the_prior(name, hard_inputs):
    model, y = MODELS[name]
    start = greedy_start(
        np.random.default_rng(1), model, X, y, PRIOR, 0.02, hard_inputs=hard_inputs
    )
    topology, found = start[0], log_density(model, y, start, hard_inputs)
    density = SoftDensity(model, X, y, topology.num_splits, hard_inputs)
    values, inputs = density.draw_prior(np.random.default_rng(2), 50)
    drawn = [
        log_density(
            model,
            y,
            (
                topology,
                {k: v[i] for k, v in values.items()},
                inputs if inputs is None else inputs[i],
            ),
            hard_inputs,
        )
        for i in range(50)
    ]
    assert found > max(drawn) + 10


def test_hard_inputs_part_rows_as_the_greedy_tree_does():
    topology, sites, inputs = greedy_start(
        np.random.default_rng(1), SoftRegression(), X, Y, PRIOR, 0.02, hard_inputs=True
    )
    assert set(inputs) == {0, 2}
    reached = leaf_probabilities(topology.paths, X, inputs, sites["threshold"], 1e-9)
    np.testing.assert_allclose(sites["mean"] @ reached, np.where(CORNER, 2.0, -0.5), atol=0.2)


def test_splits_are_no_more_than_are_allowed():
    def start(max_splits):
        rng = np.random.default_rng(1)
        return greedy_start(rng, SoftRegression(), X, Y, PRIOR, 0.02, max_splits=max_splits)

    topologies = [start(number)[0] for number in (None, 1, 0)]
    assert topologies[0].num_splits > 1
    assert topologies[0].depth <= 3
    assert [topology.code for topology in topologies[1:]] == ["100", "0"]


def test_starts_of_chains_differ_and_unknown_ones_are_refused():
    starts = [
        greedy_start(np.random.default_rng(k), *MODELS["values"][:1], X, Y, PRIOR, 0.02)
        for k in (1, 2)
    ]
    assert not np.array_equal(starts[0][1]["mean"], starts[1][1]["mean"])
    with pytest.raises(ValueError, match="start must be 'greedy' or 'prior'; got 'root'"):
        RJHMC(start="root")


def test_rows_without_a_target_say_nothing():
    for model, y in (MODELS["values"], MODELS["classes"]):
        filled = np.append(y, [model.no_target] * 3)
        rows = np.concatenate([X, np.ones((3, 3))])
        topology, sites, _ = greedy_start(np.random.default_rng(1), model, X, y, PRIOR, 0.02)
        again, same, _ = greedy_start(np.random.default_rng(1), model, rows, filled, PRIOR, 0.02)
        assert again == topology
        assert all(np.array_equal(same[name], sites[name]) for name in sites)
        with pytest.raises(ValueError, match="No row has a target"):
            greedy_start(np.random.default_rng(1), model, rows[-3:], filled[-3:], PRIOR, 0.02)


@pytest.mark.slow
def test_priors_whose_draws_are_not_finite_are_said():
    model = SoftRegression(input_concentration=1e-4)
    settings = RJHMC(NUTS(20, 0.1, 0.025), max_splits=1)
    with pytest.raises(ValueError, match="No density was finite in 10 tries"):
        settings.sample(jax.random.key(0), model, X, Y, chains=2, draws=20)
