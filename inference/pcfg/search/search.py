"""An anytime search for trees of any depth, with certified bounds.

The chart of `bdtppl.inference.pcfg` contains every set of rows that a tree can meet. If there are
too many, this search makes the sets on demand, the most promising ones first, and bounds the rest.
At any time it has an interval for the log of the sum over all trees, and one for the best tree. It
ends when these are closed, or at a limit of time or memory.

References
----------
Sullivan, Tiwari and Thrun 2024, MAPTree: Beating "Optimal" Decision Trees with Bayesian Decision
Trees (AO* over sets of rows). Bounds of the sum, and the charges for splits, are new here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bdtppl.inference.compiling import Stopwatch
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.pcfg.expansion import Cells
from bdtppl.inference.pcfg.grammar import gap_threshold
from bdtppl.inference.pcfg.search.bounds import score_counts, weight_tables
from bdtppl.inference.pcfg.search.counting import (
    CellFacts,
    FoundRules,
    bit_planes,
    find_rules,
    least_apart,
)
from bdtppl.inference.pcfg.search.graph import Batch, Graph, copy_members, derive
from bdtppl.inference.pcfg.search.weighing import Fragment, weigh_nodes
from bdtppl.models.arrays.bitsets import pack, unpack
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.leaf_scores import has_whole_counts, leaf_scorer
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import CountTable
from bdtppl.models.prior_kinds import require_weighs, weighs_each_cut, weight_bounds
from bdtppl.models.priors import GreedyPartition
from bdtppl.models.row_statistics import row_statistics

Goal = Literal["best", "sum"]

_KEPT = 16  # rules of a node at its first expansion
_FEWEST = 64  # nodes expanded at once
_GROWTH = 0.2  # nodes expanded at once, relative to those expanded so far
_HOPES = (0.01, 0.05, 0.3)  # shares of the way from its lower to its upper bound that a node may go
_HOPEFUL = 0.05  # share of the nodes expanded at once, for each of these
_BATCH_RULES = 1 << 17
_MOST_CUTS = 2048  # of all features, by which cells are compared
_MOST_COMPARED = 4096  # cells, each compared with each
_CLOSED, _CLOSED_AT_MOST = 1e-10, 1e-8  # width of an interval relative to its ends; nats


class Interval(NamedTuple):
    """A certified interval.

    Attributes
    ----------
    low, high
        Its ends.
    """

    low: float
    high: float

    @property
    def gap(self) -> float:
        """Its width."""
        return self.high - self.low

    @property
    def is_closed(self) -> bool:
        """Return whether it is as narrow as rounding allows."""
        size = 1 + abs(self.low)
        rounding = 64 * np.finfo(float).eps * size
        return self.low > -np.inf and self.gap <= max(
            rounding, min(_CLOSED * size, _CLOSED_AT_MOST)
        )

    def __str__(self) -> str:
        return f"[{self.low:.4f}, {self.high:.4f}]"


class TreeSearch:
    """A search over the trees of a model.

    Parameters
    ----------
    model
        The model: any node-wise prior that bounds its weights, any leaf family that bounds its
        marginals, and all constraints that `bdtppl.inference.pcfg.compiler` supports.
    goal
        "best" for the best tree alone; "sum" also for the sum over all trees.
    seed
        Seed of the hashes that identify sets of rows. At ten million sets, two have the same hash
        with a probability below 1e-5.

    Raises
    ------
    ValueError, TypeError
        If the prior or the leaf family has no bounds, or a chart does not support the constraints.
    """

    def __init__(self, model: TreeModel, goal: Goal = "best", seed: int = 0):
        require_weighs(model.prior, "A search", "nodes")
        model.constraints.require_free_leaves("A search")
        self.model, self.goal = model, goal
        self.design: Design = model.design
        self.prior = model.prior.resolve(self.design)
        self.constraints: Constraints = model.constraints.judged(self.design)
        limits, names = self.constraints, self.design.names
        self.path = limits.path_memory(names)
        refused = limits.refused_cuts(self.design)
        self._refused = refused if refused.any() else None
        rng = np.random.default_rng(seed)
        self._set_cells(limits.allows(names), rng)
        number = self.design.num_columns
        if isinstance(self.prior, GreedyPartition) and self.prior.num_features < number:
            raise ValueError(
                f"The prior shares its weight among {self.prior.num_features} features, and the "
                f"table has {number}: set num_features=None."
            )
        self.tables = weight_tables(self.prior, limits, self.cells, self._log_least())
        num_bounds = 1 if goal == "best" else 2 if self.prior.is_normalised else 3
        self._most_likely = float(self._scores(self.facts.statistics.sum(axis=0)[None])[2, 0])
        root = pack(np.ones((1, len(self.cells.size)), bool))[0]
        self.graph = Graph(
            root,
            len(self.cells.size),
            num_bounds,
            self.tables,
            self.prior.depends_on_depth or limits.max_depth is not None,
            None if self.path is None else int(self.path.start),
        )
        self.num_expansions = 0
        self._todo = np.zeros(1, np.int32)
        self._room = FoundRules.room(0, 0)

    def _set_cells(self, allowed: np.ndarray, rng: np.random.Generator) -> None:
        """Tabulate the cells: rows that are equal in all features that rules may use."""
        design, limits = self.design, self.constraints
        # Features without rules separate no rows, such as a column of one value with some missing.
        allowed = allowed & [len(np.unique(own[own >= 0])) > 1 for own in design.codes.T]
        codes = np.where(allowed, design.codes, 0)
        codes, cell_of_row = np.unique(codes, axis=0, return_inverse=True)
        order = rng.permutation(len(codes))  # the first cells of a set are arbitrary
        codes, cell_of_row = codes[order], np.argsort(order)[cell_of_row.ravel()]
        self.cell_of_row = cell_of_row.astype(np.int32)
        size = np.bincount(self.cell_of_row)
        each_cut = weighs_each_cut(self.prior) or bool(limits.keep_together or limits.refused)
        self.cells = cells = Cells.of(
            design,
            codes,
            size=size,
            key=np.zeros(len(codes), np.uint64),
            allowed=allowed,
            min_leaf=limits.min_leaf,
            each_cut=self.prior.rules == "cuts" and each_cut,
        )
        leaf = self.model.leaf
        rows = row_statistics(leaf, self.model.y, design.weights)
        columns = [np.bincount(self.cell_of_row, own, minlength=len(codes)) for own in rows.T]
        # The last column counts rows.
        statistics = np.stack([*columns, size], axis=1)
        usable = allowed & np.isin(np.arange(len(allowed)), design.feature_of_code[cells.code])
        shared_by = weight_bounds(self.prior, np.zeros(1)).shared_by
        codes = np.ascontiguousarray(codes[:, usable]).astype(np.int32)
        is_simple = not (limits.min_leaf > 1 or self.path is not None or self._refused is not None)
        is_simple &= not cells.has_missing.any()
        apart, cuts = 0, codes.max(axis=0, initial=0)
        if shared_by is not None and is_simple:
            apart = 2 if shared_by == "rules" and self.prior.rules == "cuts" else 1
        if apart == 1 and (cuts < 2).all():
            apart = 2  # one cut per feature
        own = statistics[:, :-1]
        is_class = leaf.task == "classification"
        bits = np.zeros((len(codes), 0), bool)
        classes = np.zeros((0, self._num_words(codes)), np.uint64)
        if is_simple and is_class and own.shape[1] == 2 and cuts.sum() <= _MOST_CUTS:
            each = (codes[:, j, None] > np.arange(number) for j, number in enumerate(cuts))
            bits = np.concatenate([bits, *each], axis=1)
            classes = pack(own.T > 0)
        self.facts = CellFacts(
            statistics,
            bit_planes(statistics),
            codes,
            pack(bits),
            self._hash_keys(rng, self._num_words(codes)),
            classes,
            apart,
            self.prior.counts_partitions,
            is_class and bool((own.sum(axis=1) == 1).all() and (size == 1).all()),
        )
        self._score = leaf_scorer(leaf, design.total_weight, is_whole=has_whole_counts(leaf, own))

    @staticmethod
    def _hash_keys(rng: np.random.Generator, num_words: int) -> np.ndarray:
        keys = rng.integers(0, 2**64 - 1, (num_words, 8, 256), np.uint64, endpoint=True)
        keys[..., 0] = 0
        return keys

    @staticmethod
    def _num_words(codes: np.ndarray) -> int:
        return -(-len(codes) // 64)

    def _log_least(self) -> float:
        """Return the log of the fewest rules of a set with two classes."""
        facts = self.facts
        if not isinstance(self._score, CountTable):  # only there scores reveal which sets are pure
            return 0.0
        if facts.apart != 2 or not len(facts.classes) or len(facts.codes) > _MOST_COMPARED:
            return 0.0
        return float(np.log(max(least_apart(facts), 1)))

    # Bounds.

    def _interval(self, kind: int) -> Interval:
        nodes = self.graph.nodes
        return Interval(float(nodes.low[kind, 0]), float(nodes.high[kind, 0]))

    @property
    def best(self) -> Interval:
        """Interval of the log joint of the best tree, as the prior counts trees."""
        return self._interval(0)

    @property
    def log_partition(self) -> Interval:
        """Interval of the log of the sum over trees of prior weight times likelihood."""
        return self._interval(1)

    @property
    def log_prior_normaliser(self) -> Interval:
        """Interval of the log of the sum over trees of prior weights."""
        return Interval(0.0, 0.0) if self.prior.is_normalised else self._interval(2)

    @property
    def log_evidence(self) -> Interval:
        """Interval of the log evidence under the normalised prior.

        It is a mean of likelihoods, so it is at most the greatest likelihood of any leaves.
        """
        total, of_prior = self.log_partition, self.log_prior_normaliser
        low, high = total.low - of_prior.high, total.high - of_prior.low
        return Interval(low, max(low, min(high, self._most_likely)))

    @property
    def is_closed(self) -> bool:
        """Whether the search has reached its goal."""
        if self.goal == "best":
            return self.best.is_closed
        return all(self._interval(k).is_closed for k in range(self.graph.num_bounds))

    @property
    def has_rule(self) -> bool:
        """Whether some rule may make a better tree, or a sum; known after the first step."""
        nodes = self.graph.nodes
        return bool(nodes.count[0]) or nodes.rest[0, 0] > -np.inf

    # The search.

    def run(
        self,
        seconds: float = np.inf,
        num_bytes: float = np.inf,
        num_expansions: float = np.inf,
        on_step: Callable[["TreeSearch"], Any] | None = None,
    ) -> "TreeSearch":
        """Search until the goal or a limit is reached; may be called again to continue.

        Parameters
        ----------
        seconds
            Seconds of this call, without compilation.
        num_bytes
            Memory limit of the search, in bytes.
        num_expansions
            Limit of expanded nodes in total.
        on_step
            Called after every step.
        """
        watch = Stopwatch()
        while len(self._todo):
            self._step(watch, seconds)
            if on_step is not None:
                on_step(self)
            if (
                watch.seconds >= seconds
                or self.num_expansions >= num_expansions
                or 2.5 * self.graph.num_bytes >= num_bytes  # growing arrays are copied
            ):
                break
        return self

    def _step(self, watch: Stopwatch, seconds: float) -> None:
        """Expand the chosen nodes, update bounds, and choose the next nodes."""
        goals = range(self.graph.num_bounds)
        self._expand(self._todo, 0 if self.goal == "best" else 1, watch, seconds)
        order = self.graph.settle()
        chosen = [self._choose(order, k) for k in goals if not self._interval(k).is_closed]
        self._todo = np.unique(np.concatenate([np.empty(0), *chosen])).astype(np.int32)

    def _choose(self, order: np.ndarray, goal: int) -> np.ndarray:
        """Choose the nodes that the root's upper bound depends on most."""
        graph, nodes = self.graph, self.graph.nodes
        number = graph.num_nodes
        reach = graph.reach(order, goal)
        low, high = nodes.low[goal, :number], nodes.high[goal, :number]
        fresh = np.flatnonzero((nodes.place[:number] < 0) & (high > low) & (reach > -np.inf))
        known = order[(nodes.rest[goal, order] > -np.inf) & (reach[order] > -np.inf)]
        most = max(_FEWEST, int(_GROWTH * self.num_expansions / graph.num_bounds))
        if goal > 0:
            of_fresh = reach[fresh] + np.log(-np.expm1(low[fresh] - high[fresh]))
            of_known = reach[known] + nodes.rest[goal, known] - high[known]
            return _greatest(np.append(fresh, known), np.append(of_fresh, of_known), most)
        of_fresh, of_known = reach[fresh] + high[fresh], reach[known] + nodes.rest[0, known]
        is_open = of_fresh > low[0]
        fresh, of_fresh = fresh[is_open], of_fresh[is_open]
        known, of_known = known[of_known > low[0]], of_known[of_known > low[0]]
        chosen = _greatest(np.append(fresh, known), np.append(of_fresh, of_known), most)
        # Some where a better tree may be near, because its lower bound excludes more.
        reach = graph.reach_known(order)[fresh]
        for share in _HOPES:
            with np.errstate(invalid="ignore"):  # of lower bounds that are -inf
                hope = reach + low[fresh] + share * (high[fresh] - low[fresh])
            hope = np.where(np.isnan(hope), -np.inf, hope)
            chosen = np.append(chosen, _greatest(fresh, hope, 1 + int(_HOPEFUL * most)))
        return chosen

    @in_float64
    def _expand(self, chosen: np.ndarray, goal: int, watch: Stopwatch, seconds: float) -> None:
        graph = self.graph
        per_node = max(1, int(self.cells.num_cuts @ (1 + self.cells.has_missing)))
        size = max(1, _BATCH_RULES // per_node)
        if len(self._room.node) < min(size, len(chosen)) * per_node:
            room = min(size, 2 * len(chosen)) * per_node
            self._room = FoundRules.room(room, self.facts.statistics.shape[1])
        for start in range(0, len(chosen), size):
            some = chosen[start : start + size]
            graph.make_room(0, 0, len(some))
            graph.num_expanded = copy_members(
                some, graph.num_expanded, graph.nodes, graph.members, self.cells
            )
            batch = self._evaluate(some)
            graph.insert(batch, self.cells, self.facts, _KEPT, goal)
            self.num_expansions += len(some)
            if watch.seconds >= seconds:
                break  # remaining nodes are chosen again, if they are still promising

    def _evaluate(self, chosen: np.ndarray) -> Batch:
        """Find and score all rules of nodes, with prior weights."""
        graph, facts = self.graph, self.facts
        nodes = graph.nodes
        members = graph.members[nodes.place[chosen]]
        totals = np.empty((len(chosen), facts.statistics.shape[1]))
        found = self._room.take(slice(find_rules(members, self.cells, facts, self._room, totals)))
        level = nodes.level[chosen]
        memory = None if self.path is None else nodes.memory[chosen]
        found, memories = self._allowed(found, totals, level, memory)
        fragment = self._fragment(members, memory, found, totals)
        if self.prior.counts_partitions and not fragment.is_first_of_partition.all():
            kept = np.flatnonzero(fragment.is_first_of_partition)
            found = found.take(kept)  # constraints on the path exclude priors that count partitions
            fragment = self._fragment(members, memory, found, totals)
        log_stop, log_rule, log_split = weigh_nodes(
            fragment, self.prior, level, wants_split=graph.num_bounds > 1
        )
        if self.prior.counts_partitions:  # each remaining rule represents its partition
            log_split = log_rule
        left = found.left
        right = totals[found.node] - left
        sides = np.concatenate([left, right, totals])
        score = self._scores(sides)
        cut = 2 * len(left)
        stop = np.empty((graph.num_bounds, len(chosen)))
        stop[:2] = log_stop + score[0, cut:]
        if graph.num_bounds > 2:
            stop[2] = log_stop
        return Batch(
            chosen,
            fragment.first_production,
            stop,
            found,
            log_rule,
            log_split,
            np.ascontiguousarray(score[:, :cut].reshape(3, 2, -1)),  # one compiled version
            memories,
        )

    def _scores(self, statistics: np.ndarray) -> np.ndarray:
        """Return log marginals of sets, and bounds for two leaves and for any number, [3, m]."""
        own = np.ascontiguousarray(statistics[:, :-1])  # one compiled version
        if isinstance(self._score, CountTable):
            return score_counts(own, np.stack(self._score.each), self._score.total)
        score = self.log_marginals(own)
        bound = np.maximum(np.asarray(self.model.leaf.log_marginal_bound(own), float), score)
        return np.stack([score, bound, bound])

    def log_marginals(self, statistics: np.ndarray) -> np.ndarray:
        """Compute log marginals of sets of rows, float64 [m], from their statistics [m, s]."""
        if isinstance(self._score, CountTable):
            statistics = statistics.astype(np.int64)
        return np.asarray(self._score(list(statistics.T)))

    def _allowed(self, found: FoundRules, totals, level, memory) -> tuple[FoundRules, np.ndarray]:
        """Keep the rules that constraints allow; memories of children uint64 [2, p] or [2, 0]."""
        limits, design = self.constraints, self.design
        is_kept = np.ones(len(found.node), bool)
        if limits.min_leaf > 1:
            rows = found.left[:, -1]
            is_kept &= np.minimum(rows, totals[found.node, -1] - rows) >= limits.min_leaf
        if self._refused is not None:
            is_kept &= ~self._refused[found.cut]
        if limits.max_depth is not None:
            is_kept &= (level < limits.max_depth)[found.node]
        if not is_kept.all():
            found = found.take(np.flatnonzero(is_kept))
        if self.path is None:
            return found, np.empty((2, 0), np.uint64)
        own, code = memory[found.node], self.cells.code.astype(np.int32)
        low, high = code[found.low], code[found.high]
        if self.prior.rules == "gaps":
            threshold = gap_threshold(design, self.path, own, low, high)
        else:
            threshold = design.cut_threshold.take(found.cut)
        feature = design.feature_of_code.take(low)
        kept = np.flatnonzero(self.path.allows(own, feature, threshold))
        memories = self.path.children(own[kept], feature[kept], threshold[kept])
        return found.take(kept), np.stack(memories)

    def _fragment(self, members, memory, found: FoundRules, totals) -> Fragment:
        code = self.cells.code.astype(np.int32)
        first = np.searchsorted(found.node, np.arange(len(members) + 1))
        nothing = np.empty(0, np.int32)
        low, high = code[found.low], code[found.high]
        return Fragment(
            design=self.design,
            rules=self.prior.rules,
            constraints=self.constraints,
            cell_of_row=self.cell_of_row,
            members=members,
            height=np.zeros(len(members), np.int16),
            first_production=first,
            left=low,  # children have no numbers here; only the length is used
            right=nothing,
            low=low,
            high=high,
            missing_left=found.missing_left if self.cells.has_missing.any() else None,
            cut=found.cut if self.cells.each_cut else None,
            memory=memory,
            num_rows=totals[:, -1].astype(np.int64),
            rows_left=found.left[:, -1].astype(np.int64),
            part=found.part,
        )

    # Trees.

    def best_tree(self) -> RankedTrees:
        """Return the best tree found; its log joint is ``best.low``.

        Its probability, including trees that differ by cuts inside gaps, is relative to the
        enumerated trees, as for draws; NaN if the goal is not the sum over trees.
        """
        trees, statistics, log_joint, log_of_all = self._derived(0, 1, None)
        of_all = self.log_partition.low if self.goal == "sum" else np.nan
        return RankedTrees(trees, statistics, log_joint, np.exp(log_of_all - of_all))

    @property
    def total_variation(self) -> float:
        """Return a bound on the total variation distance between `sample` and the posterior."""
        return float(-np.expm1(self.log_partition.low - self.log_partition.high))

    def sample(self, rng: np.random.Generator, *, chains: int = 4, draws: int = 250) -> Posterior:
        """Draw trees i.i.d. from those that the search enumerated, by their joints.

        The draws are arranged in chains for diagnostics. Their log evidence is the lower bound.
        """
        if self.goal != "sum":
            raise ValueError("Drawing trees requires a search for the sum over trees: goal='sum'.")
        trees, statistics, log_joint, _ = self._derived(1, chains * draws, rng)
        of_slot = self.log_marginals(statistics.reshape(-1, statistics.shape[-1]))
        log_likelihood = np.where(trees.is_leaf, of_slot.reshape(statistics.shape[:2]), 0.0)
        return Posterior.of(
            replace(self.model, prior=self.prior, constraints=self.constraints),
            trees.reshape(chains, draws),
            statistics,
            log_evidence=self.log_evidence.low,
            log_evidence_se=0.0 if self.log_evidence.is_closed else np.nan,
            log_joint=log_joint,
            log_likelihood=log_likelihood.sum(axis=1),
        )

    def _derived(
        self, kind: int, number: int, rng: np.random.Generator | None
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray]:
        """Derive trees (see `derive`), with the statistics of their slots and their log joints.

        The last array is the log joint of all trees that differ by cuts inside gaps, or NaN.
        """
        graph, capacity = self.graph, 63
        uniform = np.zeros((number, 0))
        while True:
            shape = number, capacity
            node, rule, left = (np.full(shape, -1, np.int64) for _ in range(3))
            num_slots = np.empty(number, np.int64)
            if rng is not None:  # retried with the same numbers, else large trees are rare
                more = rng.random((number, capacity - uniform.shape[1]))
                uniform = np.hstack([uniform, more])
            if derive(graph.nodes, graph.rules, kind, uniform, node, rule, left, num_slots):
                break
            capacity = 2 * capacity + 1
        capacity = int(num_slots.max())
        node, rule, left = (array[:, :capacity] for array in (node, rule, left))
        trees = Tree.unused(num_slots, capacity)
        where = np.nonzero(rule >= 0)
        used = rule[where]
        rules, code = graph.rules, self.cells.code.astype(np.int32)
        low, high = code[rules.low[used]], code[rules.high[used]]
        trees.feature[where] = self.design.feature_of_code[low]
        if self.prior.rules == "gaps":
            memory = None if self.path is None else graph.nodes.memory[node[where]]
            trees.threshold[where] = gap_threshold(self.design, self.path, memory, low, high)
        else:
            cut = rules.cut[used]
            if not self.cells.each_cut:  # equivalent cuts of a gap are interchangeable
                cut = (low + 1 + high) // 2 if rng is None else rng.integers(low + 1, high + 1)
            trees.threshold[where] = self.design.cut_threshold.take(cut)
        trees.missing_left[where] = rules.missing_left[used]
        trees.left[where], trees.right[where] = left[where], left[where] + 1

        def summed(log_rule: np.ndarray, log_stop: np.ndarray) -> np.ndarray:
            terms = np.where(rule >= 0, log_rule[rule], log_stop[node])
            return np.where(node >= 0, terms, 0.0).sum(axis=1)

        log_joint = summed(rules.log_rule, graph.nodes.stop[0])
        log_of_all = np.full(number, np.nan)
        if self.goal == "sum":
            log_of_all = summed(rules.log_split, graph.nodes.stop[1])
        return trees, self._slot_statistics(rule, left, num_slots), log_joint, log_of_all

    def _slot_statistics(self, rule, left, num_slots) -> np.ndarray:
        """Return statistics of the training rows in the slots of derivations, float64 [m, k, s]."""
        own = self.facts.statistics[:, :-1]
        result = np.zeros((*rule.shape, own.shape[1]))
        cells, rules = self.cells, self.graph.rules
        num_cells = len(own)
        for i, number in enumerate(num_slots):
            inside = {0: np.ones(num_cells, bool)}
            for slot in range(number):
                members = inside.pop(slot)
                result[i, slot] = own[members].sum(axis=0)
                if (used := rule[i, slot]) < 0:
                    continue
                code = rules.low[used]
                goes_left = unpack(cells.at_or_below[code][None], num_cells)[0].astype(bool)
                if rules.missing_left[used]:
                    missing = cells.missing[cells.feature[code]]
                    goes_left |= unpack(missing[None], num_cells)[0].astype(bool)
                inside[left[i, slot]] = members & goes_left
                inside[left[i, slot] + 1] = members & ~goes_left
        return result


def _greatest(nodes: np.ndarray, value: np.ndarray, most: int) -> np.ndarray:
    """Return the nodes of the greatest values, up to a number; none of value -inf."""
    nodes, value = nodes[value > -np.inf], value[value > -np.inf]
    return nodes if len(nodes) <= most else nodes[np.argpartition(-value, most)[:most]]
