"""Compile the grammar of a design.

Subproblems are found breadth first from the root, in chunks. Rows with equal codes are one cell and
a subproblem is a bitset of cells. Its identity is a sum of random 64-bit keys of its cells, so sums
at each code identify the children of all its rules (`bdtppl.inference.pcfg.expansion`), and a hash
table turns identities into numbers. A second, independent sum over the stored bitsets verifies
every production. If constraints depend on the path, a subproblem is a set of cells with the memory
of its path (`PathMemory`).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from bdtppl.inference.pcfg.expansion import Cells, Found, cells_of_children, expand
from bdtppl.inference.pcfg.grammar import Grammar, gap_threshold
from bdtppl.inference.pcfg.hashing import HashTable
from bdtppl.models.arrays.bit_loops import trailing_zeros, unsigned
from bdtppl.models.arrays.bitsets import pack
from bdtppl.models.arrays.growing import Growing
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.prior_kinds import Rules

_CHUNK_ENTRIES = 1 << 18  # node-by-cut entries of one chunk: its arrays stay in the cache


class TooManySubproblems(ValueError):
    """The grammar outgrew its budget.

    Parameters
    ----------
    limit
        The budget.
    seen
        The size so far, to follow "The trees make more than ... sets of rows".
    remedy
        A remedy, to follow "Use ".
    """

    def __init__(self, limit: int, seen: str, remedy: str):
        self.limit, self.remedies = limit, list[str]()
        super().__init__(
            f"The trees make more than max_subproblems={limit:,} sets of rows{seen}. Use {remedy}, "
            f"a depth limit (max_depth), larger leaves (min_leaf), or raise max_subproblems."
        )

    def suggest(self, remedy: str) -> None:
        """Add a remedy to the message."""
        self.remedies.append(remedy)
        self.args = (f"{self.args[0]} {remedy}",)


class _Exploration:
    """Subproblems in the order in which they are found, and their productions."""

    def __init__(
        self,
        cells: Cells,
        path: PathMemory | None,
        threshold: Callable[[Found, np.ndarray], np.ndarray],
        refused: np.ndarray,
        rng: np.random.Generator,
        keeps_productions: bool,
    ):
        self.keeps_productions = keeps_productions
        self.cells, self.path, self.threshold = cells, path, threshold
        self.refused = refused if refused.any() else None
        self.chunk = max(1, _CHUNK_ENTRIES // max(1, cells.num_cuts.sum()))
        self._room = cells.room_for(self.chunk)
        self._members = Growing(pack(np.ones((1, len(cells.key)), bool)))
        self._memory = Growing(np.full(1, 0 if path is None else path.start, np.uint64))
        self._memory_key = np.uint64(1)
        if path is not None:  # odd, so that memories of one set of cells have distinct products
            self._memory_key += rng.integers(0, 2**63, dtype=np.uint64) * np.uint64(2)
        self._table = HashTable()
        self._table.insert(cells.key.sum(keepdims=True) + self._memory.array * self._memory_key)
        self._counts: list[np.ndarray] = []  # productions of each subproblem
        kinds: dict[str, type] = {"low": np.int32, "high": np.int32}
        if cells.each_cut:
            kinds["cut"] = np.int32
        if cells.has_missing.any():
            kinds["missing_left"] = np.bool_
        self._productions = {name: Growing(np.empty(0, kind)) for name, kind in kinds.items()}
        self._child = Growing(np.empty((0, 2), np.int32))  # left and right

    @property
    def size(self) -> int:
        """Number of subproblems found."""
        return self._table.size

    def expand(self, nodes: slice, most: int) -> bool:
        """Find the productions of at most a chunk of subproblems, and their children.

        Returns whether there are at most that many subproblems; if there are more, their cells are
        not stored, which would need far more memory than counting them.
        """
        members, keys = self._members.array[nodes], self._table.keys[nodes]
        if self.path is None:
            found = self._allowed(expand(members, keys, self.cells, self._room))
            child, first = self._table.insert(found.key.ravel())
        else:
            memory = self._memory.array[nodes]
            own_keys = keys - memory * self._memory_key
            found = self._allowed(expand(members, own_keys, self.cells, self._room))
            found, memories = self._remember(self.path, memory, found)
            child, first = self._table.insert((found.key + memories * self._memory_key).ravel())
            self._memory.append(memories.ravel()[first])
        if self.size > most:
            return False
        self._members.append(cells_of_children(members, self.cells, found, first))
        if not self.keeps_productions:
            return True
        self._counts.append(np.bincount(found.parent, minlength=len(members)))
        self._child.append(child.reshape(-1, 2))
        for name, array in self._productions.items():
            array.append(getattr(found, name))
        return True

    def _allowed(self, found: Found) -> Found:
        """Keep the rules whose cuts are not excluded."""
        if self.refused is None:
            return found
        return found.take(np.flatnonzero(~self.refused[found.cut]))

    def _remember(
        self, path: PathMemory, memory: np.ndarray, found: Found
    ) -> tuple[Found, np.ndarray]:
        """Keep the rules that memories of parents allow; compute those of children, [p, 2]."""
        own = memory.take(found.parent)
        threshold = self.threshold(found, own)
        feature = self.cells.design_feature.take(found.low)
        kept = np.flatnonzero(path.allows(own, feature, threshold))
        memories = path.children(own[kept], feature[kept], threshold[kept])
        return found.take(kept), np.stack(memories, axis=1)

    def in_order(self, rng: np.random.Generator) -> dict[str, np.ndarray] | None:
        """Return the grammar's fields, nodes by height; None if children do not sum to parents."""
        num_unsplit = self.size - sum(map(len, self._counts))
        first = _starts(np.concatenate([*self._counts, np.zeros(num_unsplit, np.int64)]))
        del self._table, self._room  # memory for the following steps
        members, child = self._members.array, self._child.array
        if not _is_verified(members, first, child, rng):
            return None
        height = _heights(members, first, child)
        order = np.argsort(height, kind="stable")
        moved = {"height": height[order], "members": members[order]}
        moved["first_production"] = _starts(np.diff(first)[order])
        del members, self._members
        if self.path is not None:
            moved["memory"] = self._memory.array[order]
        starts = unsigned(first)[order], unsigned(moved["first_production"])
        room = np.empty(len(child), np.int32)
        for name, growing in self._productions.items():
            values = growing.array
            moved[name] = room if room.dtype == values.dtype else np.empty_like(values)
            _move_values(values, *starts, moved[name])
            if moved[name] is room:
                room = values  # moved arrays leave room for the next
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        moved["left"], moved["right"] = room, np.empty_like(room)
        _move_children(unsigned(child), *starts, rank, moved["left"], moved["right"])
        return moved


def _explore(
    design: Design,
    rules: Rules,
    constraints: Constraints,
    each_cut: bool,
    max_subproblems: int,
    rng: np.random.Generator,
    keeps_productions: bool = True,
) -> tuple[_Exploration, np.ndarray]:
    """Find the subproblems by one choice of random keys; return the cell of each row, too."""
    codes, cell_of_row = np.unique(design.codes, axis=0, return_inverse=True)
    cell_of_row = cell_of_row.ravel().astype(np.int32)
    cells = Cells.of(
        design,
        codes,
        size=np.bincount(cell_of_row),
        key=rng.integers(1, 2**64, len(codes), dtype=np.uint64),
        allowed=constraints.allows(design.names),
        min_leaf=constraints.min_leaf,
        each_cut=each_cut,
    )
    path, refused = constraints.path_memory(design.names), constraints.refused_cuts(design)

    def threshold(found: Found, memory: np.ndarray) -> np.ndarray:
        if rules == "gaps":
            return gap_threshold(design, path, memory, found.low, found.high)
        return design.cut_threshold.take(found.cut)

    explored = _Exploration(cells, path, threshold, refused, rng, keeps_productions)
    level, start, max_depth = 0, 0, constraints.max_depth
    while start < explored.size and (max_depth is None or level < max_depth):
        stop = explored.size
        for begin in range(start, stop, explored.chunk):
            nodes = slice(begin, min(begin + explored.chunk, stop))
            if not explored.expand(nodes, max_subproblems):
                seen = (
                    f": {explored.size:,} were found after {level + 1} levels of splits on "
                    f"{design.num_rows:,} rows and {design.num_features} features"
                )
                raise TooManySubproblems(max_subproblems, seen, "fewer bins")
        level, start = level + 1, stop
    return explored, cell_of_row


def _compile(
    design: Design, rules: Rules, constraints: Constraints, *settings: Any, seed: int
) -> Grammar | None:
    """Compile with one choice of random keys; None if two sets of rows shared an identity."""
    rng = np.random.default_rng(seed)
    explored, cell_of_row = _explore(design, rules, constraints, *settings, rng=rng)
    arrays: Any = explored.in_order(rng)
    if arrays is None:
        return None
    grammar = Grammar(
        design=design,
        rules=rules,
        constraints=constraints,
        cell_of_row=cell_of_row,
        num_rows=_num_rows(arrays["members"], explored.cells.size),
        **dict.fromkeys(("missing_left", "cut", "memory")) | arrays,
    )
    path = explored.path
    return grammar if path is None or _is_remembered(grammar, path) else None


def _is_remembered(grammar: Grammar, path: PathMemory) -> bool:
    """Return whether the children of every production have the right memories."""
    memory: Any = grammar.memory
    left, right = path.children(
        memory.take(grammar.parent), grammar.feature, grammar.threshold_in_gap
    )
    is_left = (memory.take(grammar.left) == left).all()
    return bool(is_left and (memory.take(grammar.right) == right).all())


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return the position of the first production of each node, and one past the last of all."""
    return np.concatenate([[0], np.cumsum(counts)])


def _is_verified(members, first, child, rng) -> bool:
    """Return whether children sum to their parents under a second identity of the bitsets."""
    # Half words, because the leading bits of whole ones would leave few random bits in a product.
    halves = members.view(np.uint32)
    multipliers = rng.integers(0, 2**64, halves.shape[1], np.uint64)
    return _adds_up(halves, multipliers, unsigned(first), unsigned(child))


@numba.njit(cache=True, nogil=True)
def _adds_up(halves, multipliers, first, child):
    """Return whether sums of products of all productions' children are those of the parents."""
    check = np.zeros(len(halves), np.uint64)
    for node in range(len(halves)):
        for i in range(len(multipliers)):
            check[node] += halves[node, i] * multipliers[i]
    for node in range(len(halves)):
        for production in range(first[node], first[node + 1]):
            if check[child[production, 0]] + check[child[production, 1]] != check[node]:
                return False
    return True


def _heights(members, first, child) -> np.ndarray:
    """Return the height of every node, int16, settled in order of size."""
    few_bits = np.min_scalar_type(64 * members.shape[1])  # which NumPy sorts fast
    size = np.bitwise_count(members).sum(axis=1, dtype=few_bits)
    order = np.argsort(size, kind="stable").astype(np.uint32)
    height = np.zeros(len(members), np.int16)
    _settle_heights(order, unsigned(first), unsigned(child), height)
    return height


@numba.njit(cache=True, nogil=True)
def _settle_heights(order, first, child, height):
    """Write the heights of nodes, in an order that has children before parents."""
    for node in order:
        tallest = np.int16(-1)
        for production in range(first[node], first[node + 1]):
            for side in range(2):
                tallest = max(tallest, height[child[production, side]])
        height[node] = tallest + 1


@numba.njit(cache=True, nogil=True)
def _num_rows(members, size):
    """Return the rows in each node."""
    rows = np.zeros(len(members), np.int64)
    for node in range(len(members)):
        for word in range(members.shape[1]):
            bits = members[node, word]
            while bits != 0:
                rows[node] += size[np.uint64(64 * word) + trailing_zeros(bits)]
                bits &= bits - np.uint64(1)
    return rows


@numba.njit(cache=True, nogil=True)
def _move_values(values, first, moved_first, moved):
    """Move the values of productions: those of node i start at ``first[i]``."""
    for node in range(len(first)):
        shift = first[node] - moved_first[node]
        for production in range(moved_first[node], moved_first[node + 1]):
            moved[production] = values[production + shift]


@numba.njit(cache=True, nogil=True)
def _move_children(child, first, moved_first, rank, left, right):
    """Move the children of productions, and renumber them by their ranks."""
    for node in range(len(first)):
        shift = first[node] - moved_first[node]
        for production in range(moved_first[node], moved_first[node + 1]):
            left[production] = rank[child[production + shift, 0]]
            right[production] = rank[child[production + shift, 1]]


_cache: OrderedDict[bytes, Grammar] = OrderedDict()
_CACHE_PRODUCTIONS = 40_000_000


def compile_grammar(
    design: Design,
    *,
    rules: Rules = "gaps",
    constraints: Constraints | None = None,
    each_cut: bool = False,
    max_subproblems: int = 500_000,
    keep: bool = True,
) -> Grammar:
    """Compile the grammar of a design, or return it from the cache of recent ones.

    Parameters
    ----------
    design
        Coded rows; only codes, weights and cut points matter.
    rules
        "gaps" or "cuts" (see `bdtppl.models.prior_kinds.TreePrior`).
    constraints
        Limits on the trees.
    each_cut
        Whether every cut of a gap is a separate production, with ``rules="cuts"``; always so if
        boxes are kept together or cuts excluded. Priors that weight cuts of one gap differently
        need it.
    max_subproblems
        Budget; the memory needed is about 16 bytes times productions.
    keep
        Whether to store the grammar in the cache.

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
    constraints, each_cut = _settled(design, rules, constraints, each_cut)
    key = _fingerprint(design, (rules, constraints, each_cut))
    if key in _cache and _cache[key].num_subproblems <= max_subproblems:
        _cache.move_to_end(key)
        return _cache[key]
    settings = rules, constraints, each_cut, max_subproblems
    attempts = (_compile(design, *settings, seed=seed) for seed in range(100))
    grammar = next(filter(None, attempts))
    if keep:
        _cache[key] = grammar
    while len(_cache) > 1 and sum(g.num_productions for g in _cache.values()) > _CACHE_PRODUCTIONS:
        _cache.popitem(last=False)
    return grammar


def count_subproblems(
    design: Design,
    *,
    rules: Rules = "gaps",
    constraints: Constraints | None = None,
    each_cut: bool = False,
    max_subproblems: int = 500_000,
) -> int:
    """Count the subproblems of a design; without productions, which take most of the memory.

    Parameters
    ----------
    design, rules, constraints, each_cut, max_subproblems
        As for `compile_grammar`, which has the same errors.
    """
    constraints, each_cut = _settled(design, rules, constraints, each_cut)
    # The cuts of a gap split rows alike, and only paths and exclusions distinguish them.
    each_cut = each_cut and bool(constraints.looks_at_path or constraints.refused)
    settings = rules, constraints, each_cut, max_subproblems
    rng = np.random.default_rng(0)
    return _explore(design, *settings, rng=rng, keeps_productions=False)[0].size


def _settled(
    design: Design, rules: Rules, constraints: Constraints | None, each_cut: bool
) -> tuple[Constraints, bool]:
    """Apply constraints to a design's cuts; return whether each cut of a gap is a production."""
    constraints = Constraints() if constraints is None else constraints
    constraints.require_free_leaves("The exact posterior")
    constraints = constraints.judged(design)
    tells_apart = each_cut or bool(constraints.keep_together or constraints.refused)
    return constraints, rules == "cuts" and tells_apart


def _fingerprint(design: Design, settings: tuple) -> bytes:
    digest = hashlib.sha256(repr((settings, design.names)).encode())
    for array in (design.codes, design.weights, design.num_codes, design.cut_threshold):
        digest.update(np.ascontiguousarray(array).tobytes() + str(array.shape).encode())
    columns = design.is_indicator, design.column
    for array in (design.matrix, design.low_edge, design.high_edge, *columns):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
