"""Parallel tempering and stepping stones against tempered posteriors by enumeration."""

from collections import Counter
from itertools import cycle
from types import SimpleNamespace
from typing import NamedTuple

import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import few_of

from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis import moves, tempering
from bdtppl.inference.metropolis.evidence import stepping_stones
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.metropolis.state import initial, state_of
from bdtppl.models.hard import packed_model
from bdtppl.models.hard.tree_model import TreeModel

POWERS = np.array([0.0, 0.3, 1.0])
CAPACITY = 31


def posed(case):
    return packed_model.PackedModel.of(case.model)


def tempered(case, power):
    """Probability of each tree under a power of the likelihood, in the order of `scored`."""
    log_weight = np.array([t.log_prior + power * t.log_likelihood for t in case.scored])
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def tempered_draws(case, num_ladders):
    """Places in `scored` of exact draws, [ladders, powers]."""
    rng = np.random.default_rng(0)
    own = [rng.choice(len(case.scored), num_ladders, p=tempered(case, p)) for p in POWERS]
    return np.stack(own, axis=1)


def check_marginals(case, names):
    """Every power's trees, [ladders, powers], follow its tempered posterior."""
    for power, own in zip(POWERS, names.T, strict=True):
        probability = dict(zip((t.tree for t in case.scored), tempered(case, power), strict=True))
        positive = {tree: p for tree, p in probability.items() if p > 0}
        assert ep.g_test(Counter(own.tolist()), positive) > ep.FALSE_ALARM


# -------------------------------------------------------------------------------- exchanges


class Placed(NamedTuple):
    """States that are known by the place of their tree in `scored`."""

    place: jax.Array
    log_likelihood: jax.Array


def check_exchanges(exchange):
    """Exact draws stay exact after an even and an odd round, and exchanges are made."""
    case = ep.random_case("depth decay, gaps", "classes", 7)
    places = tempered_draws(case, 20_000)
    log_likelihood = np.array([t.log_likelihood for t in case.scored])
    with jax.enable_x64(True):
        state = Placed(jnp.asarray(places.ravel()), jnp.asarray(log_likelihood[places.ravel()]))
        keys = jax.random.split(ep.key(2), 2 * len(places)).reshape(2, -1)
        for parity in range(2):
            state, made = jax.jit(exchange)(keys[parity], parity, state, jnp.asarray(POWERS))
            assert int(made.tried[:, 1 - parity].sum()) == 0
            assert 0 < int(made.accepted.sum()) < int(made.tried.sum()) == len(places)
    trees = np.empty(len(case.scored), object)
    trees[:] = [t.tree for t in case.scored]
    after = np.asarray(state.place).reshape(places.shape)
    assert (after != places).any()
    check_marginals(case, trees[after])


def test_exchanges_leave_every_tempered_posterior_as_it_is():
    check_exchanges(tempering.exchange)


def test_an_exchange_by_the_inverse_ratio_is_noticed():
    def inverted(rng_keys, parity, state, powers):
        turned = state._replace(log_likelihood=-state.log_likelihood)
        state, made = tempering.exchange(rng_keys, parity, turned, powers)
        return state._replace(log_likelihood=-state.log_likelihood), made

    with pytest.raises(AssertionError):
        check_exchanges(inverted)


def test_exchanges_and_walks_have_keys_of_their_own(monkeypatch):
    exchanged, walked, last = [], set(), 25

    def steps(rng_keys, first, stop, state, tally, *_):
        for number in range(last + 1):
            walked.update(words(jax.vmap(jax.random.fold_in, (0, None))(rng_keys, number)))
        return state, tally

    def exchange(rng_keys, parity, state, powers):
        exchanged.extend(words(rng_keys))
        none = jnp.zeros((2, 1), jnp.int32)
        return state, tempering.Exchanges(none, none)

    def words(rng_keys):
        return map(tuple, np.asarray(jax.random.key_data(rng_keys)).tolist())

    monkeypatch.setattr(tempering, "steps", steps)
    monkeypatch.setattr(tempering, "exchange", exchange)
    state = tempering.State(*(jnp.zeros(4) for _ in tempering.State._fields))
    kernel = SimpleNamespace(names=())
    keys, powers = jax.random.split(ep.key(0), 2), jnp.array([0.5, 1.0])
    with jax.disable_jit():
        tempering.climb(keys, 0, state, None, kernel, powers, 1, last, room=1)
    assert len(exchanged) == len(set(exchanged)) == 4
    assert walked.isdisjoint(exchanged)


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("model", "family", "num_rounds"),
    [("depth decay, gaps", "classes", 2), ("greedy partition, gaps", "values", 1)],
)
def test_exact_draws_of_every_power_stay_exact(model, family, num_rounds):
    case = ep.random_case(model, family, 7)
    places = tempered_draws(case, 4_000)
    ranked = case.exact.k_best(len(case.scored))
    rank = {tree: i for i, tree in enumerate(ep.rule_trees(case, ranked.trees))}
    chosen = np.array([rank[case.scored[place].tree] for place in places.ravel()])
    trees = ranked.trees[chosen]
    with jax.enable_x64(True):
        model = posed(case)
        state, _, _, exchanges = tempering.climb(
            jax.random.split(ep.key(1), len(places)),
            jnp.int32(0),
            state_of(model, as_shape(model, case.design, trees, CAPACITY)),
            model,
            moves.LocalMoves.of(moves.CHIPMAN),
            jnp.asarray(POWERS),
            jnp.int32(1),
            jnp.int32(10 * num_rounds),
            room=1,
        )
        shape = jax.tree.map(np.asarray, state.shape)
        names = ep.rule_trees(case, write_out(model, shape).trees)
    assert int(exchanges.tried.sum()) == num_rounds * len(places)
    held = np.empty(len(names), object)
    held[:] = names
    check_marginals(case, held.reshape(places.shape))


def test_powers_are_moved_until_neighbours_reject_alike():
    """Where rejections add up as the square root of the power."""
    powers = tempering.as_powers(8)
    for _ in range(5):
        tried = np.full(7, 10**6)
        accepted = tried * (1 - np.diff(np.sqrt(powers)))
        powers = tempering.evened(powers, tried, accepted)
    np.testing.assert_allclose(powers, np.linspace(0, 1, 8) ** 2, atol=0.01)
    everything = tempering.evened(np.array([0.0, 0.1, 1.0]), np.array([9, 9]), np.array([9, 9]))
    np.testing.assert_allclose(everything, [0, 0.1, 1])


def test_powers_are_read_and_checked():
    np.testing.assert_array_equal(tempering.as_powers(1), [1.0])
    powers = tempering.as_powers(7)
    assert powers[0] == 0
    assert powers[-1] == 1
    assert (np.diff(powers) > 0).all()
    np.testing.assert_array_equal(tempering.as_powers([0.5, 1]), [0.5, 1.0])
    for wrong in (0, 1.5, True, [0.0, 0.5], [0.5, 0.2, 1.0], [-0.1, 1.0], "ten"):
        with pytest.raises(ValueError, match="temperatures"):
            tempering.as_powers(wrong)


# --------------------------------------------------------------------------- stepping stones


def independent(case, powers, num_chains, num_draws, seed):
    """Log likelihoods of exact draws under each power, [chain, draw, t]."""
    rng = np.random.default_rng(seed)
    log_likelihood = np.array([t.log_likelihood for t in case.scored])
    size = num_chains, num_draws
    own = [rng.choice(log_likelihood, size, p=tempered(case, power)) for power in powers]
    return np.stack(own, axis=-1)


@pytest.mark.parametrize("family", ep.FAMILIES)
def test_stones_of_exact_draws_lead_to_the_evidence_and_know_their_error(family):
    """Within 4 standard errors; two of them hold the truth in 88 % of 200 repeats (rate 2e-5)."""
    case = ep.random_case("depth decay, gaps", family, 7)
    powers = tempering.as_powers(6)
    estimates = np.array(
        [stepping_stones(independent(case, powers, 4, 100, seed), powers) for seed in range(200)]
    )
    error = estimates[:, 0] - case.exact.log_evidence
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(len(error))
    assert (np.abs(error) < 2 * estimates[:, 1]).mean() > 0.88
    assert 0.8 < estimates[:, 1].mean() / error.std() < 1.25


def test_stones_of_the_next_higher_power_are_noticed():
    case = ep.random_case("depth decay, gaps", "classes", 7)
    powers = tempering.as_powers(6)
    log_likelihood = independent(case, powers, 4, 1000, 0)
    shifted = np.concatenate([log_likelihood[..., 1:], log_likelihood[..., -1:]], axis=-1)
    wrong, standard_error = stepping_stones(shifted, powers)
    assert abs(wrong - case.exact.log_evidence) > 4 * standard_error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family"), few_of(zip(ep.SOME_MODELS, cycle(ep.FAMILIES), strict=False), 3)
)
def test_tempered_chains_find_evidence_and_posterior(model, family):
    case = ep.random_case(model, family, 2)
    drawn = sample_chains(
        ep.key(3),
        case.model,
        temperatures=6,
        draws=1_000,
        warmup=1_005,
        capacity=CAPACITY,
    )
    posterior = drawn.posterior
    assert posterior.log_evidence_se < 0.1
    error = abs(posterior.log_evidence - case.exact.log_evidence)
    assert error < 4 * posterior.log_evidence_se
    assert drawn.swap_rate.shape == (5,)
    assert ((drawn.swap_rate > 0) & (drawn.swap_rate <= 1)).all()
    assert drawn.trajectory.shape == (4, 1 + 1 + 50 + 1_000)
    assert drawn.trajectory_steps[-1] == 1_005 + 20_000
    np.testing.assert_array_equal(
        drawn.trajectory[:, -1_000:], posterior.sample_stats["log_likelihood"]
    )


@pytest.mark.slow
@pytest.mark.runs_long
def test_the_reported_error_of_the_evidence_covers_it():
    """Of 100 runs of 4 ladders 1.96 errors hold the truth in at least 86 (rate 2e-4)."""
    case = ep.random_case("depth decay, gaps", "classes", 2)
    powers = tempering.as_powers(6)
    with jax.enable_x64(True):
        model, num_ladders = posed(case), 400
        _, kept, _, _ = tempering.climb(
            jax.random.split(ep.key(4), num_ladders),
            jnp.int32(0),
            initial(model, num_ladders * len(powers), CAPACITY),
            model,
            moves.LocalMoves.of(moves.CHIPMAN),
            jnp.asarray(powers),
            jnp.int32(120),
            jnp.int32(20),
            room=120,
        )
    log_likelihood = np.swapaxes(np.asarray(kept.log_likelihood)[20:], 0, 1)
    runs = log_likelihood.reshape(100, 4, *log_likelihood.shape[1:])
    found, errors = np.array([stepping_stones(run, powers) for run in runs]).T
    inside = np.abs(found - case.exact.log_evidence) < 1.96 * errors
    assert inside.mean() >= 0.86
    assert abs(found.mean() - case.exact.log_evidence) < 4 * found.std() / np.sqrt(len(found))


@pytest.mark.slow
def test_rounds_of_any_number_give_the_same_draws(monkeypatch):
    case = ep.random_case("depth decay, cuts", "classes", 5)
    arguments = case.design, case.y, case.prior, case.leaf, case.constraints
    options = {"chains": 3, "warmup": 325, "draws": 9, "thin": 20, "temperatures": 3}
    one = sample_chains(ep.key(0), TreeModel(*arguments), **options).posterior
    monkeypatch.setattr("bdtppl.inference.metropolis.sample._REPORTS", 2)
    other = sample_chains(ep.key(0), TreeModel(*arguments), **options).posterior
    np.testing.assert_array_equal(one.trees.threshold, other.trees.threshold)
