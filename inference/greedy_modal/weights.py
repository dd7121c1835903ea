"""The prior's log weights in all nodes of a level.

A prior is compiled for a few sizes of blocks, so that levels of any size compile nothing more.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.greedy_modal.columns import Level
from bdtppl.inference.greedy_modal.cuts import Cuts, count_rules, cuts_of_feature, num_cuts
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.priors import Node, Rule, TreePrior

__all__ = ["LawOfCuts", "log_rules_of_features", "log_stops"]

_BLOCKS = (16, 256, 4096)  # nodes that a compiled prior takes at once


@jax.jit
def _log_rule(prior: TreePrior, node: Node, rule: Rule) -> jax.Array:
    return prior.log_rule(node, rule)


@jax.jit
def _log_stop(prior: TreePrior, node: Node) -> jax.Array:
    return prior.log_stop(node)


def _in_blocks(function, num_nodes: int, *facts: np.ndarray) -> np.ndarray:
    """Call a compiled function on facts [nodes, ...] in a few sizes of blocks."""
    results = []
    start = 0
    with jax.enable_x64(True):
        while start < num_nodes:
            size = next((b for b in _BLOCKS if b >= num_nodes - start), _BLOCKS[-1])
            piece = [fact[start : start + size] for fact in facts]
            length = len(piece[0])
            widths = [((0, size - length), *((0, 0),) * (p.ndim - 1)) for p in piece]
            padded = [np.pad(p, w, mode="edge") for p, w in zip(piece, widths, strict=True)]
            results.append(np.asarray(function(*padded))[:length])
            start += size
    return np.concatenate(results)


def _rows_of_nodes(problem: Problem, level: Level) -> np.ndarray:
    """Rows in each node, repeated ones counted as often as they are, float64 [K]."""
    weights = problem.columns.weights
    if weights is None or not level.rows:
        return np.diff(level.start).astype(float)
    return np.add.reduceat(weights.take(level.rows[0]), level.start[:-1]).astype(float)


def log_stops(problem: Problem, level: Level, num_features: np.ndarray) -> np.ndarray:
    """Log weight of stopping in every node, float64 [K]."""

    def function(num_rows, num_features):
        has_rule = num_features > 0
        log_num_features = jnp.log(jnp.maximum(num_features, 1))
        depth = jnp.full(num_rows.shape, float(level.depth))
        node = Node(depth, has_rule, num_rows, log_num_features)
        return _log_stop(prior, node)

    prior = jax.tree.map(np.float64, problem.prior)
    rows = _rows_of_nodes(problem, level)
    return _in_blocks(function, level.num_segments, rows, num_features.astype(float))


def log_rules_of_features(problem, level, num_rules, num_features) -> np.ndarray:
    """Log weight of one rule of each feature in every node, float64 [K, d]."""
    features = problem.columns.features.astype(np.int32)
    prior = jax.tree.map(np.float64, problem.prior)
    if not len(features):
        return np.zeros(num_rules.shape)

    def function(num_rows, num_features, num_rules):
        node = Node(
            jnp.full((len(num_rows), 1), float(level.depth)),
            (num_features > 0)[:, None],
            num_rows[:, None],
            jnp.log(jnp.maximum(num_features, 1))[:, None],
        )
        zeros = jnp.zeros(num_rules.shape)
        feature = features[None, :] + zeros.astype(int)
        rule = Rule(feature, zeros, jnp.log(num_rules), zeros, zeros)
        return jnp.broadcast_to(_log_rule(prior, node, rule), num_rules.shape)

    return _in_blocks(
        function,
        level.num_segments,
        _rows_of_nodes(problem, level),
        num_features.astype(float),
        np.maximum(num_rules, 1).astype(float),
    )


class LawOfCuts:
    """Log weights of single rules, for a prior that tells cuts of one feature apart."""

    def __init__(self, problem: Problem, level: Level):
        self.problem, self.level = problem, level
        counts = []
        for f in range(len(level.rows)):
            counts.append(count_rules(problem, level, *cuts_of_feature(problem, level, f)))
        self.num_rules = np.stack(counts, axis=1)
        self.num_features = (self.num_rules > 0).sum(axis=1)

    @classmethod
    def of(cls, problem: Problem, level: Level) -> "LawOfCuts | None":
        """Get the law, or None where all cuts of a feature weigh the same."""
        if "log_width_share" not in problem.prior.rule_facts or not level.rows:
            return None
        return cls(problem, level)

    def log_rules(self, f: int, codes: np.ndarray, cuts: list[Cuts]) -> list[np.ndarray]:
        """Log weight of the rule at each position, for each side of missing values, [a]."""
        problem, level = self.problem, self.level
        feature = int(problem.columns.features[f])
        flat = problem.design.offset[feature] + np.maximum(codes, 0)
        width = problem.design.gap_width(flat, np.append(flat[1:], flat[-1:]))
        widths = sum(np.where(each.is_rule, width, 0.0) for each in cuts)
        total = np.add.reduceat(widths, level.start[:-1])
        cuts_of_gap = np.broadcast_to(num_cuts(problem, codes), codes.shape)
        prior = jax.tree.map(np.float64, problem.prior)

        def function(num_rows, num_features, num_rules, num_cuts, share):
            depth = jnp.full(share.shape, float(level.depth))
            node = Node(depth, num_features > 0, num_rows, jnp.log(num_features))
            which = jnp.full(share.shape, feature, jnp.int32)
            rule = Rule(which, jnp.log(num_cuts), jnp.log(num_rules), jnp.log(share), 0.0)
            return _log_rule(prior, node, rule)

        weights = []
        for each in cuts:
            where = np.flatnonzero(each.is_rule)
            segment = level.segment[where]
            found = np.zeros(len(codes))
            if len(where):
                found[where] = _in_blocks(
                    function,
                    len(where),
                    _rows_of_nodes(problem, level)[segment],
                    self.num_features[segment].astype(float),
                    self.num_rules[segment, f].astype(float),
                    cuts_of_gap[where].astype(float),
                    width[where] / total[segment],
                )
            weights.append(found)
        return weights
