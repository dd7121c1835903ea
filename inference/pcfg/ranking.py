"""The most probable trees of a chart."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.ranking import STOP, Candidate, ranked_trees
from bdtppl.inference.pcfg.chart import Chart, node_at, rule_at
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.passes import log_stops
from bdtppl.inference.pcfg.sampling import Derivations
from bdtppl.models.arrays.padding import padded_size

_Node = tuple[int, int]  # subproblem and depth


class _ChartChoices:
    """Choices of the nodes of a max-scored chart."""

    def __init__(self, grammar: Grammar, chart: Chart, prior, leaf_scores, log_best):
        self.grammar, self.chart, self.prior = grammar, chart, prior
        self.log_best = np.asarray(log_best)
        self.log_stop = np.asarray(log_stops(chart, prior, leaf_scores))
        self.is_listed = grammar.is_first_of_partition if prior.counts_partitions else None
        widest = int(np.diff(grammar.first_production).max())
        self._places = jnp.zeros(padded_size(max(16, widest)), jnp.int8)

    def children(self, node: _Node, choice: int) -> tuple[_Node, _Node]:
        below = node[1] + 1 if self.chart.uses_depth else node[1]
        return (int(self.grammar.left[choice]), below), (int(self.grammar.right[choice]), below)

    def candidates(self, node: _Node) -> list[Candidate]:
        subproblem, depth = node
        found = [Candidate(float(self.log_stop[node]), STOP)]
        first = self.grammar.first_production[subproblem]
        count = int(self.grammar.first_production[subproblem + 1] - first)
        if count and (not self.chart.uses_depth or depth < self.grammar.depth_limit):
            terms = np.asarray(
                _node_terms(
                    self.chart,
                    self.prior,
                    self.log_best,
                    np.int32(subproblem),
                    np.int32(depth),
                    np.int32(first),
                    self._places,
                )
            )
            for place in range(count):
                production = int(first) + place
                if self.is_listed is None or self.is_listed[production]:
                    found.append(Candidate(float(terms[place]), production))
        return found


@jax.jit
def _node_terms(chart: Chart, prior, log_best, node, depth, first, places):
    """Return the best log weight through each production of one node, at one depth; [widest]."""
    index = jnp.minimum(first + jnp.arange(len(places)), len(chart.left) - 1)
    parent, rule = node_at(chart, node, depth), rule_at(chart, index, depth)
    below = jnp.minimum(depth + 1, len(chart.levels) - 1) if chart.uses_depth else depth
    children = log_best[chart.left[index], below] + log_best[chart.right[index], below]
    return prior.log_rule(parent, rule) + children


def rank_derivations(
    grammar: Grammar, chart: Chart, prior, leaf_scores, log_best, k: int
) -> tuple[Derivations, np.ndarray]:
    """List the k trees of greatest log joint.

    Trees that differ by equivalent rules are one tree under a prior that counts partitions, with
    the first of these rules. Trees that differ by the cut inside a gap are one entry, with the log
    joint of a single such tree and the middle cut.

    Returns
    -------
    derivations
        At most k trees, the best first.
    log_joint
        float64 [at most k].
    """
    choices = _ChartChoices(grammar, chart, prior, leaf_scores, log_best)
    best = list(islice(ranked_trees(choices, (grammar.root, 0)), k))
    production = np.full((len(best), max(len(made) for _, made in best)), STOP, np.int32)
    for row, (_, made) in zip(production, best, strict=True):
        row[: len(made)] = [choice for _, choice in made]
    num_nodes = np.array([len(made) for _, made in best], np.int32)
    log_joint = np.array([log_joint for log_joint, _ in best])
    return Derivations(production, np.full(production.shape, 0.5), num_nodes), log_joint
