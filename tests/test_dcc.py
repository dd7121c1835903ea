"""DCC-Tree on a problem so small that quadrature gives the evidence of every topology."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import soft_quadrature
from joblib import parallel_config
from scipy.special import betaln, softmax

from bdtppl.datasets import make_cgm, make_wu
from bdtppl.inference.dcc import combine as combining
from bdtppl.inference.dcc import local
from bdtppl.inference.dcc.combine import combine, layered_evidence
from bdtppl.inference.dcc.explore import (
    TopologyWalk,
    _is_exhausted,
    log_topology_joint,
    within_reach,
)
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.evidence.estimates import Evidence
from bdtppl.inference.evidence.tempered import Tempered
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.run import run
from bdtppl.inference.summaries.diagnostics import log_masses
from bdtppl.models.soft.topology import Topology, TopologyPrior, topologies
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

RNG = np.random.default_rng(3)
X = np.linspace(0, 1, 12)
Y = 1.5 * (X > 0.6) - 0.5 * (X < 0.2) + RNG.normal(0, 0.4, 12)
MODEL = SoftRegression()
SHARPNESS = 0.1
SETTINGS = DCC(
    model=MODEL,
    x=X[:, None],
    y=Y,
    nuts=NUTS(warmup=200, h_init=0.3, h_final=SHARPNESS),
    num_chains=4,
    num_draws=50,
    pseudo_samples=5,
    initial_trees=30,
    activation_count=1,
    max_splits=1,
)
LARGER = replace(SETTINGS, max_splits=2)


def explore(dcc, iterations, **options):
    return run(TopologyWalk(dcc, iterations, **options), jax.random.key(0))


@pytest.fixture(scope="module")
def state():
    return explore(SETTINGS, 6)


def exact(max_splits):
    return {
        shape: soft_quadrature.log_evidence(shape.code, MODEL, X, Y, SHARPNESS)
        for n in range(max_splits + 1)
        for shape in topologies(n)
    }


def check_evidence(found, truth):
    """Each log evidence within 4.5 standard errors: false alarm 3e-5 for four."""
    for part in found:
        error = part.evidence.standard_error
        assert abs(part.evidence.log_evidence - truth[part.topology]) < 4.5 * error < 0.5


def check_weights(found, truth):
    """Probabilities of topologies as the exact ones, within what the errors of log Z allow."""
    prior = TopologyPrior()
    weights = softmax([z + prior.log_prob(m) for m, z in truth.items()])
    expected = dict(zip(truth, weights, strict=True))
    assert {part.topology for part in found} == set(truth)
    for part in found:
        error = np.hypot(*(max(each.evidence.standard_error for each in found),) * 2)
        assert part.probability == pytest.approx(expected[part.topology], rel=4.5 * error)


def check_problem(settings, state):
    truth = exact(settings.max_splits)
    found = combine(settings, state, evidence="lais")
    check_evidence(found, truth)
    check_weights(found, truth)
    # The twins: the prior of topologies left out, or counted twice.
    log_prior = np.array([TopologyPrior().log_prob(part.topology) for part in found])
    evidence = np.array([part.evidence.log_evidence for part in found])
    for times in (0, 2):
        wrong = softmax(evidence + times * log_prior)
        twin = [part._replace(probability=p) for part, p in zip(found, wrong, strict=True)]
        with pytest.raises(AssertionError):
            check_weights(twin, truth)


def test_topologies_have_their_exact_probabilities(state):
    check_problem(SETTINGS, state)


@pytest.mark.slow
def test_topologies_of_two_splits_too():
    state = explore(LARGER, 8)
    check_problem(LARGER, state)
    shapes = topologies(2)
    together = local.begin_topologies(LARGER, jax.random.key(0), shapes, since=0)
    alone = local.begin_topologies(LARGER, jax.random.key(0), shapes[1:], since=0)
    np.testing.assert_array_equal(together[1].log_weight, alone[0].log_weight)


@pytest.mark.slow
def test_tempered_evidence_and_its_particles(state):
    layered = {part.topology: part for part in combine(SETTINGS, state, evidence="lais")}
    found = combine(SETTINGS, state, evidence="smc")
    check_evidence(found, exact(1))
    for part in found:
        assert part.evidence.method == "smc"
        assert part.position.shape == (16 * 128, layered[part.topology].position.shape[1])
        other = layered[part.topology]
        mean, other_mean = (each.weight @ each.position for each in (part, other))
        deviation = np.sqrt(other.weight @ (other.position - other_mean) ** 2)
        # Each has some 300 effective draws or more: four standard errors of the difference.
        assert np.abs(mean - other_mean).max() < (4 * deviation * np.sqrt(2 / 300)).max()


@pytest.mark.slow
def test_estimators_agree_where_splits_are_sharp():
    """From the prior, tempered SMC ends 10 nats too low here: it must start where chains are.

    4.5 standard errors of the difference, that of SMC from 16 runs: a false alarm has 4e-4.
    """
    x, y = make_wu(random_state=0)
    x = (x - x.min(axis=0)) / np.ptp(x, axis=0)
    sampler = NUTS(warmup=1000, h_init=0.5, h_final=0.025)
    dcc = DCC(model=SoftRegression(noise_on="sd"), x=x, y=y, nuts=sampler)
    key = jax.random.key(0)
    (explored,) = local.burn_in(
        dcc, key, local.begin_topologies(dcc, key, [Topology("10100")], since=0)
    )
    explored = local.visit_topology(dcc, key, explored)

    def check(dcc):
        tempered, _ = local.temper(dcc, key, explored)
        error = np.hypot(explored.evidence.standard_error, tempered.standard_error)
        assert error < 0.2
        assert abs(tempered.log_evidence - explored.evidence.log_evidence) < 4.5 * error

    check(dcc)
    with pytest.raises(AssertionError):
        check(replace(dcc, nuts=replace(sampler, h_final=0.04)))


def test_auto_takes_tempered_smc_where_weights_are_uneven(state, monkeypatch):
    def temper(dcc, rng_key, explored):
        particles = Tempered(np.zeros(2), np.zeros((2, 3, 4)))
        return Evidence(30.0, 0.1, "smc", 500.0), particles

    monkeypatch.setattr(combining, "temper", temper)
    split, leaf = Topology("100"), Topology("0")
    uneven = replace(state.explored[split])
    uneven.__dict__["evidence"] = uneven.evidence._replace(pareto_k=0.9)
    found = {
        part.topology: part
        for part in combine(SETTINGS, replace(state, explored={**state.explored, split: uneven}))
    }
    assert found[split].evidence.method == "smc"
    assert "Pareto k 0.90" in found[split].evidence.reason
    assert found[split].position.shape == (6, 4)
    np.testing.assert_allclose(found[split].weight, 1 / 6)
    assert found[leaf].evidence.method == "lais"
    assert found[leaf].weight.sum() == pytest.approx(1)
    alone = replace(state, explored={split: uneven})
    (part,) = combine(SETTINGS, alone, evidence="lais")
    with pytest.warns(UserWarning, match=r"log evidence of topology 100, .* is not reliable"):
        part.evidence.warn("topology 100")


@pytest.mark.slow
def test_steps_in_two_parts_are_those_of_one_run(state):
    walk = TopologyWalk(SETTINGS, 6)
    arrays = walk.to_arrays(explore(SETTINGS, 3))
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    assert not any(array.dtype == object for array in arrays.values())
    again = walk.from_arrays(jax.random.key(0), arrays)
    while not walk.is_done(again):
        again = walk.advance(again)
    assert again.visited == state.visited
    assert again.proposed == state.proposed
    for name, array in walk.to_arrays(state).items():
        np.testing.assert_array_equal(walk.to_arrays(again)[name], array)


def test_steps_of_the_walk(state):
    assert sum(state.proposed.values()) == SETTINGS.initial_trees + len(state.visited)
    assert all(state.proposed[m] > SETTINGS.activation_count for m in state.explored)
    visits = {m: state.visited.count(m) for m in state.explored}
    assert {m: each.visits for m, each in state.explored.items()} == visits
    for each in state.explored.values():
        total = each.visits * SETTINGS.num_draws
        assert each.position.shape[:2] == each.log_weight.shape[:2] == (4, total)
        assert each.draws.position.shape[:2] == (4, total)


def with_evidence(explored, log_evidence, error):
    """The same with another estimate."""
    fake = replace(explored)
    fake.__dict__["evidence"] = Evidence(log_evidence, error, "lais", 500.0, 0.1)
    return fake


def test_what_may_still_hold_a_share(state):
    prior = TopologyPrior()
    best, other = Topology("100"), Topology("0")
    odds = prior.log_prob(best) - prior.log_prob(other)
    for below, error, expected in (
        (0.0, 0.0, True),
        (11.8, 0.0, True),  # 5 nats may have been missed, and 6.9 are a thousandth
        (12.0, 0.0, False),
        (12.0, 0.1, True),  # three standard errors
    ):
        explored = {
            best: with_evidence(state.explored[best], 0.0, 0.1),
            other: with_evidence(state.explored[other], odds - below, error),
        }
        assert (other in within_reach(SETTINGS, explored, 1e-3)) is expected


def test_topologies_out_of_reach_are_left_after_the_pilot():
    """By quadrature the tree without a split has e^-7.1 of the other's weight."""
    steep = replace(SETTINGS, y=2 * np.sign(X - 0.5), least_share=0.5)
    state = explore(steep, 2)
    left = {m: each.is_left for m, each in state.explored.items()}
    assert left == {Topology("0"): True, Topology("100"): False}
    assert Topology("0") not in state.visited
    found = {part.topology: part for part in combine(steep, state)}
    assert found[Topology("0")].evidence.reason == "left after the pilot"
    assert found[Topology("100")].probability > 0.99


@pytest.mark.slow
def test_pilots_find_modes_that_sharp_splits_miss():
    """CGM and the topology that generates it, whose mode Cochrane et al.'s chains missed.

    Splits that are sharp from the first, as in their Table 5, miss it by hundreds of nats.
    """
    X, y = make_cgm(random_state=0)
    settings = replace(
        SETTINGS,
        model=SoftRegression(noise_on="sd"),
        x=(X - 1) / 9,
        y=y,
        nuts=NUTS(warmup=5000, h_init=0.01, h_final=0.001),
        num_chains=16,
        num_draws=100,
        max_splits=None,
    )

    def evidence(settings):
        generating = [Topology("110100100")]
        (found,) = local.begin_topologies(settings, jax.random.key(0), generating, since=0)
        return found.evidence.log_evidence

    sharp = replace(settings, h_search=0.0)
    assert evidence(settings) > evidence(sharp) + 100


def test_without_a_pilot_and_without_the_leaf():
    settings = replace(SETTINGS, pilot=0.0, with_leaf=False)
    state = explore(settings, 2)
    assert set(state.explored) == {Topology("100")}
    assert Topology("0") not in state.proposed
    assert [part.probability for part in combine(settings, state)] == [1.0]


@pytest.mark.slow
def test_every_setting_of_the_utility_and_the_weights_finds_the_same():
    settings = replace(
        SETTINGS,
        denominator="spatial",
        delta=0.5,
        kappa=1.0,
        optimism=2.0,
        look_ahead=10,
        moves={"grow": 0.5, "prune": 0.5},
        warmup_doublings=1,
    )
    check_problem(settings, explore(settings, 6))


@pytest.mark.parametrize(("limit", "doublings"), [(0.0, 2), (np.inf, 0)])
def test_warmup_is_made_again_where_chains_disagree(limit, doublings, monkeypatch):
    monkeypatch.setattr(local, "_LARGEST_R_HAT", limit)
    settings = replace(SETTINGS, warmup_doublings=2)
    begun = local.begin_topologies(settings, jax.random.key(0), [Topology("100")], since=0)
    (found,) = local.burn_in(settings, jax.random.key(0), begun)
    assert (found.chains.num_warm == 200 * 2**doublings).all()
    visited = local.visit_topology(settings, jax.random.key(0), found)
    assert visited.draws.position.shape[:2] == (4, 50)


@pytest.mark.slow
def test_topologies_that_were_not_looked_at_keep_what_the_pilot_found():
    state = explore(SETTINGS, 1)
    found = {part.topology: part for part in combine(SETTINGS, state, evidence="smc")}
    (seen,) = state.visited
    methods = {m: part.evidence.method for m, part in found.items()}
    assert len(methods) > 1
    assert methods == {m: "smc" if m == seen else "lais" for m in methods}


def test_chains_are_compared_where_splits_are_sharp(monkeypatch):
    """Not by their way from the prior, if splits are so from the first step on."""
    compared = []
    monkeypatch.setattr(local, "log_masses", lambda x, lp: compared.append(lp) or log_masses(x, lp))
    settings = replace(SETTINGS, nuts=NUTS(warmup=200, h_init=0.1, h_final=0.1), restarts=0)
    begun = local.begin_topologies(settings, jax.random.key(0), [Topology("100")], since=0)
    local.burn_in(settings, jax.random.key(0), begun)
    chains, pilots = compared
    assert chains.shape == pilots.shape == (4, 12)  # half of the pilot's steps
    # 5 and 4 nats are many standard deviations of the density of a tree of four parameters.
    assert abs(np.median(chains) - np.median(pilots)) < 4
    assert chains.std() < 5


@pytest.fixture(scope="module")
def pilot():
    return local.begin_topologies(SETTINGS, jax.random.key(0), [Topology("100")], since=0)[0]


def test_stuck_chains_go_where_those_of_the_pilot_are(pilot, monkeypatch):
    """All chains but the pilot's third are in modes of negligible mass."""
    chains, draws = (jax.tree.map(lambda a: a + 1, each) for each in (pilot.chains, pilot.draws))
    masses = iter([np.full(4, -50.0), np.array([-50.0, -50, 0, -50])])
    monkeypatch.setattr(local, "log_masses", lambda *_: next(masses))
    settled = local._settle(SETTINGS, jax.random.key(0), pilot, chains, draws)
    for name in ("position", "step_size", "inverse_mass"):
        there = getattr(pilot.chains, name)[[2, 2, 2, 2]]
        np.testing.assert_array_equal(getattr(settled, name), there)
    np.testing.assert_array_equal(settled.num_warm, chains.num_warm)


def test_stuck_chains_of_a_pilot_begin_again(pilot, monkeypatch):
    masses = iter([np.array([0.0, -50, -50, 0]), np.array([0.0, 0, -50, 0])])
    monkeypatch.setattr(local, "log_masses", lambda *_: next(masses))
    given = SETTINGS, jax.random.key(0), pilot.topology, pilot.chains, pilot.draws
    chains, draws, num_restarts = local._restart(*given)
    assert num_restarts == 2
    for before, after in ((pilot.chains, chains), (pilot.draws, draws)):
        is_same = (before.position == after.position).reshape(4, -1).all(axis=1)
        assert is_same.tolist() == [True, False, False, True]


@pytest.mark.parametrize("evidence", ["lais", "smc"])
def test_a_size_without_coordinates(evidence):
    """A classifying leaf has nothing to sample: its evidence is the Dirichlet-multinomial's."""
    labels = np.arange(12) % 3 % 2
    settings = replace(SETTINGS, model=SoftClassification(), y=labels, max_splits=0)
    state = explore(settings, 2)
    (leaf,) = combine(settings, state, evidence=evidence)
    exact = betaln(*1 + np.bincount(labels))
    assert leaf.evidence.log_evidence == pytest.approx(exact, abs=1e-5)
    assert leaf.evidence.method == "exact"
    assert leaf.evidence.is_reliable
    assert leaf.position.shape[-1] == 0


def test_the_walk_stops_where_nothing_of_weight_is_found():
    state = explore(SETTINGS, 9, patience=3)
    assert len(state.visited) == 3


def test_what_became_active_of_late_is_late():
    """It holds the weight, and became active in the last step but some."""
    state = explore(SETTINGS, 4)
    best = max(state.explored.values(), key=lambda each: log_topology_joint(each, SETTINGS.prior))
    for ago in (1, 2, 3):
        late = {**state.explored, best.topology: replace(best, since=4 - ago)}
        for patience in (1, 2, 3):
            is_exhausted = _is_exhausted(SETTINGS, replace(state, explored=late), patience, 1e-3)
            assert is_exhausted == (patience < ago)


def test_the_walk_goes_on_while_an_active_topology_was_not_looked_at():
    state = explore(SETTINGS, 4)
    assert _is_exhausted(SETTINGS, state, 3, 1e-3)
    for topology, each in state.explored.items():
        waiting = {**state.explored, topology: replace(each, visits=0)}
        is_exhausted = _is_exhausted(SETTINGS, replace(state, explored=waiting), 3, 1e-3)
        assert is_exhausted == each.is_left
    assert not all(each.is_left for each in state.explored.values())


def test_where_no_topology_was_proposed_often_enough():
    settings = replace(SETTINGS, activation_count=1000)
    state = explore(settings, 1)
    assert state.visited == (Topology("100"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 0}, "num_chains must be an integer of at least 1"),
        ({"delta": 2.0}, r"delta must be a number in \[0, 1\]"),
        ({"warmup_doublings": -1}, "warmup_doublings must be an integer of at least 0"),
        ({"moves": {"swap": 1.0}}, "moves must name some of .*; got 'swap'"),
        ({"denominator": "all"}, "denominator must be 'basic' or 'spatial' or"),
        ({"with_leaf": False, "max_splits": 0}, "max_splits must be at least 1"),
        ({"max_splits": -1}, "max_splits must be None or an integer of at least 0"),
        ({"nuts": NUTS(warmup=3)}, "warmup must be an integer of at least 4"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **options)


def test_the_error_knows_how_visits_differ():
    """Weights of one visit may be even, though visits lie apart."""
    chains, draws, samples = 4, 50, 5
    each = np.random.default_rng(0).normal(0, 0.01, (chains, 4 * draws, samples))
    each += np.repeat([0.0, 0.1, 0.2, 0.3], draws)[None, :, None]
    explored = local.Explored(topologies(1)[0], 0, np.zeros((chains, 4 * draws, 1)), each, visits=4)
    assert explored.evidence.standard_error < 1e-3
    found = layered_evidence(explored)
    assert found.log_evidence == explored.evidence.log_evidence
    wanted = np.exp([0.0, 0.1, 0.2, 0.3])
    wanted = wanted.std(ddof=1) / 2 / wanted.mean()
    assert found.standard_error == pytest.approx(wanted, rel=0.02)


def require_same(one, other):
    """Require the same bits of everything that the walk has found."""
    assert one.visited == other.visited
    assert one.proposed == other.proposed
    assert list(one.explored) == list(other.explored)
    for mine, theirs in zip(one.explored.values(), other.explored.values(), strict=True):
        arrays = ("position", "log_weight", "chains", "draws")
        jax.tree.map(
            np.testing.assert_array_equal,
            *([getattr(each, name) for name in arrays] for each in (mine, theirs)),
        )


def test_chains_over_workers_are_those_of_one_process(state):
    with parallel_config("threading", n_jobs=3):
        require_same(explore(SETTINGS, 6), state)
