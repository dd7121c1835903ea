"""Trees of a recursion over boxes: independent draws, and the most probable ones."""

from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from bdtppl.inference.boxes.recursion import Expansion, Recursion
from bdtppl.inference.boxes.tables import PriorTables
from bdtppl.inference.hard.ranking import STOP, Candidate, ranked_trees
from bdtppl.inference.hard.shapes import heap_order
from bdtppl.models.data.splits import Split, split_number
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import Leaf

_BOXES_KEPT = 1 << 12


class WrittenTrees(NamedTuple):
    """Trees with the statistics of their slots; b trees of k slots.

    Attributes
    ----------
    trees
        `Tree` batch [b].
    statistics
        float64 [b, k, s].
    log_joint, log_likelihood
        float64 [b]; sum of log weights and leaf scores, and leaf scores alone.
    num_cuts
        float64 [b]; number of trees that differ only by cuts inside gaps.
    """

    trees: Tree
    statistics: np.ndarray
    log_joint: np.ndarray
    log_likelihood: np.ndarray
    num_cuts: np.ndarray


class _Pages:
    """Trees written level by level: slot i has the children 2 i + 1 and 2 i + 2."""

    def __init__(self, recursion: Recursion, num_trees: int):
        self.recursion = recursion
        slots = 2 ** (recursion.space.num_levels + 1) - 1
        self.splits = Tree.unused(np.ones(num_trees), slots).splits
        self.statistics = np.zeros((num_trees, slots, recursion.histograms.num_values))
        self.log_joint, self.log_likelihood = np.zeros((2, num_trees))
        self.num_cuts = np.ones(num_trees)

    def stop(self, trees: np.ndarray, slots: np.ndarray, box: Expansion) -> None:
        """Write leaves."""
        self.statistics[trees, slots] = box.statistics
        np.add.at(self.log_joint, trees, box.log_stop + box.score)
        np.add.at(self.log_likelihood, trees, box.score)

    def split(
        self, trees: np.ndarray, slots: np.ndarray, box: Expansion, entries: np.ndarray, cuts
    ) -> None:
        """Write splits, each by an entry of the box's rules and one of its cuts."""
        rules, space, design = box.rules, self.recursion.space, self.recursion.design
        feature = space.features[rules.feature[entries]]
        position = design.offset[feature] + cuts - 1
        number = split_number(position, rules.missing_left[entries])
        splits = Split.at_nodes(number, feature, design.cut_threshold[position + 1])
        for own, values in zip(self.splits, splits, strict=True):
            own[trees, slots] = values
        self.statistics[trees, slots] = box.statistics
        left = box.left_statistics[entries]
        for side, values in ((1, left), (2, box.statistics - left)):
            self.statistics[trees, 2 * slots + side] = values
        np.add.at(self.log_joint, trees, rules.rule[entries])
        np.multiply.at(self.num_cuts, trees, rules.num_cuts[entries])

    def stop_below(
        self, trees: np.ndarray, box: Expansion, entries: np.ndarray, log_stop: float
    ) -> None:
        """Count both leaves below splits of the last level, each with a log weight of stopping."""
        below = box.rules.below[entries]
        np.add.at(self.log_joint, trees, below)
        np.add.at(self.log_likelihood, trees, below - 2 * log_stop)

    def written(self, num_skipped: int) -> WrittenTrees:
        """Compact the used slots; the first statistics are omitted."""
        order = heap_order(self.splits.feature[:, : self.splits.feature.shape[1] // 2] >= 0)
        trees = Tree.breadth_first(*(np.take_along_axis(own, order, axis=1) for own in self.splits))
        kept = self.statistics[..., num_skipped:]
        statistics = np.take_along_axis(kept, order[..., None], axis=1)
        return WrittenTrees(trees, statistics, self.log_joint, self.log_likelihood, self.num_cuts)


def _below(log_q: list[np.ndarray], level: int) -> np.ndarray:
    return log_q[level + 1] if level + 1 < len(log_q) else np.zeros(1)


def draw_trees(
    recursion: Recursion,
    prior: list[PriorTables],
    leaf: Leaf,
    log_q: list[np.ndarray],
    uniform: np.ndarray,
    num_skipped: int = 0,
) -> WrittenTrees:
    """Draw independent trees, level by level; a box shared by many trees is opened once.

    Parameters
    ----------
    recursion, prior, leaf, log_q
        The sums over trees (`Recursion.inside`).
    uniform
        float64 [b, 2^levels - 1, 2]; random numbers in [0, 1) for the nodes of b trees: for the
        rule, and for the cut in its gap.
    num_skipped
        Number of first statistics that do not belong to the leaf family.
    """
    num_trees, num_levels = len(uniform), len(log_q)
    pages = _Pages(recursion, num_trees)
    trees, slots = np.arange(num_trees), np.zeros(num_trees, np.int64)
    boxes = np.zeros(num_trees, np.int64)
    for level in range(num_levels):
        if not len(boxes):
            break
        order = np.argsort(boxes, kind="stable")
        trees, slots, boxes = trees[order], slots[order], boxes[order]
        numbers, first = np.unique(boxes, return_index=True)
        parts = np.split(np.arange(len(boxes)), first[1:])
        opened = recursion.expand(prior[level], leaf, _below(log_q, level), level, numbers)
        deeper = []
        for box, part in zip(opened, parts, strict=True):
            own_trees, own_slots = trees[part], slots[part]
            log_weights = np.append(box.log_stop + box.score, box.rules.split + box.rules.below)
            cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
            drawn = uniform[own_trees, own_slots]
            chosen = np.searchsorted(cumulative, drawn[:, 0] * cumulative[-1], side="right")
            chosen = np.minimum(chosen, len(cumulative) - 1) - 1
            is_leaf = chosen < 0
            pages.stop(own_trees[is_leaf], own_slots[is_leaf], box)
            own_trees, own_slots = own_trees[~is_leaf], own_slots[~is_leaf]
            entries, drawn = chosen[~is_leaf], drawn[~is_leaf, 1]
            pages.split(
                own_trees, own_slots, box, entries, _pick_cuts(recursion, box, entries, drawn)
            )
            if level == num_levels - 1:
                pages.stop_below(own_trees, box, entries, prior[level].stop_below)
                continue
            for side, children in ((1, box.rules.left), (2, box.rules.right)):
                deeper.append((own_trees, 2 * own_slots + side, children[entries]))
        if deeper:
            trees, slots, boxes = (np.concatenate(arrays) for arrays in zip(*deeper, strict=True))
    return pages.written(num_skipped)


def _pick_cuts(
    recursion: Recursion, box: Expansion, entries: np.ndarray, uniform: np.ndarray | float
) -> np.ndarray:
    """Choose a cut in the gap of each entry: a random one, or that nearest to the middle."""
    rules = box.rules
    if recursion.grid.each_cut:
        return rules.low[entries] + 1 + (uniform * rules.num_cuts[entries]).astype(np.int64)
    return recursion.middle[rules.feature[entries], rules.low[entries], rules.high[entries]]


_BoxAtLevel = tuple[int, int]  # level and number of the box


class _BoxChoices:
    """Choices of boxes, given the best trees below them."""

    def __init__(self, recursion, prior, leaf, log_best, counts_partitions: bool):
        self.recursion, self.prior, self.leaf, self.log_best = recursion, prior, leaf, log_best
        self.counts_partitions = counts_partitions
        self.opened = lru_cache(_BOXES_KEPT)(self._opened)

    def _opened(self, node: _BoxAtLevel) -> Expansion:
        level, number = node
        below = _below(self.log_best, level)
        return next(self.recursion.expand(self.prior[level], self.leaf, below, level, [number]))

    def children(self, node: _BoxAtLevel, choice: int) -> tuple[_BoxAtLevel, _BoxAtLevel]:
        below = node[0] + 1
        if below == len(self.log_best):
            return (below, -1), (below, -1)
        rules = self.opened(node).rules
        return (below, int(rules.left[choice])), (below, int(rules.right[choice]))

    def candidates(self, node: _BoxAtLevel) -> list[Candidate]:
        if node[0] == len(self.log_best):  # a leaf, which the rule above has counted
            return [Candidate(0.0, STOP)]
        box = self.opened(node)
        rules = box.rules
        entries = np.arange(len(rules.rule))
        if self.counts_partitions:
            entries = np.sort(np.unique(rules.key, return_index=True)[1])
        found = rules.rule + rules.below
        listed = [Candidate(float(found[j]), j) for j in entries.tolist()]
        return [Candidate(float(box.log_stop + box.score), STOP), *listed]


def rank_trees(
    recursion: Recursion,
    prior: list[PriorTables],
    leaf: Leaf,
    log_best: list[np.ndarray],
    k: int,
    *,
    counts_partitions: bool,
    num_skipped: int = 0,
) -> WrittenTrees:
    """List the k trees of greatest log joint.

    Trees that differ by equivalent rules are one tree under a prior that counts partitions, with
    the first of these rules. Trees that differ by the cut inside a gap are one entry.

    Parameters
    ----------
    recursion, prior, leaf, log_best
        The best trees (`Recursion.inside` with ``is_max``).
    k
        Number of trees, at most.
    counts_partitions
        Whether the prior does.
    num_skipped
        Number of first statistics that do not belong to the leaf family.
    """
    choices = _BoxChoices(recursion, prior, leaf, log_best, counts_partitions)
    best = list(islice(ranked_trees(choices, (0, 0)), k))
    pages = _Pages(recursion, len(best))
    for tree, (_, made) in enumerate(best):
        slots = [0]
        for slot, (node, choice) in zip(slots, made, strict=False):  # grows as splits are found
            trees, at = np.array([tree]), np.array([slot])
            if node[0] == len(log_best):
                continue
            box = choices.opened(node)
            if choice == STOP:
                pages.stop(trees, at, box)
                continue
            entries = np.array([choice])
            pages.split(trees, at, box, entries, _pick_cuts(recursion, box, entries, 0.5))
            slots += [2 * slot + 1, 2 * slot + 2]
            if node[0] == len(log_best) - 1:
                pages.stop_below(trees, box, entries, prior[-1].stop_below)
    return pages.written(num_skipped)
