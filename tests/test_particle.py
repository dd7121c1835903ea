"""Particle filters on hard trees against enumeration and the exact posterior."""

import functools
import itertools
from collections import defaultdict

import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from bdtppl.inference.evidence.estimates import log_mean
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import write_out
from bdtppl.inference.particle import filter as particle_filter
from bdtppl.inference.particle.filter import (
    draw_particle_noise,
    grow_particles,
    initial_particles,
    renewed,
    settle,
)
from bdtppl.inference.particle.proposals import PROPOSALS
from bdtppl.inference.particle.sample import sample_particles
from bdtppl.models.data.design import Design
from bdtppl.models.hard import node_scores, packed_model
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay

RUNS, SIZE, CAPACITY = 1000, 4, 31
WITHIN = 4  # standard errors: a false alarm in 16,000 tests
MOST_WEIGHT = 50  # times the evidence, of a particle whose runs are averaged
BATCH = 512  # partial trees that the enumeration settles at once

PROBLEM = "depth decay by gap, cuts"
CASES = slow_but(
    [(PROBLEM, "classes", "defensive")],
    itertools.product(ep.SOME_MODELS, ep.FAMILIES, PROPOSALS),
    few=10,
)


def posed(case):
    return packed_model.PackedModel.of(case.model)


@functools.cache
def case_of(model, family):
    return ep.random_case(model, family, 3, most_trees=500)


# ------------------------------------------------------------- every choice, without randomness

settle_all = jax.jit(settle, static_argnames=("proposal",))


@functools.partial(jax.jit, static_argnames=("proposal",))
def probabilities(model, proposal, particles):
    """Probabilities [m, R + 1] of proposing each choice at the particles' next nodes."""
    every = jnp.arange(len(particles.next))
    rows = particles.rows[every, particles.next]
    weights = node_scores.node_weights(model, rows, particles.shape.depth[every, particles.next])
    joined = jnp.concatenate([weights.log_rules, weights.log_stop[:, None]], axis=1)
    return jax.nn.softmax(proposal(model, rows, joined), axis=1)


def all_particles(case, proposal, capacity=CAPACITY):
    """Every tree that one particle may grow, [(particles, probability of growing them)]."""
    model, finished = posed(case), []
    particles, share = initial_particles(model, 1, capacity), np.ones(1)
    while len(share):
        many = jax.tree.map(lambda a: np.resize(a, (BATCH, *a.shape[1:])), particles)
        assert len(share) <= BATCH
        chance = np.asarray(probabilities(model, PROPOSALS[proposal], many))[: len(share)]
        is_full = np.asarray(particles.shape.size) + 2 > capacity
        chance = np.where(
            is_full[:, None], np.arange(chance.shape[1]) + 1 == chance.shape[1], chance
        )
        middle = np.cumsum(chance, axis=1) - chance / 2
        parent, choice = np.nonzero(chance > 1e-15)
        grown = []
        for start in range(0, len(parent), BATCH):
            some = slice(start, start + BATCH)
            own = np.resize(parent[some], BATCH)
            batch = jax.tree.map(lambda a, own=own: np.asarray(a)[own], particles)
            uniform = np.resize(middle[parent, choice][some], BATCH)
            batch, _ = settle_all(model, PROPOSALS[proposal], batch, batch.next + 1, uniform)
            size = len(parent[some])
            grown.append(jax.tree.map(lambda a, size=size: np.asarray(a)[:size], batch))
        share = share[parent] * chance[parent, choice]
        particles = jax.tree.map(lambda *a: np.concatenate(a), *grown)
        is_done = particles.next == particles.shape.size
        finished.append(taken(particles, share, is_done))
        particles, share = taken(particles, share, ~is_done)
    return finished


def taken(particles, share, which):
    return jax.tree.map(lambda a: a[which], particles), share[which]


def check_expected_weights(case, proposal, log_weight=lambda particles: particles.log_weight):
    """The weight that a tree has on average is its prior weight times its likelihood."""
    model, expected, total = posed(case), defaultdict(float), 0.0
    for particles, share in all_particles(case, proposal):
        if not len(share):
            continue
        shape = Shape(particles.shape.nodes, particles.shape.size)
        names = ep.rule_trees(case, write_out(model, shape).trees)
        for name, p, weight in zip(names, share, log_weight(particles), strict=True):
            expected[name] += p * np.exp(weight - case.exact.log_partition)
            total += p
    assert abs(total - 1) < 1e-12
    for tree, p in case.probabilities.items():
        assert abs(expected.pop(tree, 0.0) - p) < 1e-9
    assert not expected


def enumerable(model, family):
    for seed in itertools.count():
        case = ep.random_case(model, family, seed, most_trees=200, num_rows=5)
        if case.exact.grammar.num_subproblems > 3:
            return case
    raise AssertionError


@pytest.mark.parametrize(("model", "family", "proposal"), CASES)
def test_expected_weights_are_the_joint(model, family, proposal):
    with jax.enable_x64(True):
        check_expected_weights(enumerable(model, family), proposal)


def test_a_weight_without_the_proposal_is_noticed():
    def broken(particles):
        return particles.log_prior + particles.log_likelihood

    with jax.enable_x64(True), pytest.raises(AssertionError):
        check_expected_weights(enumerable(PROBLEM, "classes"), "optimal", broken)


# ---------------------------------------------------------------------------------- evidence


def estimates(case, proposal, growth, resampling, threshold, *, runs=RUNS, size=SIZE, seed=1):
    return sample_particles(
        ep.key(seed),
        case.model,
        runs=runs,
        particles=size,
        proposal=proposal,
        growth=growth,
        resampling=resampling,
        ess_threshold=threshold,
        capacity=CAPACITY,
    )


def largest_weight(case, proposal):
    """The greatest weight that a particle may have, over the evidence."""
    with jax.enable_x64(True):
        return max(
            np.exp(particles.log_weight.max() - case.exact.log_partition)
            for particles, share in all_particles(case, proposal)
            if len(share)
        )


def bounded_case(model, family, proposal):
    """A problem whose weights are bounded: without, means of 1,000 runs are far from normal.

    A problem of "description length, cuts" has trees that the optimal proposal draws once in eight
    million times their posterior probability: its runs have a standard deviation of 45, and 1,000
    of them hardly ever show that.
    """
    for seed in itertools.count(3):
        case = ep.random_case(model, family, seed, most_trees=500)
        if largest_weight(case, proposal) < MOST_WEIGHT:
            return case
    raise AssertionError


def check_unbiased(case, found):
    ratio = np.exp(found.log_partition_of_run - case.exact.log_partition)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < WITHIN * error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family", "proposal"),
    [  # each proposal meets either family
        (model, ep.FAMILIES[(i + j) % 2], proposal)
        for i, model in enumerate(ep.SOME_MODELS)
        for j, proposal in enumerate(PROPOSALS)
        if (i + j) % 3 == 0
    ],
)
def test_the_evidence_is_unbiased(model, family, proposal):
    """However the particles grow and whenever they are resampled."""
    case = bounded_case(model, family, proposal)
    for growth, threshold in (("node", 0.0), ("node", 0.6), ("layer", 0.6), ("layer", 1.0)):
        found = estimates(case, proposal, growth, "systematic", threshold)
        check_unbiased(case, found)
        if threshold != 0.6:  # where weights may be even enough
            assert (found.num_resampled > 0).any() == (threshold > 0)
        assert found.num_overflows.sum() == 0
        assert (found.effective_size[~np.isnan(found.effective_size)] <= SIZE + 1e-9).all()


@pytest.mark.slow
def test_uneven_weights_are_resampled_now_and_then():
    case = ep.random_case("leaf penalty, gaps", "values", 1, most_trees=500)
    never, sometimes, always = (
        estimates(case, "prior", "node", "systematic", threshold).num_resampled.sum()
        for threshold in (0.0, 0.6, 1.0)
    )
    assert never == 0
    assert 0.2 * always < sometimes < 0.8 * always


@pytest.mark.slow
@pytest.mark.parametrize("family", ep.FAMILIES)
def test_multinomial_resampling_is_unbiased_too(family):
    case = case_of(PROBLEM, family)
    for growth, threshold in itertools.product(("node", "layer"), (0.6, 1.0)):
        check_unbiased(case, estimates(case, "prior", growth, "multinomial", threshold))


@pytest.mark.slow
def test_resampled_particles_that_keep_their_weights_are_noticed(monkeypatch):
    resample = particle_filter.resample_particles

    def broken(rng_keys, particles, is_wanted, resampling):
        kept = resample(rng_keys, particles, is_wanted, resampling)
        return kept._replace(log_weight=particles.log_weight)

    monkeypatch.setattr(particle_filter, "resample_particles", broken)
    case = case_of(PROBLEM, "classes")
    grow_particles.clear_cache()
    try:
        with pytest.raises(AssertionError):
            check_unbiased(case, estimates(case, "prior", "node", "systematic", 1.0))
    finally:
        grow_particles.clear_cache()


@pytest.mark.slow
def test_proposals_that_are_taken_for_the_prior_are_noticed(monkeypatch):
    choose = particle_filter.draw_particle_choice

    def broken(*arguments):
        choice = choose(*arguments)
        return choice._replace(terms=choice.terms.at[:, 1].set(choice.terms[:, 0]))

    monkeypatch.setattr(particle_filter, "draw_particle_choice", broken)
    case = case_of(PROBLEM, "classes")
    grow_particles.clear_cache()
    try:
        with pytest.raises(AssertionError):
            check_unbiased(case, estimates(case, "optimal", "node", "systematic", 0.6))
    finally:
        grow_particles.clear_cache()


@pytest.mark.slow
def test_the_variance_falls_as_the_particles_grow_in_number():
    """Within 40 %: the standard error of a variance over 1,000 runs is near 5 %, and skewed."""
    case = case_of(PROBLEM, "values")
    few, many = (
        np.exp(
            estimates(case, "optimal", "node", "systematic", 0.6, size=size).log_partition_of_run
            - case.exact.log_partition
        ).var()
        for size in (8, 64)
    )
    assert 0.6 < few / many / 8 < 1.4


@pytest.mark.slow
@pytest.mark.runs_long
def test_the_standard_error_covers():
    """Intervals of 1.96 standard errors, from 20 runs each; those of half the length do not."""
    case = case_of(PROBLEM, "values")
    found = estimates(case, "optimal", "node", "systematic", 0.6, runs=20_000, size=16)
    of_run = found.log_partition_of_run.reshape(-1, 20)
    parts = np.array([log_mean(part) for part in of_run])
    length = np.abs(parts[:, 0] - case.exact.log_partition) / parts[:, 1]
    assert 0.90 <= (length < 1.96).mean() <= 0.98
    assert not 0.90 <= (length < 0.98).mean() <= 0.98  # the twin


@pytest.mark.slow
@pytest.mark.parametrize("family", ep.FAMILIES)
def test_weighted_particles_are_the_posterior(family):
    """Each tree's share within 5 of its standard errors over 1,000 runs (6e-7 a tree)."""
    case = case_of("depth decay, gaps", family)
    found = estimates(case, "optimal", "node", "systematic", 0.6, size=16)
    names = ep.rule_trees(case, found.posterior.trees)
    weights = np.exp(found.posterior.log_weights - case.exact.log_partition)
    of_run = defaultdict(lambda: np.zeros(RUNS))
    for place, (name, weight) in enumerate(zip(names, weights.ravel(), strict=True)):
        of_run[name][place // 16] += weight / 16
    assert set(of_run) <= set(case.probabilities)
    for tree, p in case.probabilities.items():
        share = of_run[tree]
        if (share > 0).sum() >= 50:  # where the error is known
            assert abs(share.mean() - p) < 5 * share.std() / np.sqrt(RUNS)


# ------------------------------------------------------------------------------ whole filters


@pytest.mark.slow
def test_without_resampling_nodes_and_layers_grow_the_same_trees():
    case = case_of(PROBLEM, "classes")
    one, other = (estimates(case, "optimal", growth, "never", 0.6) for growth in ("node", "layer"))
    np.testing.assert_array_equal(one.posterior.trees.threshold, other.posterior.trees.threshold)
    np.testing.assert_allclose(one.log_partition_of_run, other.log_partition_of_run, atol=1e-12)
    assert one.num_resampled.sum() == 0
    check_unbiased(case, one)
    check_unbiased(case, estimates(case, "optimal", "layer", "systematic", 0.6))
    stats = one.posterior.sample_stats
    scores = log_joint(one.posterior.trees, case.model)
    np.testing.assert_allclose(stats["log_joint"], scores.log_joint, atol=1e-9)
    np.testing.assert_allclose(stats["log_likelihood"], scores.log_likelihood, atol=1e-9)
    assert one.posterior.log_evidence == one.log_partition
    assert one.posterior.log_evidence_se == one.log_partition_se


def test_a_run_depends_on_its_own_number_alone():
    with jax.enable_x64(True):
        few, many = (draw_particle_noise(ep.key(0), runs=n, size=3, capacity=5) for n in (2, 4))
    np.testing.assert_array_equal(few.uniform, many.uniform[:, :2])
    np.testing.assert_array_equal(
        *(jax.random.key_data(noise.rng_keys[:, :2]) for noise in (few, many))
    )


def test_resampled_runs_draw_numbers_that_no_particle_has_used():
    with jax.enable_x64(True):
        old = draw_particle_noise(ep.key(0), runs=3, size=4, capacity=5).uniform
        new = renewed(jax.random.split(ep.key(1), 3), old, jnp.array([True, False, True]))
    np.testing.assert_array_equal(new[:, 1], old[:, 1])
    assert not np.isin(new[:, ::2], old).any()


@pytest.mark.slow
def test_numbers_are_renewed_where_particles_stand_at_different_slots(monkeypatch):
    def weights():
        grow_particles.clear_cache()
        case = case_of(PROBLEM, "classes")
        return [
            estimates(case, "prior", growth, "systematic", 1.0, runs=20).log_partition_of_run
            for growth in ("node", "layer")
        ]

    node, layer = weights()
    monkeypatch.setattr(particle_filter, "renewed", lambda keys, old, is_wanted: old / 2)
    try:
        as_before, changed = weights()
    finally:
        grow_particles.clear_cache()
    np.testing.assert_array_equal(as_before, node)
    assert (changed != layer).any()


@pytest.mark.slow
def test_the_capacity_bounds_the_model():
    """Trees that do not fit have no weight, and those that do keep theirs."""
    case = ep.random_case("depth decay, gaps", "classes", 3)
    found = sample_particles(
        ep.key(0),
        case.model,
        runs=RUNS,
        particles=SIZE,
        capacity=5,
    )
    assert found.posterior.trees.num_nodes.max() == 5
    assert found.num_overflows.sum() > 0
    fits = [s for s in case.scored if leaves(s.tree) <= 3]
    expected = np.logaddexp.reduce([s.log_prior + s.log_likelihood for s in fits])
    ratio = np.exp(found.log_partition_of_run - expected)
    assert abs(ratio.mean() - 1) < WITHIN * ratio.std() / np.sqrt(RUNS)


def leaves(tree):
    return leaves(tree.left) + leaves(tree.right) if hasattr(tree, "rule") else 1


@pytest.mark.slow
def test_the_evidence_under_weights_that_do_not_sum_to_one_is_unknown():
    case = case_of("leaf penalty, gaps", "classes")
    found = estimates(case, "optimal", "node", "systematic", 0.6, runs=3)
    assert np.isnan(found.posterior.log_evidence)
    assert np.isfinite(found.log_partition)
    assert np.isnan(log_mean(np.zeros(1))[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 0}, "particles must be an integer of at least 1"),
        ({"runs": 1.5}, "runs must be an integer"),
        ({"capacity": True}, "capacity must be an integer"),
        ({"proposal": "posterior"}, "proposal must be 'prior' or 'empirical' or 'optimal'"),
        ({"growth": "leaf"}, "growth must be 'node' or 'layer'"),
        ({"resampling": "often"}, "resampling must be 'systematic' or 'multinomial' or 'never'"),
        ({"ess_threshold": 2}, r"ess_threshold must be a number in \[0, 1\]"),
    ],
)
def test_bad_input_is_named(options, message):
    design = Design.from_matrix(np.arange(4.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    with pytest.raises(ValueError, match=message):
        sample_particles(
            ep.key(0), TreeModel(design, np.arange(4) % 2, DepthDecay(), leaf), **options
        )
