"""Training of a policy by trajectory balance (DT-GFN, section 3.2 and appendix F).

A step draws trajectories from the policy, with a little exploration, and rebuilds some of the best
trees in orders drawn from the backward policy. Their joint loss gives a step of Adam for the
policy, and a step of gradient descent with a separate rate for log Z. The published code departs
from the paper in places; `PolicySettings` supports both.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bdtppl.inference.evidence.estimates import log_mean
from bdtppl.inference.gflownet.backward import reordered
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.policy import Policy
from bdtppl.inference.gflownet.replay import Buffer, empty, recall, remember
from bdtppl.inference.gflownet.reward import rewards
from bdtppl.inference.gflownet.rollout import judged, roll_out
from bdtppl.inference.gflownet.trajectories import Trajectories, trajectory_balance
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.settings import check_parameters, parameter

Decay = Literal["cosine", "constant"]
LogZOptimiser = Literal["descent", "adam"]

_USUAL = 4  # decisions of a trajectory for which there is always room


@dataclass(frozen=True)
class PolicySettings:
    """Settings of training; the numbers of the paper's Table 5, except for rates and steps.

    Attributes
    ----------
    num_steps
        Steps of training, over which the policy's rate and exploration fall.
    num_forward, num_replayed
        Trajectories drawn from the policy in a step, and rebuilt trees.
    buffer_size
        Number of stored trees.
    epsilon, last_epsilon
        Probability of a random action, at the start and at the end.
    learning_rate
        Initial learning rate of Adam for the policy.
    decay
        Schedule of that rate: "cosine", to 0 over the steps, or "constant".
    log_z_learning_rate
        Learning rate for log Z.
    log_z_optimiser
        "descent" for gradient descent, or "adam", whose steps are as long as the rate: a large rate
        moves log Z quickly, but it then oscillates.
    sees_all_leaves
        Whether the action network reads the pooled set of leaves (see `PathPolicy`).
    learns_backward
        Whether the backward policy is learned with the forward one; uniform if not.
    temperature
        Temperature of drawn trajectories: their choices have the policy's probabilities to the
        power of one over it.
    reward_temperature
        Initial temperature of training: trees have their weight to the power of one over it. It
        falls geometrically to 1 over the first half of the steps.
    batch_rows
        Number of random rows for the likelihood of a step, raised to the power that compensates for
        the rest (DT-GFN, appendix D.3); None, or more than there are, for all. Marginal likelihoods
        are not products over rows, so the policy does not learn the posterior.
    """

    num_steps: int = parameter(2000, least=1)
    num_forward: int = parameter(90, least=1)
    num_replayed: int = parameter(10, least=0)
    buffer_size: int = parameter(100, least=1)
    epsilon: float = parameter(0.1, least=0, most=1)
    last_epsilon: float = parameter(0.01, least=0, most=1)
    learning_rate: float = parameter(2e-3, above=0)
    decay: Decay = parameter("cosine")
    log_z_learning_rate: float = parameter(0.05, above=0)
    log_z_optimiser: LogZOptimiser = parameter("descent")
    sees_all_leaves: bool = parameter(True)
    learns_backward: bool = parameter(False)
    temperature: float = parameter(1.0, above=0)
    reward_temperature: float = parameter(1.0, least=1)
    batch_rows: int | None = parameter(None, least=1)

    def __post_init__(self):
        check_parameters(self)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam for `Parameters`."""
        rate = self.learning_rate
        if self.decay == "cosine":
            rate = optax.cosine_decay_schedule(rate, self.num_steps)
        # Half of the gradient for log Z is its difference from the mean log weight, which needs no
        # rescaling: gradient descent follows that mean, while Adam would lag behind it.
        of_log_z = {"descent": optax.sgd, "adam": optax.adam}[self.log_z_optimiser]
        each: dict[Any, Any] = {
            "policy": optax.adam(rate),
            "log_z": of_log_z(self.log_z_learning_rate),
        }
        return optax.partition(each, Parameters(*Parameters._fields))


class Parameters(NamedTuple):
    """The learned policy and log Z."""

    policy: Any
    log_z: Any


class Learner(NamedTuple):
    """State of training.

    Attributes
    ----------
    policy
        The policy.
    log_z
        float64; learned log of the sum over trees of their weights.
    optimiser
        State of the optimiser.
    buffer
        The best trees seen.
    step
        int32; steps taken.
    """

    policy: Any
    log_z: jax.Array
    optimiser: Any
    buffer: Buffer
    step: jax.Array


class TrainingInfo(NamedTuple):
    """Report of a step.

    Attributes
    ----------
    loss
        Mean loss of the step's trajectories, before the gradient step.
    log_z
        The learned log Z, after it.
    log_weight
        Mean log importance weight of the trajectories drawn from the policy: without exploration, a
        lower bound of log Z.
    best_log_joint
        Log joint of the best tree seen.
    num_splits
        Mean number of splits of the trees drawn.
    """

    loss: Any
    log_z: Any
    log_weight: Any
    best_log_joint: Any
    num_splits: Any


@in_float64
def begin_training(
    rng_key: jax.Array, construction: Construction, policy: Policy, settings: PolicySettings
) -> Learner:
    """Start at a policy; log Z starts at the estimate of one step's trajectories."""
    buffer, start = empty(settings.buffer_size, construction.capacity), jnp.float64(0)
    weights = Parameters(eqx.filter(policy, eqx.is_inexact_array), start)
    learner = Learner(policy, start, settings.optimiser.init(weights), buffer, jnp.int32(0))
    made, _ = _make(rng_key, construction, learner, settings=settings)
    log_weights = np.asarray(made.log_weights)[: settings.num_forward]
    return learner._replace(log_z=jnp.float64(log_mean(log_weights)[0]))


@partial(jax.jit, static_argnames="settings")
def _make(
    rng_key, construction, learner, *, settings: PolicySettings
) -> tuple[Trajectories, jax.Array]:
    """Make the trajectories of a step; also return the number of their decisions."""
    key_draw, key_recall, key_order, _ = _step_keys(rng_key, learner)
    done = learner.step / settings.num_steps
    epsilon = settings.epsilon + (settings.last_epsilon - settings.epsilon) * done
    given, number = None, settings.num_forward
    if settings.num_replayed:
        given = reordered(key_order, recall(key_recall, learner.buffer, settings.num_replayed))
    made = roll_out(
        key_draw,
        construction,
        learner.policy,
        epsilon,
        temperature=settings.temperature,
        num_drawn=number,
        given=given,
    )
    return made, made.decides.sum()


def _step_keys(rng_key, learner) -> jax.Array:
    return jax.random.split(jax.random.fold_in(rng_key, learner.step), 4)


@partial(jax.jit, static_argnames=("settings", "num_decisions"))
def _learn(
    rng_key,
    construction,
    learner,
    made: Trajectories,
    *,
    settings: PolicySettings,
    num_decisions: int,
) -> tuple[Learner, TrainingInfo]:
    """Take one gradient step, and add the best trees to the buffer."""
    temperature = settings.reward_temperature ** (1 - 2 * learner.step / settings.num_steps)
    weighed = made._replace(
        log_joint=rewards(
            _step_keys(rng_key, learner)[3],
            construction,
            made,
            jnp.maximum(temperature, 1.0),
            batch_rows=settings.batch_rows,
        )
    )
    weights, fixed = eqx.partition(learner.policy, eqx.is_inexact_array)
    before = Parameters(weights, learner.log_z)

    def mean_loss(learned: Parameters):
        policy = eqx.combine(learned.policy, fixed)
        own = judged(construction, policy, weighed, num_decisions)
        return trajectory_balance(learned.log_z, own).mean()

    loss, gradient = jax.value_and_grad(mean_loss)(before)
    updates, optimiser = settings.optimiser.update(gradient, learner.optimiser, before)
    learned: Any = optax.apply_updates(before, updates)
    # Nothing changes after the last split.
    buffer = remember(learner.buffer, made.trees, made.log_joint[:, -1])
    policy = eqx.combine(learned.policy, fixed)
    info = TrainingInfo(
        loss,
        learned.log_z,
        made.log_weights[: settings.num_forward].mean(),
        buffer.log_joint[0],
        made.num_splits[: settings.num_forward].mean(),
    )
    return Learner(policy, learned.log_z, optimiser, buffer, learner.step + 1), info


def _step(rng_key, construction, learner, settings: PolicySettings) -> tuple[Learner, TrainingInfo]:
    """Draw trajectories and learn from them."""
    made, number = _make(rng_key, construction, learner, settings=settings)
    num_trees, most = made.log_forward.shape
    # Few sizes are compiled.
    room = min(max(padded_size(int(number)), _USUAL * num_trees), most * num_trees)
    return _learn(rng_key, construction, learner, made, settings=settings, num_decisions=room)


@in_float64
def train(
    rng_key: jax.Array,
    construction: Construction,
    learner: Learner,
    settings: PolicySettings,
    steps: int | None = None,
) -> tuple[Learner, TrainingInfo]:
    """Train, starting from the learner's own step.

    Parameters
    ----------
    rng_key
        Key; a resumed training needs the same key as the stopped one.
    construction
        The rules.
    learner
        Initial learner.
    settings
        Settings of training.
    steps
        Number of steps; None for the remaining ones.

    Returns
    -------
    learner
        The final learner.
    info
        Reports of the steps, arrays [steps].
    """
    reports = []
    for _ in range(settings.num_steps - int(learner.step) if steps is None else steps):
        learner, info = _step(rng_key, construction, learner, settings)
        reports.append(info)
    columns = [
        np.array([report[i] for report in reports]) for i in range(len(TrainingInfo._fields))
    ]
    return learner, TrainingInfo(*columns)
