"""Compile the grammar of a design.

Subproblems are found breadth first from the root, in chunks. Rows with equal codes are one cell and
a subproblem is a bitset of cells. Its identity is a sum of random 64-bit keys of its cells, so one
matrix product gives the identities of the left children of all rules of a chunk at once, the right
children's follow by subtraction, and a hash table in flat arrays turns identities into numbers. A
second, independent sum over the stored bitsets verifies every production. Where constraints look at
the path, a subproblem is a set of cells with the memory of its path (`PathMemory`).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.hashing import HashTable
from bdtppl.models.arrays.bitsets import pack, unpack
from bdtppl.models.arrays.threads import ahead_in_threads, in_threads, one_blas_thread
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.priors import Rules

__all__ = ["TooManySubproblems", "compile_grammar"]

_CACHE_NODES = 1 << 12
_CHUNK_ENTRIES = 1 << 18  # node-by-code entries of one chunk: its arrays stay in the cache


class TooManySubproblems(ValueError):
    """The grammar outgrew its budget.

    Parameters
    ----------
    limit
        The budget.
    seen
        The size seen so far, to follow "The chart needs more than ... subproblems".
    remedy
        A way to make the chart smaller, to follow "Use ".
    """

    def __init__(self, limit: int, seen: str, remedy: str):
        self.limit = limit
        super().__init__(
            f"The chart needs more than max_subproblems={limit:,} subproblems{seen}. Use {remedy}, "
            f"a depth limit (max_depth), larger leaves (min_leaf), or raise max_subproblems."
        )

    def suggest(self, remedy: str) -> None:
        """Add a remedy to the message."""
        self.args = (f"{self.args[0]} {remedy}",)


@dataclass(frozen=True)
class _Cuts:
    """The codes that a rule can cut above, as columns: all but the last of each feature.

    With v columns, d features of which m have missing values.
    """

    feature: np.ndarray  # int32 [v]
    low: np.ndarray  # flat position of the code, int32 [v]
    last: np.ndarray  # flat position of its feature's last code, int32 [v]
    starts: np.ndarray  # first column of each feature
    at_or_below: np.ndarray  # bool [v, cells]; cells whose code is present and at most this one
    is_missing: np.ndarray  # bool [m, cells]
    missing_column: np.ndarray  # int32 [v]; row of `is_missing`, -1 if the feature is complete


def _usable_cuts(design: Design, cells: np.ndarray, allowed: np.ndarray) -> _Cuts:
    feature, low, last, missing_column = [], [], [], []
    at_or_below, is_missing = [np.empty((0, len(cells)), bool)], [np.empty((0, len(cells)), bool)]
    for f in np.flatnonzero(allowed):
        column = cells[:, f]
        present = np.unique(column[column >= 0])
        if len(present) < 2:
            continue
        cut = present[:-1]
        feature += [f] * len(cut)
        low += list(design.offset[f] + cut)
        last += [design.offset[f] + present[-1]] * len(cut)
        at_or_below.append((column >= 0) & (column <= cut[:, None]))
        missing_column += [len(is_missing) - 1 if design.has_missing[f] else -1] * len(cut)
        if design.has_missing[f]:
            is_missing.append((column < 0)[None])
    features = np.array(feature, np.int32)
    return _Cuts(
        features,
        np.array(low, np.int32),
        np.array(last, np.int32),
        np.flatnonzero(np.diff(features, prepend=-1)),
        np.concatenate(at_or_below),
        np.concatenate(is_missing),
        np.array(missing_column, np.int32),
    )


@dataclass
class _Expansion:
    """Productions of a chunk of nodes; children as identities of their sets of cells."""

    parent: np.ndarray
    column: np.ndarray
    high: np.ndarray
    missing_left: np.ndarray | None
    left_key: np.ndarray
    right_key: np.ndarray
    cut: np.ndarray | None = None  # flat position of the cut, where each is a production
    memory: np.ndarray | None = None  # of the left and the right child, [2, p]

    def take(self, productions: np.ndarray) -> "_Expansion":
        """Keep some productions, in some order."""
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        return replace(self, **{name: array[..., productions] for name, array in arrays.items()})

    def each_cut(self, low: np.ndarray) -> "_Expansion":
        """Make a production of every cut between the codes of a gap, ``low`` [v] by column."""
        low = low.take(self.column)
        num_cuts = self.high - low
        gap = np.repeat(np.arange(len(low)), num_cuts)
        place = np.arange(len(gap)) - (np.cumsum(num_cuts) - num_cuts).take(gap)
        cut = (low.take(gap) + 1 + place).astype(np.int32)
        if self.missing_left is not None:  # by node, then cut; the missing-right rule first
            order = np.lexsort((self.missing_left[gap], cut, self.parent[gap]))
            gap, cut = gap[order], cut[order]
        return replace(self.take(gap), cut=cut)

    def remember(
        self, path: PathMemory, memory: np.ndarray, feature: np.ndarray, threshold: np.ndarray
    ) -> "_Expansion":
        """Keep the productions that memories of parents allow; compute those of children."""
        own = memory.take(self.parent)
        kept = np.flatnonzero(path.allows(own, feature, threshold))
        children = path.children(own[kept], feature[kept], threshold[kept])
        return replace(self.take(kept), memory=np.stack(children))


class _Expander:
    """Finds all productions of a chunk of subproblems by one matrix product."""

    def __init__(self, cuts: _Cuts, cell_keys: np.ndarray, cell_weights: np.ndarray, min_leaf):
        self.cuts, self.min_leaf = cuts, min_leaf
        self.num_columns = len(cuts.low)
        self.num_cells = len(cell_keys)
        sets = np.concatenate([cuts.at_or_below, cuts.is_missing])
        parts = [
            # Sums of 32-bit halves stay exact in float64 up to 2^21 cells.
            sets * (cell_keys & np.uint64(0xFFFFFFFF)).astype(float),
            sets * (cell_keys >> np.uint64(32)).astype(float),
        ]
        if min_leaf > 1:
            parts.append(sets * cell_weights.astype(float))
            parts.append(cell_weights[None].astype(float))
        self._num_sets = len(sets)
        self._matrix = np.ascontiguousarray(np.concatenate(parts).T)
        self.chunk = max(64, _CHUNK_ENTRIES // max(1, self.num_columns))
        self._spare: SimpleQueue[tuple[np.ndarray, np.ndarray]] = SimpleQueue()

    def all(
        self, members: np.ndarray, keys: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, _Expansion]]:
        """Expand any number of subproblems; yields each chunk, its subproblems and productions."""
        starts = range(0, len(members), self.chunk)
        chunks = [slice(start, start + self.chunk) for start in starts]
        expanded = ahead_in_threads(lambda chunk: self(members[chunk], keys[chunk]), chunks)
        for chunk, productions in zip(chunks, expanded, strict=True):
            yield chunk, members[chunk], productions

    @contextmanager
    def _sums(self, members: np.ndarray) -> Iterator[np.ndarray]:
        """Multiply subproblems by the matrix, in arrays of earlier calls if there are any."""
        try:
            arrays = self._spare.get_nowait()
        except Empty:
            num_cells, num_sums = self._matrix.shape
            arrays = np.empty((self.chunk, num_cells)), np.empty((self.chunk, num_sums))
        cells, sums = (array[: len(members)] for array in arrays)
        np.copyto(cells, unpack(members, self.num_cells))
        yield np.matmul(cells, self._matrix, out=sums)
        self._spare.put(arrays)

    def __call__(self, members: np.ndarray, keys: np.ndarray) -> _Expansion:
        """Expand at most a chunk of subproblems."""
        with self._sums(members) as sums:
            return self._expand(sums, keys)

    def _expand(self, sums: np.ndarray, keys: np.ndarray) -> _Expansion:
        cuts, v = self.cuts, self.num_columns
        below = self._keys(sums, slice(0, v))

        # A code is present where the identity of "at or below" changes.
        present = np.empty(below.shape, bool)
        np.not_equal(below[:, 1:], below[:, :-1], out=present[:, 1:])
        present[:, cuts.starts] = below[:, cuts.starts] != 0
        flat = np.flatnonzero(present)
        parent = (flat // v).astype(np.int32)
        column = (flat - parent * np.int64(v)).astype(np.int32)
        feature = cuts.feature.take(column)
        # The gap above a code ends at the feature's next present code, or at its last code.
        high = cuts.last.take(column)
        has_next = np.flatnonzero((parent[1:] == parent[:-1]) & (feature[1:] == feature[:-1]))
        high[has_next] = cuts.low.take(column[has_next + 1])
        left_key, rest = below.ravel().take(flat), keys.take(parent)
        missing_key = None
        if len(cuts.is_missing):
            missing_key = self._missing_keys(sums)[parent, cuts.missing_column.take(column)]
            rest = rest - missing_key
        # A rule needs rows above the gap.
        rule = np.flatnonzero(left_key != rest)
        parent, column, high, left_key = (a.take(rule) for a in (parent, column, high, left_key))
        missing_left = None
        if missing_key is not None:
            parent, column, high, left_key, missing_left = self._both_sides(
                parent, column, high, left_key, missing_key[rule]
            )
        if self.min_leaf > 1:
            left_rows, rows = self._rows(sums, parent, column, missing_left)
            kept = np.flatnonzero(
                (left_rows >= self.min_leaf) & (rows - left_rows >= self.min_leaf)
            )
            parent, column, high, left_key = (
                a.take(kept) for a in (parent, column, high, left_key)
            )
            missing_left = missing_left if missing_left is None else missing_left[kept]
        right_key = keys.take(parent) - left_key
        return _Expansion(parent, column, high, missing_left, left_key, right_key)

    def _keys(self, sums: np.ndarray, columns: slice) -> np.ndarray:
        """Join the halves of identities."""
        keys = sums[:, self._num_sets : 2 * self._num_sets][:, columns].astype(np.uint64)
        keys <<= np.uint64(32)
        keys += sums[:, columns].astype(np.uint64)
        return keys

    def _missing_keys(self, sums: np.ndarray) -> np.ndarray:
        """Identities of the missing cells of each feature that has any, and none at the end."""
        keys = self._keys(sums, slice(self.num_columns, self._num_sets))
        return np.concatenate([keys, np.zeros((len(keys), 1), np.uint64)], axis=1)

    def _rows(self, sums, parent, column, missing_left) -> tuple[np.ndarray, np.ndarray]:
        """Rows on the left of each rule, and in its parent."""
        rows = sums[:, 2 * self._num_sets :]
        left_rows = rows[parent, column]
        if missing_left is not None:
            which = self.num_columns + self.cuts.missing_column.take(column)
            left_rows = left_rows + missing_left * rows[parent, which]
        return left_rows, rows[parent, -1]

    def _both_sides(self, parent, column, high, left_key, missing_key):
        """Repeat the rules of features with missing values with the missing rows on the left."""
        twice = np.flatnonzero(self.cuts.missing_column.take(column) >= 0)
        parents = np.concatenate([parent, parent[twice]])
        columns = np.concatenate([column, column[twice]])
        order = np.lexsort((columns, parents))  # by node, then code; the missing-right rule first
        return (
            parents[order],
            columns[order],
            np.concatenate([high, high[twice]])[order],
            np.concatenate([left_key, left_key[twice] + missing_key[twice]])[order],
            (np.arange(len(parents)) >= len(parent))[order],
        )


class _Parts(NamedTuple):
    """Arrays of a chart, level by level or chunk by chunk, as they are made."""

    members: list[np.ndarray]
    counts: list[np.ndarray]  # productions of each node
    memories: list[np.ndarray]
    productions: list[tuple]  # left, right, low, high
    missing_left: list[np.ndarray]
    cut: list[np.ndarray]

    def in_order(
        self, rng: np.random.Generator, *, each_cut: bool, has_memory: bool
    ) -> dict[str, Any] | None:
        """Join the arrays, nodes in the order of their heights; None if they are not verified."""
        members = np.concatenate(self.members)
        counts = np.concatenate([*self.counts, np.zeros(len(members), np.int64)])[: len(members)]
        pieces = zip(*self.productions, strict=True)
        left, right, low, high = in_threads(np.concatenate, pieces, len(members))
        missing_left = np.concatenate(self.missing_left) if self.missing_left else None
        cut = np.concatenate([np.empty(0, np.int32), *self.cut]) if each_cut else None
        memory = np.concatenate(self.memories) if has_memory else None
        for part in self:
            part.clear()
        checked: list[Any] = in_threads(
            lambda work: work(),
            (
                lambda: _is_verified(members, counts, left, right, rng),
                lambda: _heights(members, counts, left, right),
            ),
            len(left),
        )
        is_verified, height = checked
        if not is_verified:
            return None
        order = np.argsort(height, kind="stable")
        moved = _in_order(
            {"low": low, "high": high, "missing_left": missing_left, "cut": cut},
            {"left": left, "right": right},
            counts,
            order,
        )
        return moved | {
            "members": members[order],
            "height": height[order],
            "first_production": _starts(counts[order]),
            "memory": None if memory is None else memory[order],
        }


def _compile(
    design: Design,
    rules: Rules,
    constraints: Constraints,
    each_cut: bool,
    max_subproblems: int,
    on_progress: Callable[[int], None] | None,
    seed: int,
) -> Grammar | None:
    """Compile with one choice of random keys; None if two sets of rows shared an identity."""
    cells, cell_of_row = np.unique(design.codes, axis=0, return_inverse=True)
    cell_of_row = cell_of_row.ravel().astype(np.int32)
    num_cells = len(cells)
    cell_weights = np.bincount(cell_of_row, design.weights, minlength=num_cells)
    cuts = _usable_cuts(design, cells, constraints.allows(design.names))
    rng = np.random.default_rng(seed)
    cell_keys = rng.integers(1, 2**64, num_cells, dtype=np.uint64)
    expand = _Expander(cuts, cell_keys, cell_weights, constraints.min_leaf)
    path = constraints.path_memory(design.names)
    memory_key = np.uint64(1)
    if path is not None:  # odd, so that memories of one set of cells have distinct products
        memory_key += rng.integers(0, 2**63, dtype=np.uint64) * np.uint64(2)
    below_words = pack(cuts.at_or_below)
    # Complete features have no missing cells: -1 finds the empty set at the end.
    missing_words = pack(np.concatenate([cuts.is_missing, np.zeros((1, num_cells), bool)]))

    frontier = pack(np.ones((1, num_cells), bool))
    frontier_keys = cell_keys.sum(keepdims=True)
    frontier_memory = np.full(1, 0 if path is None else path.start, np.uint64)
    table = HashTable()
    table.insert(frontier_keys + frontier_memory * memory_key)
    parts = _Parts([frontier], [], [frontier_memory], [(np.empty(0, np.int32),) * 4], [], [])
    level, max_depth = 0, constraints.max_depth
    while len(frontier) and len(cuts.low) and (max_depth is None or level < max_depth):
        new_members, new_keys, new_memory = [], [], []
        for chunk, nodes, expansion in expand.all(frontier, frontier_keys):
            if each_cut:
                expansion = expansion.each_cut(cuts.low)
            if path is not None:
                memory = frontier_memory[chunk]
                feature = cuts.feature.take(expansion.column)
                threshold = _threshold(design, rules, cuts, expansion)
                expansion = expansion.remember(path, memory, feature, threshold)
            keys = np.concatenate([expansion.left_key, expansion.right_key])
            if expansion.memory is not None:
                keys += expansion.memory.ravel() * memory_key
            children, first = table.insert(keys)
            if table.size > max_subproblems:
                seen = (
                    f": {table.size:,} were found after {level + 1} levels of splits on "
                    f"{design.num_rows:,} rows and {design.num_features} features"
                )
                raise TooManySubproblems(max_subproblems, seen, "fewer bins")
            is_right, production = np.divmod(first, max(1, len(expansion.parent)))
            column = expansion.column[production]
            left_words = below_words[column]
            if expansion.missing_left is not None:
                goes_left = expansion.missing_left[production, None]
                missing = missing_words[cuts.missing_column[column]]
                left_words = left_words | np.where(goes_left, missing, np.uint64(0))
            side = np.where(is_right[:, None] == 1, ~left_words, left_words)
            new_members.append(nodes[expansion.parent[production]] & side)
            new_keys.append(
                np.where(is_right, expansion.right_key[production], expansion.left_key[production])
            )
            if expansion.memory is not None:
                new_memory.append(expansion.memory.ravel()[first])
            left, right = np.split(children, 2)
            parts.counts.append(np.bincount(expansion.parent, minlength=len(nodes)))
            parts.productions.append((left, right, cuts.low.take(expansion.column), expansion.high))
            if expansion.missing_left is not None:
                parts.missing_left.append(expansion.missing_left)
            if expansion.cut is not None:
                parts.cut.append(expansion.cut)
            if on_progress is not None:
                on_progress(table.size)
        frontier, frontier_keys = np.concatenate(new_members), np.concatenate(new_keys)
        parts.members.append(frontier)
        if path is not None:
            frontier_memory = np.concatenate(new_memory)
            parts.memories.append(frontier_memory)
        level += 1
    arrays = parts.in_order(rng, each_cut=each_cut, has_memory=path is not None)
    if arrays is None:
        return None
    grammar = Grammar(
        design=design,
        rules=rules,
        constraints=constraints,
        cell_of_row=cell_of_row,
        num_rows=np.empty(0, np.int64),
        **arrays,
    )
    num_rows = grammar.node_sums(cell_weights[:, None])[:, 0].astype(np.int64)
    object.__setattr__(grammar, "num_rows", num_rows)
    return grammar if path is None or _is_remembered(grammar, path) else None


def _threshold(design: Design, rules: Rules, cuts: _Cuts, expansion: _Expansion) -> np.ndarray:
    """Thresholds of productions; any of its gap's, where that makes no difference."""
    low = cuts.low.take(expansion.column)
    if rules == "gaps":
        return design.gap_threshold(low, expansion.high)
    return design.cut_threshold.take(low + 1 if expansion.cut is None else expansion.cut)


def _is_remembered(grammar: Grammar, path: PathMemory) -> bool:
    """Whether the children of every production have the memories that it leaves them."""
    memory: Any = grammar.memory
    left, right = path.children(
        memory.take(grammar.parent), grammar.feature, grammar.threshold_in_gap
    )
    is_left = (memory.take(grammar.left) == left).all()
    return bool(is_left and (memory.take(grammar.right) == right).all())


def _is_verified(members, counts, left, right, rng) -> bool:
    """Whether children add up to their parents under a second identity of the stored bitsets."""
    # Half words: the leading bits of whole ones would leave few bits of a product to chance.
    halves = members.view(np.uint32).T
    check = np.zeros(len(members), np.uint64)
    for half, multiplier in zip(
        halves, rng.integers(0, 2**64, len(halves), np.uint64), strict=True
    ):
        check += half * multiplier
    first = _starts(counts)

    def adds_up(start: int) -> bool:
        nodes = slice(start, start + _CACHE_NODES)
        productions = slice(*first[[start, min(start + _CACHE_NODES, len(members))]])
        children = check.take(left[productions]) + check.take(right[productions])
        return bool((children == np.repeat(check[nodes], counts[nodes])).all())

    return all(in_threads(adds_up, range(0, len(members), _CACHE_NODES), len(left)))


def _starts(counts: np.ndarray) -> np.ndarray:
    """Position of the first production of each node, and one past the last of all."""
    return np.concatenate([[0], np.cumsum(counts)])


def _productions(first: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the productions of some nodes, run after run, and where the runs start."""
    begin = first.take(nodes)
    runs = _starts(first.take(nodes + 1) - begin)
    return np.repeat(begin - runs[:-1], np.diff(runs)) + np.arange(runs[-1]), runs[:-1]


def _heights(members, counts, left, right) -> np.ndarray:
    """Height of every node, int16; children have fewer cells, so sizes are settled in order."""
    height = np.zeros(len(members), np.int16)
    first = _starts(counts)
    size = np.bitwise_count(members).sum(axis=1, dtype=np.int32)
    splits = np.flatnonzero(counts)
    splits = splits[np.argsort(size[splits], kind="stable")]
    bounds = np.flatnonzero(np.diff(size[splits], prepend=-1, append=-1))
    for start, stop in pairwise(bounds):
        nodes = splits[start:stop]
        production, runs = _productions(first, nodes)
        tallest = height.take(left.take(production))
        np.maximum(tallest, height.take(right.take(production)), out=tallest)
        height[nodes] = np.maximum.reduceat(tallest, runs) + 1
    return height


def _in_order(
    arrays: dict[str, np.ndarray | None], children: dict[str, np.ndarray], counts, order
) -> dict[str, Any]:
    """Productions in the new order of their parents; children have the new numbers of nodes."""
    first, new_first = _starts(counts), _starts(counts[order])
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    present = {name: array for name, array in (children | arrays).items() if array is not None}
    moved = {name: np.empty_like(array) for name, array in present.items()}

    def move(start: int) -> None:
        stop = min(start + _CACHE_NODES, len(order))
        production, _ = _productions(first, order[start:stop])
        to = slice(new_first[start], new_first[stop])
        for name, array in present.items():
            values = array.take(production)
            moved[name][to] = rank.take(values) if name in children else values

    in_threads(move, range(0, len(order), _CACHE_NODES), new_first[-1])
    return dict.fromkeys(arrays) | moved


_cache: OrderedDict[bytes, Grammar] = OrderedDict()
_CACHE_PRODUCTIONS = 40_000_000


def compile_grammar(
    design: Design,
    *,
    rules: Rules = "gaps",
    constraints: Constraints | None = None,
    each_cut: bool = False,
    max_subproblems: int = 500_000,
    on_progress: Callable[[int], None] | None = None,
    keep: bool = True,
) -> Grammar:
    """Compile the grammar of a design, or take it from the cache of recent ones.

    Parameters
    ----------
    design
        Coded rows; only codes, weights and cut points matter.
    rules
        "gaps" or "cuts" (see `bdtppl.models.priors.TreePrior`).
    constraints
        Limits on the trees.
    each_cut
        Whether every cut of a gap is a production of its own, with ``rules="cuts"``; always so
        where boxes are kept together. Priors that weigh cuts of one gap apart need it.
    max_subproblems
        Budget; the memory needed is about 16 bytes times productions.
    on_progress
        Called with the number of subproblems found so far after every chunk.
    keep
        Whether to keep the grammar in the cache.

    Returns
    -------
    Grammar
        The same object for the same design, rules and constraints while it is cached.

    Raises
    ------
    TooManySubproblems
        If the budget is exceeded.
    ValueError
        If constraints name features that do not exist, or monotone ones.
    """
    constraints = Constraints() if constraints is None else constraints
    constraints.require_free_leaves("The exact posterior")
    each_cut = rules == "cuts" and (each_cut or bool(constraints.keep_together))
    key = _fingerprint(design, (rules, constraints, each_cut))
    if key in _cache and _cache[key].num_subproblems <= max_subproblems:
        _cache.move_to_end(key)
        return _cache[key]
    settings = rules, constraints, each_cut, max_subproblems, on_progress
    with one_blas_thread():
        attempts = (_compile(design, *settings, seed) for seed in range(100))
        grammar = next(filter(None, attempts))
    if keep:
        _cache[key] = grammar
    while len(_cache) > 1 and sum(g.num_productions for g in _cache.values()) > _CACHE_PRODUCTIONS:
        _cache.popitem(last=False)
    return grammar


def _fingerprint(design: Design, settings: tuple) -> bytes:
    digest = hashlib.sha256(repr((settings, design.names)).encode())
    for array in (design.codes, design.weights, design.num_codes, design.cut_threshold):
        digest.update(np.ascontiguousarray(array).tobytes() + str(array.shape).encode())
    for array in (design.matrix, design.low_edge, design.high_edge, design.is_indicator):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
