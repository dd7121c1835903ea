"""The two ways to amortise a posterior, by subproblems or by trees, as inferences."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from bdtppl.inference.exact_cost import exact_of
from bdtppl.inference.gflownet import grammar_training, training
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.drawn import Drawn
from bdtppl.inference.gflownet.grammar import FlowProblem, pose_problem
from bdtppl.inference.gflownet.grammar_best import best_tree
from bdtppl.inference.gflownet.grammar_posterior import log_flow, score
from bdtppl.inference.gflownet.grammar_posterior import sample_weighted as sample_flow
from bdtppl.inference.gflownet.policy import PathPolicy
from bdtppl.inference.gflownet.sample import sample as sample_policy
from bdtppl.inference.gflownet.sample import upper_bound
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.inference.hard.written_trees import WrittenOut, write_out
from bdtppl.inference.pcfg.compiler import TooManySubproblems
from bdtppl.inference.run import Inference
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

_USES = "start", "train", "draws", "exact", "distance", "leaves"  # of random numbers
_ROUND = 100  # steps after which the distance is estimated
_DRAWS = 256  # draws for an estimate of the distance, of the policy and of the posterior
_MOST_SUBPROBLEMS = 50_000  # subproblems of a chart that training is compared with


def key_of_use(rng_key: jax.Array, use: str) -> jax.Array:
    """Make the key of one use of random numbers."""
    return jax.random.fold_in(rng_key, _USES.index(use))


class TrainingState(NamedTuple):
    """State of a training.

    Attributes
    ----------
    rng_key
        Key of the whole training.
    learner
        The learner, with its optimiser and buffers: a pytree of arrays.
    history
        Reports of each step so far, arrays [steps] by name.
    distance
        Distance of the policy from the posterior after the last round, in nats; infinity if it was
        not measured.
    """

    rng_key: jax.Array
    learner: Any
    history: dict[str, np.ndarray]
    distance: float


@dataclass(frozen=True, eq=False)
class Amortisation(Inference[TrainingState, Any]):
    """An amortised posterior (see `bdtppl.inference.run`); the result is the learner.

    Attributes
    ----------
    target
        The model.
    settings
        Settings of training.
    steps
        Steps of the whole training.
    tolerance
        `distance` in nats at which training ends early; None to run all steps.
    """

    target: TreeModel
    settings: Any
    steps: int
    tolerance: float | None = None

    reports: ClassVar[Any]  # names of a step's reports
    words: ClassVar[tuple[str, str, str]]  # of these, loss, log Z and the best log joint
    at_once: ClassVar[int]

    begin: ClassVar[Any]  # argument: a key; returns the first learner
    train: ClassVar[Any]  # takes a key, a learner and steps; returns it and reports, arrays [steps]
    draw: ClassVar[Any]  # takes a key, a learner, chains and draws; returns weighted trees, `Drawn`
    log_partition: ClassVar[Any]  # argument: a learner; returns its log Z
    upper_bound: ClassVar[Any]  # arguments: a key, a learner, posterior draws; bounds log Z (EUBO)
    best: ClassVar[Any]  # argument: a learner; returns the best tree it has met or finds

    def start(self, rng_key: jax.Array) -> TrainingState:
        """Start training, without reports."""
        learner = self.begin(key_of_use(rng_key, "start"))
        history = {name: np.zeros(0) for name in self.reports._fields}
        return TrainingState(rng_key, learner, history, np.inf)

    def lengths(self, state: TrainingState) -> dict[str, tuple[int, int]]:
        """List the steps made and requested."""
        return {"steps": self.num_steps(state)}

    def num_steps(self, state: TrainingState) -> tuple[int, int]:
        """Count the steps."""
        return len(state.history["loss"]), self.steps

    def is_done(self, state: TrainingState) -> bool:
        """Return whether all steps are made, or the policy is close enough."""
        return super().is_done(state) or state.distance < (self.tolerance or 0.0)

    def in_words(self, state: TrainingState) -> str:
        """Describe the last step's reports."""
        loss, log_z, best = (state.history[name][-1] for name in self.words)
        return f"loss {loss:.3g}, log Z {log_z:.2f}, best log joint {best:.2f}"

    def advance(self, state: TrainingState) -> TrainingState:
        """Run some steps."""
        made, whole = self.num_steps(state)
        number = min(self.at_once, whole - made, _ROUND - made % _ROUND)
        learner, reports = self.train(key_of_use(state.rng_key, "train"), state.learner, number)
        new = {name: np.asarray(a, float) for name, a in reports._asdict().items()}
        if not np.isfinite(new["loss"]).all():
            raise ValueError(
                "The loss is not finite because some intermediate tree has prior probability 0 "
                "(for example, a node that must split). Use method='grammar'."
            )
        history = {name: np.append(state.history[name], a) for name, a in new.items()}
        state = TrainingState(state.rng_key, learner, history, np.inf)
        made += number
        if self.tolerance is None or (made % _ROUND and made < whole):
            return state
        key = jax.random.fold_in(key_of_use(state.rng_key, "distance"), made)
        exact = self._chart and self._chart.sample_trees(key_of_use(state.rng_key, "exact"), _DRAWS)
        distance = self.distance(key, learner, exact)
        return state._replace(distance=float(distance))

    def result(self, state: TrainingState) -> Any:
        """Return the learner."""
        return state.learner

    def distance(self, rng_key: jax.Array, learner: Any, exact: Tree | None) -> float:
        """Estimate how far a policy is from the posterior, in nats.

        With draws from the posterior, it is the gap between the upper and the lower bound of log Z,
        the sum of the two Kullback-Leibler divergences. Without them, it is the larger of two
        numbers: Renyi's divergence of order 2 of the posterior from the policy, which is the log of
        the number of draws over their effective sample size; and the difference of the learned log
        Z from its estimate by weights, since weights do not show parts of the posterior that are
        never drawn.
        """
        key_draw, key_order = jax.random.split(rng_key)
        drawn = self.draw(key_draw, learner, 1, _DRAWS)
        if exact is None:
            off = abs(self.log_partition(learner) - drawn.log_partition)
            return max(float(np.log(_DRAWS / drawn.effective_size)), off)
        return self.upper_bound(key_order, learner, exact) - drawn.lower_bound

    @cached_property
    def _chart(self) -> Any:
        """Return the exact posterior if its chart fits; else None."""
        target = self.target
        if target.constraints.max_depth is None:
            return None
        with suppress(TooManySubproblems):
            return exact_of(target, "chart", _MOST_SUBPROBLEMS)
        return None


@dataclass(frozen=True, eq=False)
class Flows(Amortisation):
    """Flows of subproblems (see `bdtppl.inference.gflownet.grammar`)."""

    reports: ClassVar[Any] = grammar_training.Metrics
    words: ClassVar[tuple[str, str, str]] = "loss", "log_partition", "best_log_joint"
    at_once: ClassVar[int] = 5

    @cached_property
    def _problem(self) -> FlowProblem:
        return pose_problem(self.target)

    def begin(self, rng_key: jax.Array) -> grammar_training.FlowState:
        """Start with a new network."""
        return grammar_training.initial_flow_state(rng_key, self._problem, self.settings)

    def train(self, rng_key: jax.Array, learner: Any, steps: int) -> tuple[Any, Any]:
        """Run some steps."""
        return grammar_training.train_flow(rng_key, self._problem, learner, self.settings, steps)

    def draw(self, rng_key: jax.Array, learner: Any, chains: int, draws: int) -> Drawn:
        """Draw weighted trees."""
        flow, sizes = learner.flow, {"chains": chains, "draws": draws}
        return sample_flow(rng_key, self._problem, flow, self.target, **sizes)

    def log_partition(self, learner: Any) -> float:
        """Return the log flow out of the root."""
        return log_flow(self._problem, learner.flow)

    def upper_bound(self, rng_key: jax.Array, learner: Any, trees: Tree) -> float:
        """Average the log weights of draws from the posterior."""
        scored = score(self._problem, learner.flow, self.target.design, trees)
        return float(scored.log_weight.mean())

    def best(self, learner: Any) -> RankedTrees:
        """Search with the learned flows."""
        return _alone(self.target, best_tree(self._problem, learner.flow))


@dataclass(frozen=True, eq=False)
class Policies(Amortisation):
    """A policy that builds trees (see `bdtppl.inference.gflownet.training`)."""

    reports: ClassVar[Any] = training.TrainingInfo
    words: ClassVar[tuple[str, str, str]] = "loss", "log_z", "best_log_joint"
    at_once: ClassVar[int] = 20

    def __post_init__(self):
        object.__setattr__(self, "settings", replace(self.settings, num_steps=self.steps))

    @cached_property
    def _construction(self) -> Construction:
        return Construction.of(self.target)

    def begin(self, rng_key: jax.Array) -> training.Learner:
        """Start with a new policy."""
        key_policy, key_begin = jax.random.split(rng_key)
        policy = PathPolicy(
            key_policy,
            self._construction.num_features,
            self._construction.num_cuts,
            sees_all_leaves=self.settings.sees_all_leaves,
            learns_backward=self.settings.learns_backward,
        )
        return training.begin_training(key_begin, self._construction, policy, self.settings)

    def train(self, rng_key: jax.Array, learner: Any, steps: int) -> tuple[Any, Any]:
        """Run some steps."""
        return training.train(rng_key, self._construction, learner, self.settings, steps)

    def draw(self, rng_key: jax.Array, learner: Any, chains: int, draws: int) -> Drawn:
        """Draw weighted trees."""
        given = self._construction, learner.policy, self.target
        return sample_policy(rng_key, *given, chains=chains, draws=draws)

    def log_partition(self, learner: Any) -> float:
        """Return the learned log Z."""
        return float(learner.log_z)

    def upper_bound(self, rng_key: jax.Array, learner: Any, trees: Tree) -> float:
        """Return the mean log weight of draws from the posterior, in drawn orders."""
        policy, design = learner.policy, self.target.design
        return upper_bound(rng_key, self._construction, policy, design, trees)

    @in_float64
    def best(self, learner: Any) -> RankedTrees:
        """Return the best tree of the buffer."""
        first = jax.tree.map(lambda a: a[:1], learner.buffer.shape)
        return _alone(self.target, write_out(self._construction.model, first))


def _alone(target: TreeModel, written: WrittenOut) -> RankedTrees:
    """Score one tree."""
    score = log_joint(written.trees, target).log_joint
    return RankedTrees(written.trees, written.statistics, score, np.full(1, np.nan))
