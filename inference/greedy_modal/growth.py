"""Grow a tree greedily, all nodes of a level at a time (Nuti et al. 2021, Algorithm 3).

Every node uses its most probable partition: it stops, or splits by the best rule if that is
strictly better. The tree's log probability is the sum of its log weights and leaf scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import jax
import numpy as np

from bdtppl.inference.greedy_modal.choices import NodeChoice, choose
from bdtppl.inference.greedy_modal.columns import Level, root_level
from bdtppl.inference.greedy_modal.hyperplanes import split
from bdtppl.inference.greedy_modal.partitions import Best
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import Leaf


@dataclass(frozen=True, eq=False)
class GreedyTree:
    """A grown tree; k slots, s statistics.

    Attributes
    ----------
    tree
        The tree; all hyperplanes have the feature number d until `numbered` assigns numbers.
    statistics
        float64 [k, s]; leaf statistics of the training rows in each slot.
    pseudo
        float64 [k, s]; statistics of rows absorbed by the slot's leaf prior (smoothing).
    log_joint
        Sum of log weights of stops and rules and log marginals of the leaves.
    log_likelihood
        Sum of log marginals of the leaves.
    log_weight
        float64 [k]; log_stop in leaves, log_rule in splits.
    log_stop, leaf_score
        float64 [k]; log weight and leaf score of stopping in the slot.
    hyperplane
        object [k]; the `Hyperplane` that splits the slot, or None.
    """

    tree: Tree
    statistics: np.ndarray
    pseudo: np.ndarray
    log_joint: float
    log_likelihood: float
    log_weight: np.ndarray
    log_stop: np.ndarray
    leaf_score: np.ndarray
    hyperplane: np.ndarray

    def gains(self, num_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Sum the gains of splits over stopping, by feature.

        Parameters
        ----------
        num_features
            Features d of the design.

        Returns
        -------
        log_likelihood, log_prior
            float64 [d], in nats; leaf scores of both sides minus the node's, and the rule's log
            weight minus that of stopping. Their sum is the paper's measure of a split's worth. The
            features of a hyperplane have shares in its gain (`Hyperplane.share`).
        """
        slot = np.flatnonzero(self.tree.feature >= 0)
        children = self.leaf_score[self.tree.left[slot]] + self.leaf_score[self.tree.right[slot]]
        log_likelihood = children - self.leaf_score[slot]
        log_prior = self.log_weight[slot] - self.log_stop[slot]
        feature, planes = self.tree.feature[slot], self.hyperplane[slot]
        is_single = feature < num_features

        def by_feature(gain: np.ndarray) -> np.ndarray:
            total = np.zeros(num_features)
            np.add.at(total, feature[is_single], gain[is_single])
            for i in np.flatnonzero(~is_single):
                total += gain[i] * planes[i].share
            return total

        return by_feature(log_likelihood), by_feature(log_prior)


def grow(problem: Problem, *, lookahead: int = 1, given: Sequence[Best] = ()) -> GreedyTree:
    """Grow the greedy modal tree.

    Parameters
    ----------
    problem
        Rows and model.
    lookahead
        Levels of splits by which a rule is scored.
    given
        Rules that the nodes of the first levels must use, in the order of their slots; a score of
        -inf makes a node a leaf.
    """
    level = root_level(problem.columns, problem.smoothing)
    grown = _Builder(problem)
    slot = np.zeros(1, np.int64)
    while len(slot):
        rules = given[level.depth] if level.depth < len(given) else None
        choice = choose(problem, level, lookahead, rules)
        slot = grown.record(slot, level, choice)
        splits = np.flatnonzero(choice.is_split)
        if not len(splits):
            break
        level = split(problem, level, splits, choice.best.at(splits))
    return grown.finish()


class _Builder:
    """Collects nodes level by level."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.num_slots = 1
        self.levels: list[dict[str, np.ndarray]] = []

    def record(self, slot: np.ndarray, level: Level, choice: NodeChoice) -> np.ndarray:
        """Record the nodes of a level; return slots of the children, left ones first."""
        best, is_split = choice.best, choice.is_split
        num_splits = int(is_split.sum())
        order = np.arange(num_splits)
        left = self.num_slots + 2 * order
        tree = Tree.unused(np.ones(1), len(slot))[0]
        tree.left[is_split], tree.right[is_split] = left, left + 1
        kept = vars(tree) | {"slot": slot}
        del kept["num_nodes"]
        kept["log_weight"] = choice.log_stop.copy()
        if num_splits:
            single = is_split & ~best.is_oblique
            splits = self.problem.splits(best.at(single))
            for own, values in zip(tree.splits, splits, strict=True):
                own[single] = values
            for k in np.flatnonzero(is_split & best.is_oblique):
                tree.feature[k] = self.problem.design.num_features
                tree.threshold[k] = best.hyperplane[k].threshold
            kept["log_weight"][is_split] = best.log_rule[is_split]
        kept["hyperplane"] = np.where(is_split, best.hyperplane, np.array(None))
        kept |= {"log_stop": choice.log_stop, "leaf_score": choice.leaf_score}
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
        return _summed({name: values[order] for name, values in joined.items()})


def _summed(node: dict[str, np.ndarray]) -> GreedyTree:
    """Make a tree from its nodes [k]."""
    arrays = {f.name: node[f.name] for f in fields(Tree) if f.name in node}
    tree = Tree(**arrays, num_nodes=np.asarray(len(node["feature"]), np.int32))
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
        node["hyperplane"],
    )


def prune(grown: GreedyTree, leaf: Leaf) -> GreedyTree:
    """Merge sibling leaves with the same prediction, from the bottom up.

    Predictions of class probabilities are the same if the most probable class is, other predictions
    if posterior means are equal up to rounding.
    """
    with jax.enable_x64(True):
        predicted = np.asarray(leaf.posterior_mean(grown.statistics + grown.pseudo))
    if predicted.ndim == 2:
        predicted = predicted.argmax(axis=1)
    tree = grown.tree
    feature, kept = tree.feature.copy(), np.ones(len(tree.feature), bool)
    for slot in np.flatnonzero(feature >= 0)[::-1]:  # children have greater slots
        pair = [tree.left[slot], tree.right[slot]]
        if (feature[pair] < 0).all() and np.isclose(*predicted[pair], rtol=1e-12, atol=0):
            feature[slot] = -1
            kept[pair] = False
    slot = (np.cumsum(kept) - 1).astype(np.int32)
    is_split = feature >= 0
    splits = tree.splits.only(is_split)._asdict()
    return _summed(
        {
            **{name: values[kept] for name, values in splits.items()},
            "left": np.where(is_split, slot[tree.left], 0)[kept],
            "right": np.where(is_split, slot[tree.right], 0)[kept],
            "statistics": grown.statistics[kept],
            "pseudo": grown.pseudo[kept],
            "log_weight": np.where(is_split, grown.log_weight, grown.log_stop)[kept],
            "log_stop": grown.log_stop[kept],
            "leaf_score": grown.leaf_score[kept],
            "hyperplane": np.where(is_split, grown.hyperplane, np.array(None))[kept],
        }
    )
