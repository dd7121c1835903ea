"""The two ways to amortise a posterior, by subproblems or tree by tree, with one interface.

A method starts a state, takes steps of training, and makes draws. `train_by` trains in rounds;
a caller may save the state after each.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bdtppl.inference.gflownet import grammar_training, training
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.drawn import Drawn
from bdtppl.inference.gflownet.grammar import pose_problem
from bdtppl.inference.gflownet.grammar_best import best_tree
from bdtppl.inference.gflownet.grammar_posterior import log_flow, score
from bdtppl.inference.gflownet.grammar_posterior import sample_weighted as sample_flow
from bdtppl.inference.gflownet.policy import PathPolicy
from bdtppl.inference.gflownet.sample import sample as sample_policy
from bdtppl.inference.gflownet.sample import upper_bound
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.inference.hard.written_trees import WrittenOut, write_out
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

__all__ = ["Method", "by_construction", "by_grammar", "distance", "train_by"]

_ROUND = 100  # steps
_DRAWS = 256  # for an estimate of the distance


Tell = Callable[[int, str], Any]


class Method(NamedTuple):
    """A way to amortise a posterior: functions of a state, which is a pytree of arrays.

    Attributes
    ----------
    num_steps
        Steps of the whole training.
    start
        Makes the first state from a key.
    steps
        Number of steps taken at a state.
    advance
        Takes a key, a state and a progress callback (steps taken, a message). Trains for a round
        or to the end; returns the state and the steps' reports, arrays [steps].
    draw
        Takes a key, a state, and numbers of chains and draws; returns weighted trees, `Drawn`.
    log_partition
        The learned log Z of a state.
    upper_bound
        Takes a key, a state, and draws from the posterior; bounds log Z from above (EUBO).
    best
        The most probable tree that training has visited, or that a search with the learned flows
        finds; without a probability.
    """

    num_steps: int
    start: Callable[[jax.Array], Any]
    steps: Callable[[Any], int]
    advance: Callable[[jax.Array, Any, Tell], tuple[Any, Any]]
    draw: Callable[[jax.Array, Any, int, int], Drawn]
    log_partition: Callable[[Any], float]
    upper_bound: Callable[[jax.Array, Any, Tree], float]
    best: Callable[[Any], RankedTrees]


def by_grammar(
    target: TreeModel, settings: grammar_training.GrammarSettings, num_steps: int
) -> Method:
    """Learn flows of subproblems (see `bdtppl.inference.gflownet.grammar`)."""
    problem = pose_problem(target)

    def advance(rng_key, state, on_progress):
        number = min(_ROUND, num_steps - int(state.num_steps))

        def told(state, metrics):
            said = _in_words(metrics.loss, metrics.log_partition, metrics.best_log_joint)
            return on_progress(int(state.num_steps), said)

        return grammar_training.train_flow(
            rng_key, problem, state, settings, number, on_progress=told
        )

    def draw(rng_key, state, chains, draws):
        return sample_flow(rng_key, problem, state.flow, target, chains=chains, draws=draws)

    def bound(rng_key, state, trees):
        return float(score(problem, state.flow, target.design, trees).log_weight.mean())

    return Method(
        num_steps,
        start=lambda rng_key: grammar_training.initial_flow_state(rng_key, problem, settings),
        steps=lambda state: int(state.num_steps),
        advance=advance,
        draw=draw,
        log_partition=lambda state: log_flow(problem, state.flow),
        upper_bound=bound,
        best=lambda state: _alone(target, best_tree(problem, state.flow)),
    )


def by_construction(target: TreeModel, settings: training.PolicySettings) -> Method:
    """Learn a policy that builds trees (see `bdtppl.inference.gflownet.training`)."""
    construction = Construction.of(target)

    def start(rng_key):
        key_policy, key_begin = jax.random.split(rng_key)
        policy = PathPolicy(
            key_policy,
            construction.num_features,
            construction.num_cuts,
            sees_all_leaves=settings.sees_all_leaves,
            learns_backward=settings.learns_backward,
        )
        return training.begin_training(key_begin, construction, policy, settings)

    def advance(rng_key, state, on_progress):
        def is_over(state, info):
            said = _in_words(info.loss, info.log_z, info.best_log_joint)
            return on_progress(int(state.step), said) or int(state.step) % _ROUND == 0

        return training.train(rng_key, construction, state, settings, on_progress=is_over)

    @in_float64
    def best(state):
        first = jax.tree.map(lambda a: a[:1], state.buffer.shape)
        return _alone(target, write_out(construction.model, first))

    def draw(rng_key, state, chains, draws):
        policy = state.policy
        return sample_policy(rng_key, construction, policy, target, chains=chains, draws=draws)

    return Method(
        settings.num_steps,
        start=start,
        steps=lambda state: int(state.step),
        advance=advance,
        draw=draw,
        log_partition=lambda state: float(state.log_z),
        upper_bound=lambda rng_key, state, trees: upper_bound(
            rng_key, construction, state.policy, target.design, trees
        ),
        best=best,
    )


def _alone(target: TreeModel, written: WrittenOut) -> RankedTrees:
    """Score one tree."""
    score = log_joint(written.trees, target).log_joint
    return RankedTrees(written.trees, written.statistics, score, np.full(1, np.nan))


def _in_words(loss: Any, log_z: Any, best: Any) -> str:
    return f"loss {loss:.3g}, log Z {log_z:.2f}, best log joint {best:.2f}"


def train_by(
    method: Method,
    rng_key: jax.Array,
    state: Any,
    *,
    on_progress: Tell = lambda step, said: None,
    keep: Callable[[Any, Any], bool | None] = lambda state, history: None,
) -> Any:
    """Train to the end of a method's steps, from the state's own step on.

    Parameters
    ----------
    method
        The method.
    rng_key
        Key; the same for a training that goes on as for the one that was stopped.
    state
        Where to start.
    on_progress
        Called now and then with the number of steps taken, and how it goes; a round ends where it
        returns True.
    keep
        Called after each round with the state and what the steps of the round reported, arrays
        [steps]; training ends where it returns True.
    """
    while method.steps(state) < method.num_steps:
        state, history = method.advance(rng_key, state, on_progress)
        if keep(state, history):
            break
    return state


def distance(method: Method, rng_key: jax.Array, state: Any, exact: Tree | None) -> float:
    """Estimate how far a policy is from the posterior, in nats.

    With draws from the posterior, it is the gap between the upper and the lower bound of log Z, the
    sum of the two Kullback-Leibler divergences. Without them, it is the larger of two numbers:
    Renyi's divergence of order 2 of the posterior from the policy, which is the log of the number
    of draws over their effective size; and the difference of the learned log Z from its estimate by
    weights, since weights do not show parts of the posterior that are never drawn.
    """
    key_draw, key_order = jax.random.split(rng_key)
    drawn = method.draw(key_draw, state, 1, _DRAWS)
    if exact is None:
        off = abs(method.log_partition(state) - drawn.log_partition)
        return max(float(np.log(_DRAWS / drawn.effective_size)), off)
    return method.upper_bound(key_order, state, exact) - drawn.lower_bound
