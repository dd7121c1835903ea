"""A model of hard trees with sets of rows packed into words of bits.

The rows of a node are its parent's intersected with its rule's side, and counting them is counting
bits. If constraints depend on the path, a node's words of rows are followed by one more word: its
memory of the path. `bdtppl.models.hard.node_scores` scores nodes by the prior and the leaf family.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.models.arrays.bitsets import pack
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.data.design import Design, midpoint
from bdtppl.models.data.splits import split_number
from bdtppl.models.hard.leaf_scores import MOST_TABLED, has_whole_counts
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import CountTable
from bdtppl.models.leaf_kernels import LeafKernel
from bdtppl.models.prior_kinds import require_weighs
from bdtppl.models.pytrees import as_partial
from bdtppl.models.row_statistics import row_statistics

_UNROLLED = 32  # words of a set that are counted in one fused operation
_COMPARED = 1 << 24  # most rows times rules that are compared at once when tables are made


class PackedModel(NamedTuple):
    """Tables of rules, and arrays that score trees; n rows, W words, R rules, s statistics.

    There are d features in c columns (see `Design`).

    A node's set of rows is W words, or W + 1 if there is a `path`.

    A rule is a cut after one code of a feature, with missing values on one side. Rules of one
    feature and side of missing values are contiguous, in the order of their cuts. The table also
    contains rules that no tree uses: the cut after a feature's last code, which stores its total,
    and, if missing values go left, one before its first code, which stores their number.

    Attributes
    ----------
    left_rows, left_words
        uint64 [W, R] and [R, W]; rows on the left, twice: one to count them in all rules, one to
        look a rule up.
    rows_at
        uint64 [W, R]; rows at the code below the cut.
    rows_below, rows_above
        uint64 [W, R], or None if no value is missing; rows with a value on either side.
    every_row
        uint64 [W] or [W + 1]; the root's set.
    feature, column
        int32 [R].
    split
        int32 [R]; number of the split (`bdtppl.models.data.splits.split_number`), that of the cut
        above the feature's first code if the rule is a cut before it.
    first, last
        int32 [R]; ends of the rule's run.
    can_cut
        bool [R]; whether a tree may use the rule.
    low_edge, high_edge
        float64 [R]; least and greatest training value of the code below the cut.
    threshold
        float64 [R]; the cut.
    place, num_items
        int [R] and [c]; place in the list of the column's rules, and its length (see
        `bdtppl.models.hard.rule_laws.RuleTable`).
    first_of_column
        int [c]; first feature of each column.
    by_column
        float64 [R, c]; one if the rule splits on the column.
    codes, num_codes
        int16 or int32 [n, d], and int32 [d]; codes of single rows, -1 if the value is missing.
    statistics
        float64 [n, s]; leaf statistics of single rows, times their weights.
    ones
        float64 [n, 1] of ones, or None if they are the first of the statistics.
    classes
        uint64 [W, s], or None; rows of each class, if the statistics count classes.
    table
        Log marginals of counts of classes, or None.
    score_tables
        Input of the leaf family's compiled score; None without one, or if weights are not whole.
    min_leaf, max_depth
        float64 scalars; limits.
    path
        Path memory of nodes, or None if no constraint depends on paths.
    directions
        int [d]; directions of monotone features, or None.
    allows_path, allows_tree
        Functions that define the allowed trees (see `Constraints`), or None.
    prior, leaf
        The model's hyperparameters, float64.
    """

    left_rows: jax.Array
    left_words: jax.Array
    rows_at: jax.Array
    rows_below: jax.Array | None
    rows_above: jax.Array | None
    every_row: jax.Array
    feature: jax.Array
    column: jax.Array
    split: jax.Array
    first: jax.Array
    last: jax.Array
    can_cut: jax.Array
    low_edge: jax.Array
    high_edge: jax.Array
    threshold: jax.Array
    place: jax.Array
    num_items: jax.Array
    first_of_column: jax.Array
    by_column: jax.Array
    codes: jax.Array
    num_codes: jax.Array
    statistics: jax.Array
    ones: jax.Array | None
    classes: jax.Array | None
    table: CountTable | None
    score_tables: tuple[jax.Array, jax.Array] | None
    min_leaf: jax.Array
    max_depth: jax.Array
    path: PathMemory | None
    directions: jax.Array | None
    allows_path: Any
    allows_tree: Any
    prior: Any
    leaf: Any

    @classmethod
    @in_float64
    def of(cls, model: TreeModel, *, is_padded: bool = True) -> "PackedModel":
        """Tabulate rules and rows.

        Parameters
        ----------
        model
            The model; its design is dense.
        is_padded
            Add empty rows and rules without effect, so that tables of about one size, such as the
            folds of cross-validation, share compiled code.

        Raises
        ------
        ValueError
            If the prior weights edits.
        """
        require_weighs(model.prior, "The score of a tree", "nodes", "leaf counts", "trees")
        design: Any = model.design
        num_rows, num_words = design.num_rows, -(-design.num_rows // 64)
        if is_padded:
            num_rows, num_words = padded_size(num_rows), padded_size(num_words)
        rules = _RuleOrder.of(design, is_padded)
        feature, code, ends = rules.feature, rules.code, np.cumsum(rules.size)
        low = design.offset[feature] + np.maximum(code, 0)
        last = len(design.low_edge) - 1
        at_low = np.minimum(low, last)
        path = model.constraints.path_memory(design.names)
        every_row = _packed_words(np.ones((design.num_rows, 1), bool), num_words)[0]
        if path is not None:
            every_row = np.append(every_row, path.start)
        is_cut = (code >= 0) & (code < design.num_codes[feature] - 1)
        limits = model.constraints
        above = low + (code >= 0)
        is_cut &= ~limits.refused_cuts(design)[np.minimum(above, last)]
        functions: dict[str, Any] = {
            name: None if function is None else as_partial(function)
            for name in ("allows_path", "allows_tree")
            for function in [getattr(limits, name)]
        }
        depth, directions = model.constraints.max_depth, model.constraints.directions(design.names)
        arrays = {
            **_row_sets(design, rules, num_words),
            **_leaf_tables(model, num_rows, num_words),
            "every_row": every_row,
            "feature": feature.astype(np.int32),
            "column": design.column[feature],
            "split": split_number(low, rules.missing_left).astype(np.int32),
            "first": np.repeat(ends - rules.size, rules.size).astype(np.int32),
            "last": np.repeat(ends - 1, rules.size).astype(np.int32),
            "can_cut": is_cut & model.constraints.allows(design.names)[feature],
            "low_edge": np.nan_to_num(design.low_edge)[at_low],
            "high_edge": np.nan_to_num(design.high_edge)[at_low],
            "threshold": design.cut_threshold[np.minimum(above, last)],
            "place": design.place_of_rule(feature, np.maximum(code, 0)) + rules.missing_left,
            "num_items": design.rules_of_columns,
            "first_of_column": design.first_of_column,
            "by_column": np.eye(design.num_columns)[design.column[feature]],
            "codes": np.pad(design.codes, ((0, num_rows - design.num_rows), (0, 0))),
            "num_codes": design.num_codes.astype(np.int32),
            "min_leaf": np.float64(model.constraints.min_leaf),
            "max_depth": np.float64(np.inf if depth is None else depth),
            "path": path,
            "directions": directions,
        }
        prior, leaf = as_float64(model.prior.resolve(design)), as_float64(model.leaf)
        return cls(**jax.device_put(arrays), **functions, prior=prior, leaf=leaf)

    @property
    def binds_trees(self) -> bool:
        """Whether a tree may be excluded although none of its nodes is."""
        return not self.directions is self.allows_path is self.allows_tree is None

    def rule_numbers(self) -> np.ndarray:
        """Return the rule of each split by its number, int [2 V].

        If no value is missing, splits that differ in the side of missing values are one rule.
        """
        numbers = np.full((np.max(self.split) // 2 + 1, 2), -1)
        # Of two rules with one code, the later one, which is stored, has rows below its cut.
        numbers.ravel()[self.split] = np.arange(len(self.split))
        return np.where(numbers < 0, numbers[:, :1], numbers).ravel()


class _RuleOrder(NamedTuple):
    """Rules of a table in their order: feature, side of missing values and code below the cut."""

    feature: np.ndarray
    missing_left: np.ndarray
    code: np.ndarray
    size: np.ndarray  # rules of each run

    @classmethod
    def of(cls, design: Design, is_padded: bool) -> "_RuleOrder":
        runs = [
            (j, side, np.arange(-side, design.num_codes[j]))
            for j in range(design.num_features)
            for side in range(1 + design.has_missing[j])
        ]
        if is_padded:
            num_rules = sum(len(code) for *_, code in runs)
            beyond = np.full(padded_size(num_rules) - num_rules, design.num_codes[-1])
            runs.append((design.num_features - 1, 0, beyond))
        size = np.array([len(code) for *_, code in runs])
        feature, side = (np.repeat([run[i] for run in runs], size) for i in (0, 1))
        return cls(feature, side == 1, np.concatenate([code for *_, code in runs]), size)

    def words(self, codes: np.ndarray, num_words: int, is_in: Callable[..., Any]) -> np.ndarray:
        """Pack a condition on codes [n, r] for rules [r], uint64 [R, W], some rules at a time."""
        step = max(1, _COMPARED // len(codes))
        parts = []
        for start in range(0, len(self.code), step):
            some = slice(start, start + step)
            own = codes[:, self.feature[some]]
            parts.append(
                _packed_words(is_in(own, self.code[some], self.missing_left[some]), num_words)
            )
        return np.concatenate(parts)


def _row_sets(design: Design, rules: _RuleOrder, num_words: int) -> dict:
    """Pack the rows on the sides of each rule; members of `PackedModel`."""
    codes = design.codes
    left_words = rules.words(
        codes, num_words, lambda values, code, side: (values <= code) & ((values >= 0) | side)
    )

    def by_word(is_in: Callable[..., Any]) -> np.ndarray:
        return _by_word(rules.words(codes, num_words, lambda values, code, _: is_in(values, code)))

    sets = {
        "left_rows": _by_word(left_words),
        "left_words": left_words,
        "rows_at": by_word(lambda values, code: (values == code) & (values >= 0)),
        "rows_below": None,
        "rows_above": None,
    }
    if design.has_missing.any():
        sets["rows_below"] = by_word(lambda values, code: (values <= code) & (values >= 0))
        sets["rows_above"] = by_word(lambda values, code: values > code)
    return sets


def _leaf_tables(model: TreeModel, num_rows: int, num_words: int) -> dict:
    """Tabulate the row statistics that leaves need; members of `PackedModel`."""
    leaf, design = model.leaf, model.design
    statistics = row_statistics(leaf, model.y, design.weights)
    statistics = np.pad(statistics, ((0, num_rows - design.num_rows), (0, 0)))
    most = padded_size(int(design.total_weight)) if design.has_weights else num_rows
    table = kernel = None
    if has_whole_counts(leaf, statistics):
        kernel = LeafKernel.of(leaf, most)
        if most <= max(MOST_TABLED, num_rows) and hasattr(leaf, "log_marginal_table"):
            table = leaf.log_marginal_table(most)  # pyright: ignore[reportAttributeAccessIssue]
            table = table if isinstance(table, CountTable) else None
    classes = table is not None and not design.has_weights
    tells_rows = not (leaf.sums_to_rows or design.has_weights)
    return {
        "statistics": statistics,
        "ones": None if tells_rows else np.ones((num_rows, 1)),
        "classes": _by_word(_packed_words(statistics > 0, num_words)) if classes else None,
        "table": table,
        "score_tables": kernel[1:] if kernel and kernel.address else None,
    }


def _packed_words(is_in: np.ndarray, num_words: int) -> np.ndarray:
    """Pack sets of rows [n, R], uint64 [R, W]."""
    packed = pack(is_in.T)
    return np.pad(packed, ((0, 0), (0, num_words - packed.shape[1])))


def _by_word(words: np.ndarray) -> np.ndarray:
    """Transpose sets from uint64 [R, W] to [W, R]."""
    return np.ascontiguousarray(words.T)


def _meet(words: jax.Array, sets: jax.Array) -> jax.Array:
    """Return whether nodes' sets share a row with others [W, r], bool [m, r]."""

    def add(shared, w):
        own = lax.dynamic_index_in_dim(words, w, 1)
        return shared | (own & lax.dynamic_index_in_dim(sets, w, 0))

    shared = jnp.zeros((words.shape[0], sets.shape[1]), words.dtype)
    return _over_words(len(sets), add, shared) != 0


def _over_words(num_words: int, add, start: jax.Array) -> jax.Array:
    """Sum over words, in one fused operation if they are few."""
    if num_words > _UNROLLED:
        return lax.fori_loop(0, num_words, lambda w, total: add(total, w), start)
    for w in range(num_words):
        start = add(start, w)
    return start


def count_rows(words: jax.Array, sets: jax.Array) -> jax.Array:
    """Count the rows that nodes' sets share with others [W, r], int32 [m, r]."""

    def add(total, w):
        own = lax.dynamic_index_in_dim(words, w, 1)
        shared = own & lax.dynamic_index_in_dim(sets, w, 0)
        return total + lax.population_count(shared).astype(jnp.int32)

    return _over_words(len(sets), add, jnp.zeros((words.shape[0], sets.shape[1]), jnp.int32))


def children(model: PackedModel, rows: jax.Array, rule: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split the sets of nodes between their left and right children.

    Parameters
    ----------
    model
        The model.
    rows
        uint64 [m, W] or [m, W + 1]; sets of the nodes.
    rule
        int32 [m]; rules that split them.
    """
    side = model.left_words[rule]
    if model.path is None:
        return rows & side, rows & ~side
    own, memory = rows[:, :-1], rows[:, -1]
    left, right = model.path.children(memory, model.feature[rule], thresholds(model, rows, rule))
    return (
        jnp.concatenate([own & side, left[:, None]], axis=1),
        jnp.concatenate([own & ~side, right[:, None]], axis=1),
    )


def thresholds(model: PackedModel, rows: jax.Array, rule: jax.Array) -> jax.Array:
    """Look up the thresholds of nodes' rules [m], float64 [m]."""
    every = every_threshold(model, rows, _meet(rows, model.rows_at))
    return every[jnp.arange(len(rule)), rule]


def every_threshold(model: PackedModel, rows: jax.Array, is_present: jax.Array) -> jax.Array:
    """Return the threshold of every rule in nodes, float64 [m, R].

    Parameters
    ----------
    model
        The model.
    rows
        uint64 [m, W] or [m, W + 1]; sets of the nodes.
    is_present
        bool [m, R]; see `Available`.
    """
    if model.prior.rules == "cuts":
        return jnp.broadcast_to(model.threshold[None], is_present.shape)
    above = next_present(model, is_present)
    low, high = model.high_edge[None], model.low_edge[above]
    if model.path is None:
        return midpoint(low, high, jnp)
    return model.path.gap_threshold(rows[:, -1:], model.feature[None], low, high, jnp)


class Available(NamedTuple):
    """Rules of m nodes.

    Attributes
    ----------
    is_rule
        bool [m, R]; whether the rule is available.
    num_left
        int32 [m, R]; rows on its left, those with missing values counted on their side.
    is_present
        bool [m, R]; whether the node has a row at the code below the cut.
    num_rows
        int32 [m]; rows in the node.
    num_column_rules
        float64 [m, c]; available rules of each column.
    num_columns
        float64 [m]; columns with an available rule.
    """

    is_rule: jax.Array
    num_left: jax.Array
    is_present: jax.Array
    num_rows: jax.Array
    num_column_rules: jax.Array
    num_columns: jax.Array


def available_rules(model: PackedModel, rows: jax.Array, depth: jax.Array) -> Available:
    """Find the available rules of nodes.

    Parameters
    ----------
    model
        The model.
    rows
        uint64 [m, W] or [m, W + 1]; sets of the nodes.
    depth
        int32 [m]; splits above them.
    """
    num_left, is_present = count_rows(rows, model.left_rows), _meet(rows, model.rows_at)
    own = rows[:, : len(model.left_rows)]
    total = lax.population_count(own).astype(jnp.int32).sum(axis=1, keepdims=True)
    least = jnp.maximum(model.min_leaf, 1)
    is_rule = model.can_cut[None] & (num_left >= least) & (total - num_left >= least)
    # Rows without a value separate nothing by themselves.
    if model.rows_above is not None and model.rows_below is not None:
        is_rule &= _meet(rows, model.rows_above) & _meet(rows, model.rows_below)
    if model.prior.rules == "gaps":  # the rule of a gap is the cut next to the code below it
        is_rule &= is_present
    is_rule &= (depth < model.max_depth)[:, None]
    if model.path is not None:
        threshold = every_threshold(model, rows, is_present)
        is_rule &= model.path.allows(rows[:, -1:], model.feature[None], threshold)
    # Counts are exact in float32, whose products are twice as fast.
    num_rules = (is_rule.astype(jnp.float32) @ model.by_column.astype(jnp.float32)).astype(float)
    num_columns = (num_rules > 0).sum(axis=1).astype(float)
    return Available(is_rule, num_left, is_present, total[:, 0], num_rules, num_columns)


def next_present(model: PackedModel, present: jax.Array) -> jax.Array:
    """Return the rule next to the code above each cut in a node, int32 [m, R]."""
    num_rules = present.shape[1]
    upcoming = jnp.where(present, jnp.arange(num_rules)[None], num_rules)
    upcoming = jnp.roll(upcoming, -1, axis=1).at[:, -1].set(num_rules)
    return jnp.minimum(lax.cummin(upcoming, 1, reverse=True), model.last[None])
