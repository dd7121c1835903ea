"""Training of flows by local balance.

Each step draws a few trees from the policy, scores the choices of their subproblems, and stores
each subproblem with its log S in a ring buffer. The network then takes some steps of stochastic
gradient descent on (log F - log S)^2 over the ring. Stored targets are not updated: the lowest are
exact, and others are replaced when their subproblems are visited again.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.gflownet.grammar import NUM_FACTS, FlowProblem, row_sums
from bdtppl.inference.gflownet.grammar_draws import HeapDraws, Visits, draw
from bdtppl.inference.gflownet.grammar_network import Flow, FlowNetwork
from bdtppl.models.arguments import require_integer
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.settings import check_parameters, parameter


@dataclass(frozen=True)
class GrammarSettings:
    """Settings of training.

    Attributes
    ----------
    num_trees
        Trees drawn in a step.
    epsilon
        Probability that a node of these trees chooses uniformly.
    updates, batch
        Gradient steps in a step, and the subproblems in each of their batches.
    ring
        Number of stored subproblems.
    learning_rate
        Initial learning rate of Adam; it falls to a hundredth along half a cosine over
        ``decay_steps`` steps.
    decay_steps
        Training steps over which the learning rate falls.
    """

    num_trees: int = parameter(16, least=1)
    epsilon: float = parameter(0.1, least=0, below=1)
    updates: int = parameter(16, least=1)
    batch: int = parameter(256, least=1)
    ring: int = parameter(8192, least=1)
    learning_rate: float = parameter(3e-3, above=0)
    decay_steps: int = parameter(500, least=1)

    def __post_init__(self):
        check_parameters(self)


class Ring(NamedTuple):
    """Ring buffer of K visited subproblems, which overwrites the oldest ones.

    Attributes
    ----------
    words, facts
        uint64 [K, W] and float32 [K, f]; rows, and further inputs of the network.
    imbalance
        float32 [K]; log S minus the base: the target of the network.
    count
        int32; number of subproblems stored so far.
    """

    words: jax.Array
    facts: jax.Array
    imbalance: jax.Array
    count: jax.Array

    def put(self, visits: Visits) -> "Ring":
        """Add the visits whose flows are learned."""
        size = len(self.imbalance)
        place = (self.count + jnp.cumsum(visits.is_learned) - 1) % size
        place = jnp.where(visits.is_learned, place, size)

        def written(ring, new):
            return ring.at[place].set(new.astype(ring.dtype), mode="drop")

        return Ring(
            written(self.words, visits.words),
            written(self.facts, visits.facts),
            written(self.imbalance, visits.imbalance),
            (self.count + visits.is_learned.sum()).astype(jnp.int32),
        )


class FlowState(NamedTuple):
    """State from which training continues: a pytree of arrays.

    Attributes
    ----------
    flow
        The flow.
    optimiser
        State of the optimiser.
    ring
        Visited subproblems.
    num_steps
        int32; steps taken.
    """

    flow: Flow
    optimiser: optax.OptState
    ring: Ring
    num_steps: jax.Array


class Metrics(NamedTuple):
    """Report of a step, float64 scalars.

    Attributes
    ----------
    loss
        Mean squared local imbalance over the step's batches, in squared nats.
    log_partition
        Log flow out of the root, the learned log Z.
    log_partition_estimate
        Log of the mean importance weight of the step's trees.
    best_log_joint
        The best of the step's trees.
    effective_share
        Effective sample size of the importance weights over the number of trees.
    """

    loss: jax.Array
    log_partition: jax.Array
    log_partition_estimate: jax.Array
    best_log_joint: jax.Array
    effective_share: jax.Array


def optimiser(settings: GrammarSettings) -> optax.GradientTransformation:
    """Return Adam with clipped gradients and a falling learning rate."""
    schedule = optax.cosine_decay_schedule(
        settings.learning_rate, settings.decay_steps * settings.updates, alpha=0.01
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


@in_float64
def initial_flow_state(
    rng_key: jax.Array, problem: FlowProblem, settings: GrammarSettings, flow: Flow | None = None
) -> FlowState:
    """Start with a new network or a given flow, and an empty ring."""
    if flow is None:
        flow = FlowNetwork(rng_key, problem.rows.shape[1], NUM_FACTS)
    weights: Any = flow
    ring = Ring(
        jnp.zeros((settings.ring, len(problem.model.every_row)), problem.model.every_row.dtype),
        jnp.zeros((settings.ring, NUM_FACTS), jnp.float32),
        jnp.zeros(settings.ring, jnp.float32),
        jnp.int32(0),
    )
    return FlowState(flow, optimiser(settings).init(weights), ring, jnp.int32(0))


def balance_loss(
    flow: Flow, problem: FlowProblem, words: jax.Array, facts: jax.Array, imbalance: jax.Array
) -> jax.Array:
    """Return the mean squared local imbalance (log F - log S)^2 of subproblems."""
    above = flow(row_sums(words, flow.statistics(problem.rows)), facts)
    return jnp.mean((above - imbalance) ** 2)


@partial(jax.jit, static_argnames="settings")
def learn(
    rng_key: jax.Array,
    problem: FlowProblem,
    state: FlowState,
    drawn: HeapDraws,
    visits: Visits,
    settings: GrammarSettings,
) -> tuple[FlowState, Metrics]:
    """Store visited subproblems in the ring, and take gradient steps on it."""
    ring, transform = state.ring.put(visits), optimiser(settings)

    def update(carry, key):
        flow, inner = carry
        filled = jnp.clip(ring.count, 1, settings.ring)
        own = jax.random.randint(key, (settings.batch,), 0, filled)
        loss, gradient = jax.value_and_grad(balance_loss)(
            flow, problem, *(array[own] for array in ring[:3])
        )
        change, inner = transform.update(gradient, inner, flow)
        return (optax.apply_updates(flow, change), inner), loss.astype(jnp.float32)

    learned, losses = lax.cond(
        ring.count == 0,  # all flows are exact
        lambda start, keys: (start, jnp.zeros(settings.updates, jnp.float32)),
        lambda start, keys: lax.scan(update, start, keys),
        (state.flow, state.optimiser),
        jax.random.split(rng_key, settings.updates),
    )
    log_sum, log_squares = (logsumexp(power * drawn.log_weight) for power in (1, 2))
    metrics = Metrics(
        losses.mean().astype(float),
        visits.log_partition,
        log_sum - jnp.log(len(drawn.log_joint)),
        drawn.log_joint.max(),
        jnp.exp(2 * log_sum - log_squares) / len(drawn.log_joint),
    )
    flow, inner = learned
    return FlowState(flow, inner, ring, state.num_steps + 1), metrics


@in_float64
def train_step(
    rng_key: jax.Array, problem: FlowProblem, state: FlowState, settings: GrammarSettings
) -> tuple[FlowState, Metrics]:
    """Draw trees, and learn from their subproblems and earlier ones.

    Parameters
    ----------
    rng_key
        Key of the whole training; the number of steps taken is folded in.
    problem
        The model.
    state
        State of training.
    settings
        Settings of training.
    """
    key_draw, key_learn = jax.random.split(jax.random.fold_in(rng_key, state.num_steps))
    drawn, visits = draw(
        key_draw, problem, state.flow, settings.epsilon, num_trees=settings.num_trees
    )
    return learn(key_learn, problem, state, drawn, visits, settings)


@in_float64
def train_flow(
    rng_key: jax.Array,
    problem: FlowProblem,
    state: FlowState,
    settings: GrammarSettings,
    num_steps: int,
) -> tuple[FlowState, Metrics]:
    """Take steps of training.

    Parameters
    ----------
    rng_key
        Key. A resumed training with the same key has the same final state.
    problem
        The model.
    state
        State to continue from.
    settings
        Settings of training.
    num_steps
        Number of steps.

    Returns
    -------
    state
        State of training.
    metrics
        float64 [steps] each.
    """
    require_integer("num_steps", num_steps)
    history = []
    for _ in range(num_steps):
        state, metrics = train_step(rng_key, problem, state, settings)
        history.append(jax.tree.map(np.asarray, metrics))
    return state, jax.tree.map(lambda *values: np.stack(values), *history)
