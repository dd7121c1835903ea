"""The exact posterior against the enumeration of all trees.

Everything is deterministic: fixed seeds, tolerances of rounding error. Each check is a function
that takes the posterior to be checked, and has a mutation twin: on a posterior broken on purpose it
must fail.
"""

import math
from collections import Counter
from functools import cached_property
from itertools import cycle, repeat
from typing import ClassVar

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_problems import TIGHT
from tiers import few_of, slow_but

from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.passes import inside, outside
from bdtppl.models.priors import LeafPenalty
from bdtppl.models.pytrees import pytree_dataclass

CASES = [(m, f, seed) for m in ep.MODELS for f in ep.FAMILIES for seed in range(2)]
# The families of leaves take turns.
FAST = list(zip(ep.MODELS, cycle(ep.FAMILIES), repeat(0), strict=False))[::2]
MANY = [(m, f, seed) for m in ep.MODELS for f in ep.FAMILIES for seed in range(2, 10)]


def close(got, expected, tolerance=TIGHT):
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= tolerance), f"{got} is not {expected}"


# ------------------------------------------------------------------------------------- checks


def check_evidence(case, exact):
    partition = en.log_partition(case.scored)
    close(exact.log_partition, partition, 1e-10 * max(1.0, abs(partition)))
    close(exact.log_prior_normaliser, en.log_prior_normaliser(case.scored))
    close(exact.log_evidence, en.log_evidence(case.scored))


def check_normalised(case, exact):
    close(exact.log_prior_normaliser, 0.0, 1e-12)


def check_ranking(case, exact):
    """All trees, their probabilities, the best tree and the k best."""
    weights = dict(en.k_best(case.problem, case.reference_prior, case.scored, len(case.scored)))
    log_partition = en.log_partition(case.scored)
    ranked = exact.k_best(len(weights) + 5)
    keys = [
        en.candidate_key(case.problem, case.reference_prior, tree)
        for tree in ep.rule_trees(case, ranked.trees)
    ]
    assert len(keys) == len(weights)
    assert set(keys) == set(weights)
    close(ranked.log_joint, [weights[key] for key in keys])
    masses = en.log_masses(case.problem, case.reference_prior, case.scored)
    close(ranked.probability, np.exp([masses[key] - log_partition for key in keys]))
    assert np.all(np.diff(ranked.log_joint) <= 1e-12)
    few = exact.k_best(5)
    close(few.log_joint, sorted(weights.values(), reverse=True)[:5])
    np.testing.assert_array_equal(few.log_joint, ranked.log_joint[: len(few.log_joint)])


def check_slot_statistics(case, trees, statistics):
    """Statistics in every slot of single trees [b] are sums over the slot's rows."""
    with jax.enable_x64(True):
        rows = np.asarray(case.leaf.statistics(case.y, case.weights))
    for tree, found in zip(ep.rule_trees(case, trees), statistics, strict=True):
        queue = [tree]
        for node in queue:
            if isinstance(node, en.Split):
                queue += [node.left, node.right]
        expected = np.zeros_like(found)
        for slot, node in enumerate(queue):
            expected[slot] = rows[sorted(en.tree_rows(node))].sum(axis=0)
        close(found, expected, 1e-12)


def check_sizes(case, exact):
    close(exact.entropy, en.entropy(case.reference_prior, case.scored))
    close(exact.expected_leaves, en.expected_leaves(case.scored))
    splits = np.zeros(case.problem.num_features)
    for tree, probability in case.probabilities.items():
        for split in en.tree_splits(tree):
            splits[split.rule.feature] += probability
    close(exact.expected_splits, splits)
    close(exact.split_inclusion, en.feature_probabilities(case.problem, case.scored))


def check_productions(case, exact):
    """Probability of every use of a rule in a set of rows, and of every leaf."""
    expected = en.production_probabilities(case.scored)
    rows = ep.node_rows(exact.grammar)
    seen = set()
    for production, parent in enumerate(exact.grammar.parent):
        pairs = [(rows[parent], rule) for rule in ep.rules_of_production(exact.grammar, production)]
        total = math.fsum(expected.get(pair, 0.0) for pair in pairs)
        close(exact.production_probability[production], total)
        assert seen.isdisjoint(pairs)
        seen.update(pairs)
    assert seen >= set(expected)
    leaves: Counter = Counter()
    for tree, probability in case.probabilities.items():
        queue = [tree]
        for node in queue:
            if isinstance(node, en.Split):
                queue += [node.left, node.right]
            else:
                leaves[node.rows] += probability
    close(exact.leaf_probability, [leaves[node] for node in rows])
    assert set(rows) >= set(leaves)


def check_rule_inclusion(case, exact):
    problem, expected = case.problem, Counter()
    for tree, probability in en.tree_probabilities(case.scored).items():
        for feature, threshold in en.tree_thresholds(problem, tree):
            expected[feature, round(threshold, 9)] += probability
    found = Counter()
    listed = exact.rule_inclusion()
    for feature, threshold, uses in listed:
        found[feature, round(threshold, 9)] += uses
    assert set(found) == {key for key, uses in expected.items() if uses > 0}
    close([found[key] for key in found], [expected[key] for key in found])
    uses = [entry[2] for entry in listed]
    assert uses == sorted(uses, reverse=True)
    assert len(listed) == len(found)


CHECKS = [check_evidence, check_ranking, check_sizes, check_productions, check_rule_inclusion]


# -------------------------------------------------------------------- against the enumeration


@pytest.mark.parametrize(
    ("model", "family", "seed"),
    slow_but(FAST, CASES, few=20),
)
def test_equals_enumeration(model, family, seed):
    case = ep.random_case(model, family, seed)
    for check in CHECKS:
        check(case, case.exact)
    if model.startswith("depth decay"):
        check_normalised(case, case.exact)
    best = case.exact.k_best(20)
    check_slot_statistics(case, best.trees, best.statistics)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), few_of(MANY, 30))
def test_equals_enumeration_on_many(model, family, seed):
    test_equals_enumeration(model, family, seed)


def test_cases_meet_everything():
    met = Counter()
    for name in CASES:
        case = ep.random_case(*name)
        codes, constraints = np.array(case.problem.codes), case.constraints
        deepest = max(ep.depth_of(s.tree) for s in case.scored)
        met["missing"] += bool((codes < 0).any())
        met["ties"] += any(len(set(column)) < len(column) for column in codes.T)
        met["repeated rows"] += len(np.unique(codes, axis=0)) < len(codes)
        met["weights"] += bool((case.weights > 1).any())
        met["min_leaf"] += constraints.min_leaf > 1
        met["max_depth binds"] += deepest == constraints.max_depth
        met["max_depth does not bind"] += (constraints.max_depth or 0) > deepest
        met["restricted"] += bool(constraints.features) and codes.shape[1] > 1
        met["empty codes"] += any(
            len(set(column[column >= 0])) < count
            for column, count in zip(codes.T, case.problem.num_codes, strict=True)
        )
        met["buckets"] += "bins" in case.binning
        met["equivalent rules"] += len({en.partition_key(s.tree) for s in case.scored}) < len(
            case.scored
        )
    assert len(met) == 11
    assert min(met.values()) >= 3, met


# ----------------------------------------------------------------------------- mutation twins


def twin_case(model):
    """Draw a case where every mutation has something to break."""
    return ep.random_case(
        model,
        "classes",
        100,
        max_depth=None,
        min_leaf=1,
        features=None,
        copied=True,
        missing=False,
        weighted=True,
        binning={"grid": 4},
    )


def must_fail(check, case, exact):
    check(case, case.exact)
    with pytest.raises(AssertionError):
        check(case, exact)


class Unshared(ExactPosterior):
    """Counts every rule of a partition at its full weight."""

    @cached_property
    def chart(self):
        return _changed(super().chart, log_num_equivalent=lambda n: n * 0 + 1)


class SharedAmongGaps(ExactPosterior):
    """Takes all cuts of a gap for one rule when it shares a partition's weight."""

    @cached_property
    def chart(self):
        return _changed(super().chart, log_num_cuts=lambda n: n * 0 + 1)


class OneCutTooMany(ExactPosterior):
    """Counts one available cut too many."""

    @cached_property
    def chart(self):
        return _changed(super().chart, log_num_feature_cuts=lambda n: n + 1)


def _changed(chart, **changes):
    """A chart with some facts of rules changed."""
    facts = {name: change(chart.rule_facts[name]) for name, change in changes.items()}
    return chart._replace(rule_facts=chart.rule_facts | facts)


class OneLevelTooDeep(ExactPosterior):
    """Takes the root for depth 1."""

    @cached_property
    def chart(self):
        chart = super().chart
        return chart._replace(levels=chart.levels + 1, depth_limit=chart.depth_limit + 1)


class StopsUncertainly(ExactPosterior):
    """Forgets that a node without a rule stops with probability one."""

    @cached_property
    def chart(self):
        chart = super().chart
        return chart._replace(has_rule=jnp.ones_like(chart.has_rule))


class AllFeaturesAvailable(ExactPosterior):
    """Counts features without a rule as available."""

    @cached_property
    def chart(self):
        chart = super().chart
        counts = {"log_num_features": jnp.full_like(chart.node_facts["log_num_features"], 3)}
        return chart._replace(node_facts=counts)


class SharedInTheBest(ExactPosterior):
    """Shares a partition's weight among its rules in the best trees too."""

    def __init__(self, grammar, prior, leaf, y):
        super().__init__(grammar, _SharedInTheBest(prior.log_phi), leaf, y)


@pytree_dataclass
class _SharedInTheBest(LeafPenalty):
    def log_rule(self, node, rule):
        return self.log_split(node, rule)


class Unnormalised(ExactPosterior):
    """Takes the prior's weights for probabilities."""

    log_prior_normaliser: ClassVar[float] = 0.0


class SinglePrecision(ExactPosterior):
    """Lets leaf scores pass through float32."""

    @property
    def _terms(self):
        prior, scores, weights = super()._terms
        return prior, scores.astype(jnp.float32).astype(jnp.float64), weights


class Tilted(ExactPosterior):
    """Weighs rules otherwise on the way down than on the way up."""

    @property
    def _usage(self):
        with jax.enable_x64(True):
            prior, scores, weights = self._terms
            return outside(self.chart, prior, scores, weights - 0.01, self._log_q)


class Unweighted(ExactPosterior):
    """Counts every row once."""

    @property
    def statistics(self):
        rows = np.asarray(self.leaf.statistics(self.y, np.ones(len(self.y))))
        return self.grammar.node_sums(self.grammar.cell_sums(rows))


class BestOfSums(ExactPosterior):
    """Ranks by the sums below instead of the best trees below."""

    @property
    def _log_best(self):
        return inside(self.chart, *self._terms, "sum")


@pytest.mark.parametrize(
    ("model", "mutant", "checks"),
    [
        ("leaf penalty, gaps", Unshared, [check_evidence, check_sizes]),
        ("leaf penalty, gaps", SharedInTheBest, [check_ranking, check_sizes]),
        ("leaf penalty, cuts", SharedAmongGaps, [check_evidence, check_productions]),
        ("description length, cuts", SharedAmongGaps, [check_evidence, check_sizes]),
        ("depth decay, gaps", OneCutTooMany, [check_evidence, check_normalised]),
        ("depth decay, gaps", OneLevelTooDeep, [check_evidence, check_ranking, check_sizes]),
        ("depth decay, gaps", StopsUncertainly, [check_normalised]),
        ("depth decay, gaps", AllFeaturesAvailable, [check_normalised, check_evidence]),
        ("greedy partition, cuts", OneCutTooMany, [check_evidence, check_ranking]),
        ("leaf penalty, gaps", Unnormalised, [check_evidence]),
        ("description length, cuts", SinglePrecision, [check_evidence]),
        ("depth decay, gaps", Tilted, [check_productions, check_sizes, check_rule_inclusion]),
        ("depth decay, gaps", BestOfSums, [check_ranking]),
        ("leaf penalty, gaps", Unweighted, [check_evidence, check_ranking]),
    ],
)
def test_a_broken_posterior_is_noticed(model, mutant, checks):
    case = twin_case(model)
    with jax.enable_x64(True):
        exact = case.posterior(mutant)
        for check in checks:
            must_fail(check, case, exact)


def test_wrong_slot_statistics_are_noticed():
    case = twin_case("leaf penalty, gaps")
    best = case.exact.k_best(10)
    check_slot_statistics(case, best.trees, best.statistics)
    with pytest.raises(AssertionError):
        check_slot_statistics(case, best.trees, best.statistics[:, ::-1])
    with pytest.raises(AssertionError):
        check_slot_statistics(case, best.trees, best.statistics[::-1])
