"""The one loop: every inference goes on to the same bits, and ends in time with an answer."""

import time
from typing import NamedTuple

import additive_problems as ap
import exact_problems as ep
import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from tiers import slow_but

from bdtppl.inference.additive.sample import SumChains
from bdtppl.inference.compiling import Stopwatch, WorkClock
from bdtppl.inference.gflownet.grammar_training import GrammarSettings
from bdtppl.inference.gflownet.methods import Flows, Policies
from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.inference.metropolis.sample import MetropolisChains
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.particle.sample import ParticleFilters
from bdtppl.inference.rjhmc import RJHMC, JumpingChains
from bdtppl.inference.run import Inference, read_state, run, write_state
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from bdtppl.models.soft.tree import SoftRegression

RNG = np.random.default_rng(0)
X, LABELS = RNG.integers(0, 4, (20, 2)).astype(float), RNG.integers(0, 2, 20)
MODEL = TreeModel(
    Design.from_matrix(X),
    LABELS,
    DepthDecay(),
    DirichletCategorical.symmetric(2),
    Constraints(max_depth=2),
)


def never(posterior):
    return False


def sums():
    lengths = {"chains": 2, "warmup": 15, "draws": 12, "thin": 2, "extensions": 1}
    return SumChains(ap.problem("missing", 2, 3).kernel(None), **lengths, agree=never)


def metropolis():
    lengths = {"chains": 2, "warmup": 25, "draws": 12, "thin": 2, "extensions": 1}
    return MetropolisChains(MODEL, **lengths, temperatures=3, agree=never)


def particles():
    return ParticleFilters(MODEL, particles=10, runs=5)


def flows():
    few = {"num_trees": 4, "updates": 1, "batch": 8, "ring": 32}
    return Flows(MODEL, GrammarSettings(**few), 12)


def policies():
    return Policies(MODEL, PolicySettings(num_forward=4, num_replayed=2, buffer_size=4), 45)


def jumps():
    y = X[:, 0] + 0.1 * RNG.normal(size=20)
    few = RJHMC(NUTS(warmup=20, h_init=0.1, h_final=0.1), max_splits=1, restarts=0)
    return JumpingChains(few, SoftRegression(), X / 3, y, chains=2, burn_in=2, draws=3)


INFERENCES = sums, metropolis, particles, flows, policies, jumps
START = {sums: 4}


class Kept:
    """Keeps states as files would, and interrupts the run after some chunks."""

    def __init__(self, chunks=-1, arrays=None):
        self.chunks, self.arrays = chunks, arrays

    def resumed(self, read):
        return None if self.arrays is None else read(self.arrays)

    def require_length(self, name, done, asked):
        if done > asked:
            raise ValueError(f"{name} is too short")

    def offer(self, arrays):
        self.arrays = {name: array.copy() for name, array in arrays().items()}
        self.chunks -= 1
        if self.chunks == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("of", slow_but((sums,), INFERENCES))
def test_runs_that_are_interrupted_end_at_the_same_bits(of, monkeypatch):
    monkeypatch.setattr("bdtppl.inference.particle.sample._WORK_AT_ONCE", 1.0)  # a run a group
    inference, key = of(), START.get(of, ep.key(0))
    chunks = []
    whole = inference.to_arrays(run(inference, key, on_progress=lambda each: chunks.append(each)))
    assert len(chunks) > 2
    assert [each.made for each in chunks] == sorted({each.made for each in chunks})
    assert chunks[-1].made == chunks[-1].whole
    for stop in {1, len(chunks) // 2, len(chunks) - 1}:
        kept = Kept(stop)
        with pytest.raises(KeyboardInterrupt):
            run(inference, key, keep=kept)
        assert not any(array.dtype == object for array in kept.arrays.values())
        again = inference.to_arrays(run(inference, key, keep=Kept(arrays=kept.arrays)))
        assert again.keys() == whole.keys()
        for name, array in whole.items():
            np.testing.assert_array_equal(again[name], array, err_msg=name)


@pytest.mark.parametrize("of", slow_but((sums,), INFERENCES))
def test_a_run_that_time_ends_has_an_answer_and_can_go_on(of, monkeypatch):
    monkeypatch.setattr("bdtppl.inference.particle.sample._WORK_AT_ONCE", 1.0)
    inference, key = of(), START.get(of, ep.key(0))
    kept = Kept()
    part = run(inference, key, time_limit=1e-9, keep=kept)
    made, asked = inference.num_steps(part)
    assert 0 < made < asked
    assert not inference.is_done(part)
    assert inference.result(part) is not None
    whole = run(inference, key, keep=Kept(arrays=kept.arrays))
    assert inference.is_done(whole)


def test_draws_of_sums_that_time_ends_are_of_the_second_half():
    chains = SumChains(ap.problem("plain", 2, 3).kernel(None), 2, 100, 40)
    state = chains.start(4)
    for reached in range(10, 150, 10):
        assert chains.result(state).variance.shape == (2, len(state.sweep))
        state = chains.advance(state)
        first = 100 if reached == 140 else min(100, reached // 2)
        assert chains.num_thrown_away(state) == first
        np.testing.assert_array_equal(state.sweep, np.arange(first, reached))


@pytest.mark.parametrize("thin", [1, 7, 50])
def test_sums_that_time_ends_at_once_have_draws(thin):
    chains = SumChains(ap.problem("plain", 2, 3).kernel(None), 2, 250, 10, thin)
    state = run(chains, 4, time_limit=1e-9)
    assert chains.result(state).variance.shape[1] >= 1


def test_an_extension_of_sums_can_be_interrupted_anywhere():
    """Also where warm-up is longer than all draws together."""
    kernel = ap.problem("plain", 2, 3).kernel(None)
    chains = SumChains(kernel, 2, 100, 40, 1, extensions=2, agree=never)
    state = chains.start(4)
    while not chains.is_done(state):
        state = chains.advance(state)
        again = chains.from_arrays(4, chains.to_arrays(state))
        np.testing.assert_array_equal(again.sweep, state.sweep)
        assert len(state.sweep) > 0
    assert len(state.sweep) == 40


def test_draws_before_an_extension_stay_until_it_is_made():
    chains = metropolis()
    state = chains.start(ep.key(0))
    sizes = []
    while not chains.is_done(state):
        state = chains.advance(state)
        if state.stage >= 4:
            sizes.append(chains.result(state).posterior.num_leaves.shape[1])
    assert sizes[-1] == 12
    first = sizes.index(12)
    assert first < len(sizes) - 2
    assert set(sizes[first:]) == {12}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (".steps", lambda a: a[:0]),
        (".steps", lambda a: -a),
        (".trajectory", lambda a: a[:-1]),
        (".counts[1].tried", lambda a: np.concatenate([a, a])),
        (".kept.log_prior", lambda a: a[:-1]),
        (".walks.shape.size", lambda a: a + 99_999),
        (".stage", lambda a: a + 10**6),
        (".capacity", lambda a: a + 10**6),
    ],
)
def test_states_of_chains_whose_parts_do_not_fit_are_refused(name, change):
    chains = metropolis()
    state = chains.advance(chains.start(ep.key(0)))
    arrays = chains.to_arrays(state)
    with pytest.raises(ValueError, match=r"inconsistent|other settings|cannot have|no stage"):
        chains.from_arrays(ep.key(0), arrays | {name: change(arrays[name])})


def test_a_longer_run_is_not_cut():
    kept = Kept()
    run(sums(), 4, keep=kept)
    shorter = SumChains(ap.problem("missing", 2, 3).kernel(None), 2, 15, 12, 2, agree=never)
    with pytest.raises(ValueError, match="extensions is too short"):
        run(shorter, 4, keep=kept)


# ------------------------------------------------------------------------- the loop and its clock


class Count(NamedTuple):
    number: int
    seen: np.ndarray


class Counter(Inference):
    """Counts to ten, and sleeps before each number."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def start(self, rng_key):
        return Count(0, np.zeros(0))

    def advance(self, state):
        time.sleep(self.seconds)
        return Count(state.number + 1, np.append(state.seen, state.number))

    def num_steps(self, state):
        return state.number, 10


def test_progress_and_the_time_left_are_told(monkeypatch):
    monkeypatch.setattr("bdtppl.inference.run._TOLD_AFTER", 0.03)
    told = []
    state = run(Counter(0.01), 0, on_progress=told.append)
    np.testing.assert_array_equal(state.seen, np.arange(10))
    assert [each.made for each in told] == list(range(1, 11))
    left = [each.seconds_left for each in told]
    assert left[0] is None
    assert left[-1] == 0
    assert all(0.01 * (10 - number) <= left[number - 1] < 5 for number in range(5, 11))


def test_a_time_limit_begins_no_chunk_after_it():
    state = run(Counter(0.05), 0, time_limit=0.12)
    assert 1 <= state.number <= 3
    assert run(Counter(0.05), 0, time_limit=0.0).number == 1


def test_compiling_is_not_counted():
    watch, clock, start = Stopwatch(), WorkClock(), time.monotonic()
    begun = time.process_time()
    jax.jit(lambda x: jnp.sort(jnp.linalg.eigvalsh(x @ x)))(np.ones((3, 3))).block_until_ready()
    numba.njit(lambda x: (x * x).sum() + np.sort(x)[0])(np.ones(3))
    passed = time.monotonic() - start
    assert watch.seconds < 0.5 * passed
    used = time.process_time() - begun
    assert (worked := clock.seconds) < 0.5 * used
    time.sleep(0.2)
    assert watch.seconds >= 0.2
    while time.process_time() - begun - used < 0.2:
        pass
    assert clock.seconds - worked >= 0.15


def test_states_are_read_as_they_were_written():
    state = {
        "key": jax.random.key(3),
        "of": (np.arange(3), 2.5, True, jnp.float32(1)),
        "draws": np.zeros((0, 2)),
    }
    arrays = write_state(state) | {"['draws']": np.ones((5, 2))}
    read = read_state(state, arrays)
    assert (jax.random.key_data(read["key"]) == jax.random.key_data(state["key"])).all()
    assert read["of"][1:3] == (2.5, True)
    assert isinstance(read["of"][3], jax.Array)
    assert read["draws"].shape == (5, 2)
    for wrong, said in (
        ({"['draws']": np.ones((5, 3))}, r"\['draws'\] must be float64 \(0, 2\); got float64"),
        ({"['of'][0]": np.arange(4)}, r"must be int64 \(3,\); got int64 \(4,\)"),
        ({"['of'][1]": np.float32(1)}, "must be float64"),
    ):
        with pytest.raises(ValueError, match=said):
            read_state(state, arrays | wrong)
