"""The sweep over the trees of a sum as an operation of JAX, on CPUs.

XLA calls the compiled loops of `bdtppl.inference.additive.kernels` inside its own programs. They
compute in float64, whatever the precision around them.
"""

from copy import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from bdtppl.inference.additive.complete_trees import evaluate
from bdtppl.inference.additive.kernel import default_moves
from bdtppl.inference.additive.kernels import sweep, uniforms_of_visit
from bdtppl.inference.additive.row_sums import LANES, Room
from bdtppl.inference.additive.tables import (
    MOST_BINS,
    RowTables,
    SumPriorTables,
    prior_tables,
    row_tables,
)
from bdtppl.inference.smooth import in_double_scope
from bdtppl.models.arrays.foreign import arguments, handler_name, matrix, results
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior


class SumState(NamedTuple):
    """A sum of m trees of at most L levels.

    Attributes
    ----------
    rule
        int32 [m, 2^L - 1]; rule of each node of the complete binary tree
        (`bdtppl.inference.additive.tables.RowTables`); -1 where it is no split.
    value
        float [m, 2^(L + 1) - 1]; values of leaves, 0 elsewhere.
    """

    rule: jax.Array
    value: jax.Array


class TreeSweep:
    """Redraws trees given normal targets: a pure function of arrays.

    Parameters
    ----------
    prior, design
        Prior of the sum, and its rows.
    moves
        int [visits, k]; what a visit of a tree does (`bdtppl.inference.additive.kernels.sweep`),
        `bdtppl.inference.additive.kernel.default_moves` over all features if None.
    """

    def __init__(self, prior: AdditivePrior, design: Design, moves: Any = None):
        self.prior, self.design = prior, design
        self.rows = row_tables(design)
        moves = default_moves(prior.max_depth, 0) if moves is None else moves
        self.moves = np.asarray(moves, np.int64)
        self._prior_tables = prior_tables(prior, self.rows, design.equal_weights)
        number = np.bincount(self.rows.feature, minlength=design.num_features)
        self._share = 1 / np.maximum(number, 1)[self.rows.feature]

    def growing(self) -> "TreeSweep":
        """Make the sweep whose visits go through all levels, so that trees grow from nothing."""
        growing = copy(self)
        growing.moves = np.arange(self.prior.max_depth)[None]
        return growing

    def start(self, level: float = 0.0) -> SumState:
        """Make trees of one leaf, whose sum is a constant."""
        prior = self.prior
        internal = 2**prior.max_depth - 1
        return SumState(
            jnp.full((prior.num_trees, internal), -1, jnp.int32),
            jnp.zeros((prior.num_trees, 2 * internal + 1)).at[:, 0].set(level / prior.num_trees),
        )

    def random_numbers(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw what one sweep over all trees reads."""
        first, second = jax.random.split(key)
        levels, num_trees = self.prior.max_depth, self.prior.num_trees
        uniforms = uniforms_of_visit(levels, self.moves.shape[1])
        return (
            jax.random.uniform(first, (num_trees, uniforms)),
            jax.random.normal(second, (num_trees, 2 ** (levels + 1) - 1)),
        )

    def draw_feature_weight(self, key: jax.Array, rule: jax.Array, weight: jax.Array) -> jax.Array:
        """Draw the weights of features [d] given all splits, or keep them where they are equal."""
        if self.prior.sparsity is None:
            return weight
        has_rule = self.design.has_cut
        place = jnp.append(jnp.asarray(self.rows.feature, jnp.int32) + 1, 0)[rule]
        splits = jnp.bincount(place.ravel(), length=1 + len(has_rule))[1:]
        each = float(self.prior.sparsity) * self.design.equal_weights
        log_draw = jax.random.loggamma(key, jnp.where(has_rule, each + splits, 1.0))
        return jax.nn.softmax(jnp.where(has_rule, log_draw, -jnp.inf)).astype(weight.dtype)

    def __call__(
        self,
        trees: SumState,
        target: jax.Array,
        precision: jax.Array,
        feature_weight: jax.Array,
        random_numbers: tuple[jax.Array, jax.Array],
    ) -> tuple[SumState, jax.Array]:
        """Redraw trees once, one after the other.

        Parameters
        ----------
        trees
            A sum of m trees; of some of the prior's, or all.
        target, precision
            float [n]; what the sum of these trees explains, and the precision of each target.
        feature_weight
            float [d]; adds up to 1.
        random_numbers
            float [m, ...] each; as `random_numbers` draws them.

        Returns
        -------
        trees : SumState
            The new trees.
        total : jax.Array
            float [n]; their sum.
        """
        dtype = target.dtype
        scratch = self._scratch()

        def call(rule, value, target, precision, weight, uniform, normal):
            wide = (jnp.asarray(a, jnp.float64) for a in (value, target, precision))
            value, target, precision = wide
            chance = jnp.asarray(weight, jnp.float64)[self.rows.feature] * self._share
            tables = self._prior_tables._replace(rule=chance)
            numbers = jnp.array([tables.precision, tables.min_leaf])
            inputs = [*self.rows, tables.log_stop, tables.log_split, chance, numbers, self.moves]
            inputs += [target, precision, uniform, normal]
            inputs = [jnp.asarray(a) for a in inputs]
            inputs[-2:] = (a.astype(jnp.float64) for a in inputs[-2:])
            changed = [rule, value]
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in changed]
            shapes += [jax.ShapeDtypeStruct((1, len(target)), jnp.float64), *scratch]
            flat = [a if a.ndim == 2 else a.reshape(1, -1) for a in inputs]
            operation = jax.ffi.ffi_call(
                handler_name(_sweep),
                shapes,
                vmap_method="sequential",
                input_output_aliases={len(flat) + k: k for k in range(2)},
            )
            rule, value, total, *_ = operation(*flat, *changed)
            return [rule, value.astype(dtype), total[0].astype(dtype)]

        arrays = in_double_scope(call)(*trees, target, precision, feature_weight, *random_numbers)
        rule, value, total = arrays
        return SumState(rule, value), total

    def sums(self, trees: SumState) -> jax.Array:
        """Evaluate a sum of trees at the rows, float [n]."""
        dtype = trees.value.dtype

        def call(rule, value):
            inputs = [*map(jnp.asarray, self.rows), rule, jnp.asarray(value, jnp.float64)]
            flat = [a if a.ndim == 2 else a.reshape(1, -1) for a in inputs]
            shape = jax.ShapeDtypeStruct((1, self.design.num_rows), jnp.float64)
            operation = jax.ffi.ffi_call(handler_name(_sum_trees), shape, vmap_method="sequential")
            return [operation(*flat)[0].astype(dtype)]

        return in_double_scope(call)(*trees)[0]

    def _scratch(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what the sweep works in, with two axes: the fields of `Room` but for bits."""
        leaves, nodes = max(2**self.prior.max_depth, 2), 2 ** (self.prior.max_depth + 1) - 1
        num_rules = len(self.rows.feature)
        return [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in (
                ((3, leaves * self.rows.num_bins + MOST_BINS), np.float64),
                ((leaves * 3, num_rules), np.float64),
                ((3, num_rules), np.float64),
                ((4, nodes), np.int64),
                ((2, nodes), np.uint64),
                ((2, nodes), np.float64),
                ((2, LANES), np.float64),
                ((3, self.design.num_rows), np.uint8),
            )
        ]


@numba.njit(nogil=True)
def _rows_of(given):
    """Look at the first arguments as what a sweep reads of rows."""
    return RowTables(
        matrix(given[0], np.uint8),
        matrix(given[1], np.uint8),
        matrix(given[2], np.int64)[0],
        matrix(given[3], np.float64)[0],
        matrix(given[4], np.int64)[0],
        matrix(given[5], np.int64)[0],
        matrix(given[6], np.int64)[0],
        matrix(given[7], np.int64)[0],
        matrix(given[8], np.int64)[0],
        matrix(given[9], np.int64)[0],
        matrix(given[10], np.int64)[0],
        matrix(given[11], np.int64)[0],
        matrix(given[12], np.int64)[0],
        matrix(given[13], np.int64)[0],
        matrix(given[14], np.float64),
    )


def _sum_trees(frame):
    """XLA's handler of sums."""
    given = arguments(frame)
    if len(given) == 0:
        return 0
    rule, value = matrix(given[15], np.int32), matrix(given[16], np.float64)
    total = matrix(results(frame)[0], np.float64)[0]
    evaluate(_rows_of(given), rule, value, False, total)
    return 0


def _sweep(frame):
    """XLA's handler of redraws."""
    given = arguments(frame)
    if len(given) == 0:
        return 0
    made = results(frame)
    rows = _rows_of(given)
    numbers = matrix(given[18], np.float64)[0]
    prior = SumPriorTables(
        matrix(given[15], np.float64)[0],
        matrix(given[16], np.float64)[0],
        matrix(given[17], np.float64)[0],
        numbers[0],
        numbers[1],
        0.0,
        0.0,
        numbers[:0],
    )
    rule, value = matrix(made[0], np.int32), matrix(made[1], np.float64)
    total = matrix(made[2], np.float64)[0]
    by_rule, bits = matrix(made[5], np.float64), matrix(made[5], np.int64)
    leaves = max(rule.shape[1] + 1, 2)
    room = Room(
        matrix(made[3], np.float64),
        matrix(made[4], np.float64).reshape(leaves, 3, -1),
        by_rule[0],
        by_rule[1],
        by_rule[2],
        bits[2],
        matrix(made[6], np.int64),
        matrix(made[7], np.uint64),
        matrix(made[8], np.float64),
        matrix(made[9], np.float64),
        matrix(made[10], np.uint8),
    )
    evaluate(rows, rule, value, False, total)
    left = matrix(given[20], np.float64)[0]
    for i in range(len(total)):
        total[i] = left[i] - total[i]
    precision, scale, each_count = matrix(given[21], np.float64)[0], 1.0, True
    if np.all(precision == precision[0]):  # histograms have two channels
        scale, each_count = precision[0], False
    sweep(
        rows, prior, room, precision, scale, each_count, total, rule, value,
        matrix(given[19], np.int64), matrix(given[22], np.float64), matrix(given[23], np.float64),
    )  # fmt: skip
    evaluate(rows, rule, value, False, total)
    return 0
