"""The targets' exact marginal distribution, for NumPyro.

`TreeMarginal` is the distribution of the targets of given rows under a random tree. Its log
probability is the exact log evidence, differentiable in the hyperparameters of prior and leaves, so
a tree that is summed out exactly can be part of any NumPyro model.

Value and gradient are computed together, in float64 and in a separate scope
(`bdtppl.inference.smooth`). So it works under an outer float32 trace, in forward and reverse mode,
and returns no float64.
"""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.core import Tracer
from numpyro.distributions import constraints

from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.boxes.marginal import box_log_evidence
from bdtppl.inference.pcfg.chart import Chart, block_of, chart_for
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.passes import inside, log_partition
from bdtppl.inference.pcfg.sampling import ChartChoices, choice_probabilities, sample_chunk
from bdtppl.inference.smooth import smooth
from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import as_float64
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior, require_weighs


class TreeMarginal(dist.Distribution):
    """Distribution of the targets of given rows, with trees and leaf parameters summed out.

    Parameters
    ----------
    grammar
        Compiled grammar of the rows (`bdtppl.inference.pcfg.compiler.compile_grammar`), with the
        prior's ``rules``; or a `bdtppl.inference.boxes.exact.BoxPosterior` of the rows, whose own
        targets and hyperparameters do not matter.
    prior
        Tree prior; its parameters may be traced.
    leaf
        Leaf family; its parameters may be traced.

    Notes
    -----
    The event is the vector of the targets of the grammar's rows, in their order; rows of weight w
    count w times.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import LeafPenalty
    >>> grammar = compile_grammar(Design.from_matrix(np.arange(6.0)[:, None]))
    >>> marginal = TreeMarginal(grammar, LeafPenalty(2.0), DirichletCategorical.symmetric(2))
    >>> round(float(marginal.log_prob(np.array([0, 0, 0, 1, 1, 1]))), 3)
    -4.148
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("prior", "leaf")
    pytree_aux_fields = ("grammar",)

    def __init__(
        self, grammar: Grammar | BoxPosterior, prior: TreePrior, leaf: Leaf, *, validate_args=None
    ):
        require_weighs(prior, "TreeMarginal", "nodes")
        if isinstance(grammar, Grammar):
            grammar.require(prior)
        elif reason := why_no_boxes(prior, grammar.constraints):
            raise ValueError(reason)
        elif not len(grammar.y):
            raise ValueError("TreeMarginal needs the rows in memory; these came in parts.")
        self.grammar: Any = grammar
        self.prior = prior.resolve(grammar.design)
        self.leaf = leaf
        super().__init__((), (grammar.design.num_rows,), validate_args=validate_args)

    @constraints.dependent_property(event_dim=1)  # pyright: ignore[reportArgumentType]
    def support(self) -> Any:
        """Support of the leaf family's targets, for every row."""
        nothing = self.leaf.statistics(jnp.zeros(1), jnp.zeros(1))[0]
        return constraints.independent(self.leaf.predictive(nothing).support, 1)

    def log_prob(self, value: Any) -> Any:
        """Return the exact log evidence of targets [..., n], in the process's precision."""
        value = value if isinstance(value, Tracer) else np.asarray(value)
        num_rows = self.grammar.design.num_rows
        if isinstance(self.grammar, BoxPosterior):
            each = [
                box_log_evidence(self.grammar, self.prior, self.leaf, y)
                for y in value.reshape(-1, num_rows)
            ]
            return jnp.stack(each).reshape(value.shape[:-1])
        each = [
            log_evidence_function(self.grammar, self.prior, self._statistics(y))(
                self.prior, self.leaf
            )
            for y in value.reshape(-1, num_rows)
        ]
        return jnp.stack(each).reshape(value.shape[:-1])

    def _statistics(self, y) -> jax.Array:
        """Return statistics of every subproblem, float64 [N padded, s]."""
        grammar = self.grammar
        num_terminals = int(np.searchsorted(grammar.height, 1))
        chart = chart_for(grammar, self.prior)

        numbers, form = jax.tree.flatten(lax.stop_gradient(self.leaf))

        def node_statistics(y, *numbers):
            rows = as_float64(form.unflatten(numbers)).statistics(y, grammar.design.weights)
            cells = jnp.asarray(grammar.cell_of_row), jnp.asarray(grammar.members[:num_terminals])
            return [_node_statistics(chart, rows, *cells, grammar.num_cells)]

        return smooth(node_statistics)(y, *numbers)[0]

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw trees from the prior and targets from their leaves, ``[*sample_shape, n]``.

        Rows of a leaf are drawn one after the other, each given the ones before it.

        Raises
        ------
        ValueError
            If a row has another weight than 1, or boxes are given instead of a grammar.
        """
        if isinstance(self.grammar, BoxPosterior):
            raise ValueError("Cannot sample targets from a BoxPosterior; pass a compiled Grammar.")
        grammar, num_draws = self.grammar, int(np.prod(sample_shape, dtype=int))
        if grammar.design.has_weights:
            raise ValueError("Cannot sample targets with weights; give every row weight 1.")
        chart = chart_for(grammar, self.prior)
        low = grammar.low - grammar.design.offset[grammar.feature]
        missing_left = np.zeros(0, bool) if grammar.missing_left is None else grammar.missing_left
        with jax.enable_x64(True):
            choices = _prior_choices(
                chart, as_float64(self.prior), np.zeros(grammar.design.num_features)
            )
        # Random numbers are drawn in the caller's precision, because JAX cannot draw 64 bits inside
        # a float32 trace.
        y = _sample_targets(
            chart,
            jax.tree.map(_outer_precision, choices),
            jax.tree.map(partial(jnp.asarray, dtype=float), self.leaf),
            key,
            jnp.asarray(grammar.design.codes),
            padded(low.astype(np.int32), len(chart.left)),
            padded(missing_left, len(chart.left)),
            num_draws,
            2 * grammar.num_cells,
        )
        return y.reshape(*sample_shape, grammar.design.num_rows)


@partial(jax.jit, static_argnames="num_cells")
def _node_statistics(chart: Chart, rows, cell_of_row, terminals, num_cells) -> jax.Array:
    """Sum statistics of rows [n, s] over every subproblem, [N padded, s].

    The compiled twin of `Grammar.node_sums`, for traced targets.
    """
    cells = jax.ops.segment_sum(rows, cell_of_row, num_cells)
    place = jnp.arange(num_cells)
    words = terminals[:, place // 64] >> (place % 64).astype(terminals.dtype)[None, :]
    start = jnp.zeros((len(chart.has_rule), rows.shape[1]))
    start = start.at[: len(terminals)].set((words & 1).astype(float) @ cells)

    def step(i, sums):
        block = block_of(chart, i)
        first = chart.first_production[block.nodes]
        total = sums[chart.left[first]] + sums[chart.right[first]]
        old = lax.dynamic_slice_in_dim(sums, block.nodes[0], len(block.nodes))
        new = jnp.where(block.is_node[:, None], total, old)
        return lax.dynamic_update_slice_in_dim(sums, new, block.nodes[0], 0)

    return lax.fori_loop(0, chart.num_blocks, step, start)


@jax.jit
def value_and_gradient(chart: Chart, statistics, prior, leaf, no_weight):
    """Return the log evidence and its gradient with respect to (prior, leaf), in float64."""

    def log_evidence(prior, leaf):
        scores = leaf.log_marginal(statistics)
        return log_partition(chart, prior, scores, no_weight) - log_partition(
            chart, prior, jnp.zeros_like(scores), no_weight
        )

    return jax.value_and_grad(log_evidence, argnums=(0, 1))(prior, leaf)


def log_evidence_function(grammar: Grammar, prior: TreePrior, statistics: jax.Array):
    """Make the log evidence a function of prior and leaf, in the caller's precision.

    Parameters
    ----------
    grammar
        The grammar.
    prior
        A prior of the family that will be passed; its hyperparameters do not matter.
    statistics
        float64 [N padded, s]; statistics of every subproblem.

    Returns
    -------
    callable
        (prior, leaf) -> scalar; differentiable, but not in the statistics.
    """
    require_weighs(prior, "The differentiable log evidence", "nodes")
    chart = chart_for(grammar, prior)
    no_weight = np.zeros(grammar.design.num_features)

    kind = jnp.zeros(()).dtype  # the caller's

    def value_and_slopes(form, statistics, *parameters):
        each = as_float64(form.unflatten(parameters))
        value, gradient = value_and_gradient(chart, statistics, *each, no_weight)
        return [each.astype(kind) for each in (value, *jax.tree.leaves(gradient))]

    def checked(prior, leaf):
        as_inexact = partial(jnp.asarray, dtype=kind)
        parameters = jax.tree.map(as_inexact, (prior.resolve(grammar.design), leaf))
        leaves, form = jax.tree.flatten(parameters)
        both = partial(value_and_slopes, form)
        return smooth(lambda *args: both(*args)[:1], both)(statistics, *leaves)[0]

    return checked


def _outer_precision(array: jax.Array) -> jax.Array:
    """Cast to the precision outside the double-precision scope."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    with jax.enable_x64(True):
        return array.astype(dtype)


@jax.jit
def _prior_choices(chart: Chart, prior, no_weight) -> ChartChoices:
    no_score = jnp.zeros(len(chart.has_rule))
    log_q = inside(chart, prior, no_score, no_weight, "sum")
    return choice_probabilities(chart, prior, no_score, no_weight, log_q)


@partial(jax.jit, static_argnames=("num_draws", "capacity"))
def _sample_targets(
    chart: Chart, choices: ChartChoices, leaf, key, codes, low, missing_left, num_draws, capacity
) -> jax.Array:
    """Draw trees and targets from their leaves, [num_draws, n]."""
    key_tree, key_target = jax.random.split(key)
    draws = jnp.zeros(num_draws, jnp.int8)
    drawn, _ = sample_chunk(chart, choices, key_tree[None], draws, capacity, False)
    slot = _slots_of_rows(chart, drawn.production, codes, low, missing_left)

    every = jnp.arange(num_draws)

    def draw_row(statistics, row):
        row_key, at = row
        y = leaf.sample(row_key, statistics[at, every])
        return statistics.at[at, every].add(leaf.statistics(y, jnp.ones(num_draws))), y

    width = leaf.statistics(jnp.zeros(1), jnp.ones(1)).shape[1]
    start = jnp.zeros((capacity + 1, num_draws, width))
    _, y = lax.scan(draw_row, start, (jax.random.split(key_target, len(codes)), slot))
    return y.T


def _slots_of_rows(chart: Chart, production, codes, low, missing_left) -> jax.Array:
    """Return the slot of the leaf of every row in every drawn tree, [n, draws]."""
    splits = production >= 0
    left_slot = 2 * jnp.cumsum(splits, axis=1) - 1
    row, draw = jnp.arange(len(codes))[:, None], jnp.arange(len(production))[None, :]

    def step(slot):
        used = jnp.maximum(production[draw, slot], 0)
        code = codes[row, chart.feature[used]]
        goes_left = jnp.where(code < 0, missing_left[used], code <= low[used])
        child = left_slot[draw, slot] + 1 - goes_left
        return jnp.where(splits[draw, slot], child, slot)

    return lax.while_loop(
        lambda slot: splits[draw, slot].any(), step, jnp.zeros((len(codes), draw.shape[1]), int)
    )
