"""Grow a tree greedily, all nodes of a level at a time (Nuti et al. 2021, Algorithm 3).

At every node the most probable partition is taken: stop, or the best rule if that is strictly
better. The tree's log probability is the sum of the log weights and leaf scores along it.
"""

from dataclasses import dataclass

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level, descend, root_level
from bdtppl.inference.greedy_modal.partitions import Best, best_rules, node_scores
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.weights import log_stops
from bdtppl.models.tree import Tree

__all__ = ["GreedyTree", "grow"]


@dataclass(frozen=True, eq=False)
class GreedyTree:
    """A grown tree; k slots, s statistics.

    Attributes
    ----------
    tree
        The tree.
    statistics
        float64 [k, s]; leaf statistics of the training rows in each slot.
    pseudo
        float64 [k, s]; statistics of rows that the slot's leaf prior has absorbed (smoothing).
    log_joint
        Log weights of stops and rules and log marginals of the leaves, summed.
    log_likelihood
        Log marginals of the leaves, summed.
    log_weight
        float64 [k]; log_stop in leaves, log_rule in splits.
    log_stop, leaf_score
        float64 [k]; log weight and leaf score of stopping in the slot.
    """

    tree: Tree
    statistics: np.ndarray
    pseudo: np.ndarray
    log_joint: float
    log_likelihood: float
    log_weight: np.ndarray
    log_stop: np.ndarray
    leaf_score: np.ndarray


def grow(problem: Problem, *, stop_pure: bool = False, root: Best | None = None) -> GreedyTree:
    """Grow the greedy modal tree.

    Parameters
    ----------
    problem
        Rows and model.
    stop_pure
        Whether nodes whose rows have one distinct target are never split.
    root
        Rule that the root splits by, as a `Best` of one node; default its best one, if any.
    """
    level = root_level(problem.columns, problem.smoothing)
    grown = _Grown(problem)
    slot = np.zeros(1, np.int64)
    while len(slot):
        leaf_score = node_scores(problem, level)
        may_split = np.ones(level.num_segments, bool)
        max_depth = problem.constraints.max_depth
        if max_depth is not None and level.depth >= max_depth:
            log_stop = log_stops(problem, level, np.zeros(level.num_segments, np.int64))
            grown.record(slot, level, log_stop, leaf_score, None, np.zeros(len(slot), bool))
            break
        given = root if level.depth == 0 else None
        best = best_rules(problem, level) if given is None else given
        log_stop = log_stops(problem, level, best.num_features)
        if stop_pure:
            may_split = _is_mixed(problem, level)
        is_split = may_split & ((given is not None) | (best.score > log_stop + leaf_score))
        slot_of_children = grown.record(slot, level, log_stop, leaf_score, best, is_split)
        splits = np.flatnonzero(is_split)
        if not len(splits):
            break
        level = descend(
            problem.columns,
            level,
            splits,
            best.feature[splits],
            best.low[splits],
            best.missing_left[splits],
            problem.smoothing,
        )
        slot = slot_of_children
    return grown.finish()


def _is_mixed(problem: Problem, level: Level) -> np.ndarray:
    """Whether a node's rows have more than one distinct target, bool [K]."""
    if not level.rows:
        return np.zeros(level.num_segments, bool)
    statistics = problem.columns.statistics
    weights = 1 if problem.columns.weights is None else problem.columns.weights
    rows, start = level.rows[0], level.start[:-1]
    mixed = np.zeros(level.num_segments, bool)
    for each in statistics:
        values = (each / weights).take(rows)
        mixed |= np.maximum.reduceat(values, start) > np.minimum.reduceat(values, start)
    return mixed


class _Grown:
    """Collects nodes level by level."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.num_slots = 1
        self.levels: list[dict[str, np.ndarray]] = []

    def record(
        self,
        slot: np.ndarray,
        level: Level,
        log_stop: np.ndarray,
        leaf_score: np.ndarray,
        best: Best | None,
        is_split: np.ndarray,
    ) -> np.ndarray:
        """Settle the nodes of a level; returns slots of the children, left ones first."""
        num_splits = int(is_split.sum())
        order = np.arange(num_splits)
        left = self.num_slots + 2 * order
        kept: dict[str, np.ndarray] = {n: np.zeros(len(slot), np.int64) for n in ("left", "right")}
        kept["left"][is_split], kept["right"][is_split] = left, left + 1
        kept["feature"] = np.full(len(slot), -1)
        kept["threshold"] = np.full(len(slot), np.nan)
        kept["missing_left"] = np.zeros(len(slot), bool)
        kept["log_weight"] = log_stop.copy()
        if best is not None:
            design = self.problem.design
            feature = self.problem.columns.features[best.feature[is_split]]
            low, high = (design.offset[feature] + v[is_split] for v in (best.low, best.high))
            kept["feature"][is_split] = feature
            in_gap = self.problem.prior.rules == "gaps"
            kept["threshold"][is_split] = (
                design.gap_threshold(low, high) if in_gap else design.cut_threshold[low + 1]
            )
            kept["missing_left"][is_split] = best.missing_left[is_split]
            kept["log_weight"][is_split] = best.log_rule[is_split]
        kept |= {"slot": slot, "log_stop": log_stop, "leaf_score": leaf_score}
        kept["statistics"] = level.statistics.astype(np.float64)
        absorbed = np.zeros(level.statistics.shape) if level.pseudo is None else level.pseudo
        kept["pseudo"] = absorbed
        self.levels.append(kept)
        self.num_slots += 2 * num_splits
        return np.concatenate([left, left + 1])

    def finish(self) -> GreedyTree:
        """Put all nodes into slots."""
        joined = {name: np.concatenate([lv[name] for lv in self.levels]) for name in self.levels[0]}
        order = np.argsort(joined.pop("slot"))
        node = {name: values[order] for name, values in joined.items()}
        tree = Tree(
            feature=node["feature"].astype(np.int32),
            threshold=node["threshold"],
            missing_left=node["missing_left"],
            left=node["left"].astype(np.int32),
            right=node["right"].astype(np.int32),
            num_nodes=np.asarray(len(order), np.int32),
        )
        log_likelihood = float(node["leaf_score"][tree.is_leaf].sum())
        return GreedyTree(
            tree,
            node["statistics"],
            node["pseudo"],
            float(node["log_weight"].sum()) + log_likelihood,
            log_likelihood,
            node["log_weight"],
            node["log_stop"],
            node["leaf_score"],
        )
