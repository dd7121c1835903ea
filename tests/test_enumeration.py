"""Check the enumeration of trees against cases worked by hand and against other formulas.

All checks are deterministic: fixed seeds, tolerances of rounding error.
"""

import functools
import itertools
import math
from fractions import Fraction

import enumeration as en
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t

TIGHT = 1e-11

PRIORS = {
    "leaf penalty": en.LeafPenalty(1.3),
    "description length": en.DescriptionLength(1.7),
    "depth decay": en.DepthDecay(0.9, 0.7),
    "depth decay by gap": en.DepthDecay(0.95, 0.4, cut_weights="gap"),
    "greedy partition": en.GreedyPartition(0.8),
}


def random_problem(seed, **options):
    """Draw a problem of 10 to 3,000 trees and a leaf of either family for it."""
    rng = np.random.default_rng(seed)
    while True:
        n, d = int(rng.integers(4, 8)), int(rng.integers(1, 4))
        num_codes = [int(rng.integers(2, 5)) for _ in range(d)]
        codes = np.stack([rng.integers(0, k, n) for k in num_codes], axis=1)
        if seed % 3 == 0:
            codes[rng.random((n, d)) < 0.2] = -1
        edges = [np.cumsum(rng.uniform(0.2, 1.0, 2 * k)) for k in num_codes]
        settings = {
            "num_codes": num_codes,
            "weights": rng.integers(1, 4, n),
            "bucket_low": [e[::2] for e in edges],
            "bucket_high": [e[1::2] for e in edges],
            "cut_thresholds": [(e[1:-1:2] + e[2::2]) / 2 for e in edges],
            "rules": ("gaps", "cuts")[seed % 2],
            "min_leaf": int(rng.integers(1, 3)),
            "max_depth": (None, 2, 3)[int(rng.integers(0, 3))],
        }
        problem = en.Problem(codes, **(settings | options))
        if 10 <= en.count_trees(problem) <= 3_000:
            break
    if seed % 4 < 2:
        labels = rng.integers(0, 3, n)
        return problem, en.DirichletCategorical(labels, [0.5, 1.0, 2.0])
    return problem, en.NormalInverseGamma(rng.normal(size=n), 0.2, 0.7, 1.5, 0.9)


def line(n, **options):
    """Return a problem of n rows with distinct codes on one feature."""
    return en.Problem(np.arange(n)[:, None], **options)


def beta_function(*counts):
    return Fraction(
        math.prod(math.factorial(count - 1) for count in counts),
        math.factorial(sum(counts) - 1),
    )


# ------------------------------------------------------------------------------------- leaves


def test_figure_1_of_the_paper():
    # Sullivan et al. 2023, below Theorem 4.1: x < 0 | x >= 0, then y <= 0 | y > 0.
    codes = [[0, 0], [0, 1], [0, 1], [1, 0], [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]]
    labels = [0, 1, 1, 1, 1, 0, 0, 0, 1]
    problem = en.Problem(codes)
    leaf = en.DirichletCategorical(labels, [1, 1])
    tree = en.Split(
        en.Rule(0, 0, 1, False),
        en.Leaf(frozenset({0, 1, 2})),
        en.Split(
            en.Rule(1, 0, 1, False), en.Leaf(frozenset({3, 4})), en.Leaf(frozenset({5, 6, 7, 8}))
        ),
    )
    assert [leaf.counts(problem, rows) for rows in ({0, 1, 2}, {3, 4}, {5, 6, 7, 8})] == [
        [1, 2],
        [0, 2],
        [3, 1],
    ]
    expected = beta_function(2, 3) * beta_function(1, 3) * beta_function(4, 2)
    expected /= beta_function(1, 1) ** 3
    assert expected == Fraction(1, 720)
    scored = {s.tree: s for s in en.trees(problem, en.LeafPenalty(2.0), leaf)}
    assert scored[tree].log_likelihood == pytest.approx(math.log(expected), abs=TIGHT)
    assert scored[tree].log_prior == pytest.approx(-4.0, abs=TIGHT)


def test_labels_of_a_leaf_sum_to_one():
    problem = line(5)
    total = math.fsum(
        math.exp(
            en.DirichletCategorical(labels, [0.3, 1.2, 2.0]).log_marginal(problem, problem.all_rows)
        )
        for labels in itertools.product(range(3), repeat=5)
    )
    assert total == pytest.approx(1, abs=TIGHT)


@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1, 1], [1, 3, 1, 2, 1, 1]])
def test_normal_leaf_is_the_multivariate_student_t(weights):
    # Integrating mean and variance out of n values gives a multivariate t with 2 a degrees of
    # freedom and shape b / a (I + 1 1' / kappa): a formula that shares nothing with the update.
    values = [0.3, -1.2, 2.2, 0.1, 0.4, -0.6]
    mean, pseudo_count, shape, scale = 0.5, 0.8, 1.7, 0.6
    leaf = en.NormalInverseGamma(values, mean, pseudo_count, shape, scale)
    problem = line(6, weights=weights)
    repeated = np.repeat(values, weights)
    n = len(repeated)
    expected = multivariate_t(
        np.full(n, mean), scale / shape * (np.eye(n) + 1 / pseudo_count), 2 * shape
    ).logpdf(repeated)
    assert leaf.log_marginal(problem, problem.all_rows) == pytest.approx(expected, abs=TIGHT)


@pytest.mark.parametrize("family", ["classes", "values"])
def test_log_marginal_is_the_sum_of_one_step_predictives(family):
    problem = line(6)
    data = [0, 2, 2, 1, 0, 2] if family == "classes" else [0.3, -1.2, 2.2, 0.1, 0.4, -0.6]

    def leaf(observed):
        if family == "classes":
            return en.DirichletCategorical(data, [0.5, 1.0, 2.0], observed)
        return en.NormalInverseGamma(data, 0.5, 0.8, 1.7, 0.6, observed)

    rows = problem.all_rows
    steps = [
        math.log(leaf([i < seen for i in range(6)]).predictive_density(problem, rows, data[seen]))
        for seen in range(6)
    ]
    assert leaf(None).log_marginal(problem, rows) == pytest.approx(math.fsum(steps), abs=TIGHT)
    assert leaf([False] * 6).log_marginal(problem, rows) == pytest.approx(0, abs=TIGHT)


def test_normal_leaf_predictive_integrates_to_one_and_to_its_mean():
    problem = line(4)
    leaf = en.NormalInverseGamma([0.3, -1.2, 2.2, 0.1], 0.5, 0.8, 1.7, 0.6)

    def density(y):
        return leaf.predictive_density(problem, problem.all_rows, y)

    assert quad(density, -np.inf, np.inf)[0] == pytest.approx(1, abs=1e-8)
    mean = quad(lambda y: y * density(y), -np.inf, np.inf)[0]
    assert mean == pytest.approx(float(leaf.predictive_mean(problem, problem.all_rows)), abs=1e-6)


# ---------------------------------------------------------------------- counts of trees, rules


def test_number_of_trees_on_a_line():
    # T(n) = 1 + sum over places of T(i) T(n - i).
    assert [en.count_trees(line(n)) for n in range(1, 8)] == [1, 2, 5, 15, 51, 188, 731]
    # Two copies of the feature: 2 rules a place. T(2) = 1 + 2, T(3) = 1 + 2 (3 + 3).
    assert en.count_trees(en.Problem([[0, 0], [1, 1], [2, 2]])) == 13


def test_constraints_remove_rules():
    assert en.count_trees(line(4, max_depth=0)) == 1
    assert en.count_trees(line(4, max_depth=1)) == 4
    assert en.count_trees(line(4, min_leaf=2)) == 2
    assert en.count_trees(line(4, min_leaf=2, weights=[2, 1, 1, 0.5])) == 2
    grid = en.Problem(list(itertools.product(range(2), repeat=2)), allowed_features=[1])
    assert {r.feature for r in en.available_rules(grid, grid.all_rows, 0)} == {1}


def test_cuts_count_where_gaps_do_not():
    codes = [[0], [3]]
    gaps, cuts = en.Problem(codes), en.Problem(codes, rules="cuts")
    assert en.available_rules(gaps, gaps.all_rows, 0) == [en.Rule(0, 0, 3, False)]
    assert en.available_rules(cuts, cuts.all_rows, 0) == [
        en.Rule(0, v - 1, v, False) for v in (1, 2, 3)
    ]
    # Cuts beyond the codes present in the node leave a side empty and do not exist.
    inside = en.Problem([[1], [2], [2]], num_codes=[5], rules="cuts")
    assert en.available_rules(inside, inside.all_rows, 0) == [en.Rule(0, 1, 2, False)]


def test_missing_rows_go_to_either_side():
    problem = en.Problem([[0], [1], [-1]])
    right, left = en.available_rules(problem, problem.all_rows, 0)
    assert (right.missing_left, left.missing_left) == (False, True)
    assert en.part(problem, problem.all_rows, right) == ({0}, {1, 2})
    assert en.part(problem, problem.all_rows, left) == ({0, 2}, {1})
    # Both sides exist in a node where nothing is missing, and make one partition there.
    rows = frozenset({0, 1})
    assert len(en.available_rules(problem, rows, 1)) == 2
    # Rows that only differ in being missing or not are not parted.
    assert en.available_rules(problem, frozenset({1, 2}), 1) == []


def test_partition_key_forgets_rules_and_sides():
    problem = en.Problem([[0, 2], [1, 1], [2, 0]])
    keys = [en.partition_key(s.tree) for s in en.trees(problem, en.DescriptionLength(1.0), None)]
    # 13 rule-trees, but as partitions the five trees of three rows on a line.
    assert (len(keys), len(set(keys))) == (13, 5)
    one, two, three = (frozenset({i}) for i in range(3))
    assert frozenset({frozenset({one, two}), three}) in keys


def test_too_many_trees_is_refused():
    with pytest.raises(ValueError, match=r"51 trees, more than max_trees = 50"):
        en.trees(line(5), en.LeafPenalty(1.0), None, max_trees=50)
    with pytest.raises(ValueError, match="take fewer rows"):
        en.trees(line(13), en.LeafPenalty(1.0), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": "other"}, "rules must be"),
        ({"weights": [1, 0]}, "positive numbers"),
        ({"weights": [1, -1.5]}, "positive numbers"),
        ({"has_missing": [False]}, "missing codes"),
        ({"num_codes": [1]}, "must lie in"),
    ],
)
def test_bad_problems_are_refused(options, message):
    codes = [[0], [-1]] if "has_missing" in options else [[0], [1]]
    with pytest.raises(ValueError, match=message):
        en.Problem(codes, **options)


# ---------------------------------------------------------------------- weights, cases by hand


def test_three_rows_by_hand():
    labels, phi = [0, 1, 1], math.exp(0.6)
    scored = en.trees(line(3), en.LeafPenalty(0.6), en.DirichletCategorical(labels, [1, 1]))
    # Sequences of labels: P(0 1 1) = 1/12, P(0 1) = 1/6, P(1 1) = 1/3, P(0) = P(1) = 1/2.
    expected = 1 / 12 + (1 / 2 * 1 / 3 + 1 / 6 * 1 / 2) / phi + 2 * (1 / 2 * 1 / 2 * 1 / 2) / phi**2
    assert len(scored) == 5
    assert en.log_partition(scored) == pytest.approx(math.log(expected), abs=TIGHT)
    normaliser = 1 + 2 / phi + 2 / phi**2
    assert en.log_prior_normaliser(scored) == pytest.approx(math.log(normaliser), abs=TIGHT)
    assert en.log_evidence(scored) == pytest.approx(math.log(expected / normaliser), abs=TIGHT)
    leaves = (1 / 12 + 2 * (1 / 6 + 1 / 12) / phi + 3 * (1 / 4) / phi**2) / expected
    assert en.expected_leaves(scored) == pytest.approx(leaves, abs=TIGHT)
    root = en.root_rule_probabilities(scored)
    first = (1 / 6 / phi + 1 / 8 / phi**2) / expected
    assert root[en.Rule(0, 0, 1, False)] == pytest.approx(first, abs=TIGHT)
    stop = 1 / 12 / expected
    assert math.fsum(root.values()) == pytest.approx(1 - stop, abs=TIGHT)
    assert en.feature_probabilities(line(3), scored) == pytest.approx([1 - stop], abs=TIGHT)
    best = frozenset({frozenset({0}), frozenset({1, 2})})
    assert en.map_over_partitions(scored) == (best, pytest.approx(math.log(1 / 6 / phi), abs=TIGHT))
    probabilities = np.array([1 / 12, 1 / 6 / phi, 1 / 12 / phi, 1 / 8 / phi**2, 1 / 8 / phi**2])
    probabilities /= expected
    assert en.entropy(en.LeafPenalty(0.6), scored) == pytest.approx(
        -np.sum(probabilities * np.log(probabilities)), abs=TIGHT
    )


def test_weights_of_missing_sides_by_hand():
    # Rows 0 and 1 present, nothing missing in the node, missing elsewhere in training.
    problem = en.Problem([[0], [1]], has_missing=[True])

    def partition(prior):
        return math.exp(en.log_partition(en.trees(problem, prior, None)))

    assert partition(en.LeafPenalty(1.0)) == pytest.approx(1 + math.exp(-1), abs=TIGHT)
    assert partition(en.DescriptionLength(1.0)) == pytest.approx(1 + 2 * math.exp(-1), abs=TIGHT)
    assert partition(en.DepthDecay(0.6, 1.0)) == pytest.approx(1, abs=TIGHT)
    assert partition(en.GreedyPartition(0.6)) == pytest.approx(1, abs=TIGHT)


def test_cuts_by_hand():
    problem = en.Problem([[0], [3]], rules="cuts")

    def partition(prior):
        return math.exp(en.log_partition(en.trees(problem, prior, None)))

    assert partition(en.DescriptionLength(1.0)) == pytest.approx(1 + 3 * math.exp(-1), abs=TIGHT)
    assert partition(en.LeafPenalty(1.0)) == pytest.approx(1 + math.exp(-1), abs=TIGHT)


@pytest.mark.parametrize("rules", ["gaps", "cuts"])
@pytest.mark.parametrize("has_missing", [False, True])
def test_depth_decay_factors_by_hand(rules, has_missing):
    # Feature 0 has codes 0, 1, 3 (gaps of width 1 and 5), feature 1 is constant, feature 2 has
    # two codes.
    problem = en.Problem(
        [[0, 0, 0], [1, 0, 0], [3, 0, 1]],
        bucket_low=[[0, 2, 4, 8], [0], [0, 1]],
        bucket_high=[[1, 3, 5, 9], [0], [0, 1]],
        rules=rules,
        has_missing=[has_missing, False, False],
    )
    rows = problem.all_rows
    sides = 2 if has_missing else 1
    p, cuts = 0.8 * 3**-0.5, 1 if rules == "gaps" else 2

    def weights(prior):
        found = en.productions(problem, prior, rows, depth=2)
        return {(r.feature, r.high, r.missing_left): math.exp(w) for r, _, _, w in found}

    uniform = weights(en.DepthDecay(0.8, 0.5))
    gap = weights(en.DepthDecay(0.8, 0.5, cut_weights="gap"))
    assert len(uniform) == len(gap) == sides * (1 + cuts) + 1
    assert uniform[0, 1, False] == pytest.approx(p / 2 / (sides * (1 + cuts)), abs=TIGHT)
    assert gap[0, 1, False] == pytest.approx(p / 2 / sides / 6, abs=TIGHT)
    assert gap[0, 3, has_missing] == pytest.approx(p / 2 / sides * 5 / 6 / cuts, abs=TIGHT)
    assert gap[2, 1, False] == uniform[2, 1, False] == pytest.approx(p / 2, abs=TIGHT)
    stop = en.log_stop(problem, en.DepthDecay(0.8, 0.5), rows, 2)
    assert stop == pytest.approx(math.log(1 - p), abs=TIGHT)
    assert en.log_stop(problem, en.DepthDecay(0.8, 0.5), frozenset({0}), 2) == 0
    # The greedy prior divides by all three features.
    greedy = weights(en.GreedyPartition(0.8))
    assert greedy[2, 1, False] == pytest.approx(0.8**3 / 3, abs=TIGHT)
    assert greedy[0, 1, False] == pytest.approx(0.8**3 / 3 / (sides * (1 + cuts)), abs=TIGHT)
    stop = en.log_stop(problem, en.GreedyPartition(0.8), rows, 2)
    assert stop == pytest.approx(math.log(1 - 0.8**3), abs=TIGHT)


def test_greedy_partition_is_subnormalised_by_hand():
    problem = en.Problem([[0, 0], [1, 0]])
    scored = en.trees(problem, en.GreedyPartition(0.9), None)
    assert math.exp(en.log_prior_normaliser(scored)) == pytest.approx(0.1 + 0.9 / 2, abs=TIGHT)


def test_greedy_scores_of_iris_root():
    # Root scores of the authors' program on iris with all its distinct values, p = 0.9.
    datasets = pytest.importorskip("sklearn.datasets")
    x, labels = datasets.load_iris(return_X_y=True)
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in x.T], axis=1)
    problem = en.Problem(codes)
    prior, leaf = en.GreedyPartition(0.9), en.DirichletCategorical(labels, [1, 1, 1])
    stop = en.log_stop(problem, prior, problem.all_rows, 0)
    stop += leaf.log_marginal(problem, problem.all_rows)
    scores = {
        production.rule: production.log_weight
        + leaf.log_marginal(problem, production.left)
        + leaf.log_marginal(problem, production.right)
        for production in en.productions(problem, prior, problem.all_rows, 0)
    }
    best = max(scores, key=scores.__getitem__)
    assert stop == pytest.approx(-171.237403, abs=1e-6)
    assert scores[best] == pytest.approx(-87.056887, abs=1e-6)
    midpoint = (np.unique(x[:, 3])[best.low] + np.unique(x[:, 3])[best.high]) / 2
    assert (best.feature, midpoint) == (3, pytest.approx(0.8))


# ------------------------------------------------------------------------- laws of the priors


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cut_weights", ["uniform", "gap"])
def test_depth_decay_sums_to_one_without_data(seed, cut_weights):
    problem, _ = random_problem(seed)
    scored = en.trees(problem, en.DepthDecay(0.9, 0.7, cut_weights), None)
    assert en.log_partition(scored) == pytest.approx(0, abs=TIGHT)
    assert en.log_evidence(scored) == 0


@pytest.mark.parametrize("seed", range(4))
def test_greedy_partition_sums_to_at_most_one(seed):
    problem, _ = random_problem(seed)
    assert en.log_prior_normaliser(en.trees(problem, en.GreedyPartition(0.8), None)) <= TIGHT


class UnsharedLeafPenalty(en.LeafPenalty):
    """Forget to share a partition's weight: the mutation twin of `LeafPenalty`."""

    def log_split(self, problem, rows, depth, rules, rule):
        return -self.log_phi


def copies_gap(prior_class):
    """Return by how much partition weights change where features are copied and mirrored."""
    rng = np.random.default_rng(5)
    column = np.array([0, 2, 1, 2, 0, 3])
    labels = rng.integers(0, 2, 6)
    leaf, prior = en.DirichletCategorical(labels, [1, 1]), prior_class(0.9)
    one = en.trees(en.Problem(column[:, None]), prior, leaf)
    two = en.trees(en.Problem(np.stack([column, column], 1)), prior, leaf)
    mirrored = en.trees(en.Problem(np.stack([column, 3 - column], 1)), prior, leaf)
    cuts = en.trees(en.Problem(2 * column[:, None], rules="cuts"), prior, leaf)
    weights = [
        {
            key: en.log_partition(scored) + math.log(p)
            for key, p in en.partition_probabilities(scored).items()
        }
        for scored in (one, two, mirrored, cuts)
    ]
    assert all(w.keys() == weights[0].keys() for w in weights)
    return max(abs(w[key] - weights[0][key]) for w in weights[1:] for key in w)


def test_leaf_penalty_counts_copies_of_a_feature_once():
    assert copies_gap(en.LeafPenalty) < TIGHT
    assert copies_gap(UnsharedLeafPenalty) > 0.5


@pytest.mark.parametrize("seed", range(6))
def test_leaf_penalty_gives_every_partition_tree_its_full_weight(seed):
    problem, leaf = random_problem(seed)
    scored = en.trees(problem, en.LeafPenalty(1.3), leaf)
    total = en.log_partition(scored)
    probabilities = en.partition_probabilities(scored)
    for s in scored:
        weight = math.exp(-1.3 * (en.num_leaves(s.tree) - 1) + s.log_likelihood - total)
        assert probabilities[en.partition_key(s.tree)] == pytest.approx(weight, rel=1e-10)


# ------------------------------------------------------------------------------ second paths


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("seed", range(20))
def test_enumeration_agrees_with_the_recursion(seed, prior):
    problem, leaf = random_problem(seed)
    scored = en.trees(problem, prior, leaf)
    assert len(scored) == len({s.tree for s in scored}) == en.count_trees(problem)
    by_recursion = en.log_partition_by_recursion(problem, prior, leaf)
    normaliser = en.log_partition_by_recursion(problem, prior, None)
    assert en.log_partition(scored) == pytest.approx(by_recursion, abs=TIGHT)
    assert en.log_prior_normaliser(scored) == pytest.approx(normaliser, abs=TIGHT)
    probabilities = en.tree_probabilities(scored)
    assert math.fsum(probabilities.values()) == pytest.approx(1, abs=TIGHT)


def equation_13(codes, labels, log_phi, combine):
    """Evaluate Q or Q_max of Sullivan et al. 2023 straight from the codes, without rules."""
    columns = list(zip(*codes, strict=True))

    @functools.cache
    def q(rows):
        counts = [sum(labels[i] == c for i in rows) for c in (0, 1)]
        likelihood = float(beta_function(counts[0] + 1, counts[1] + 1))
        pairs = set()
        for column in columns:
            for threshold in range(20):
                below = frozenset(i for i in rows if column[i] < threshold)
                if 0 < len(below) < len(rows):
                    pairs.add(frozenset({below, rows - below}))
        splits = [math.exp(-log_phi) * math.prod(map(q, pair)) for pair in pairs]
        return combine(likelihood, splits)

    return q(frozenset(range(len(codes))))


@pytest.mark.parametrize("rules", ["gaps", "cuts"])
@pytest.mark.parametrize("seed", range(4))
def test_leaf_penalty_is_equation_13(seed, rules):
    rng = np.random.default_rng(seed)
    codes, labels = rng.integers(0, 4, (6, 2)), rng.integers(0, 2, 6)
    prior, problem = en.LeafPenalty(1.1), en.Problem(codes, rules=rules)
    scored = en.trees(problem, prior, en.DirichletCategorical(labels, [1, 1]))
    summed = equation_13(codes.tolist(), labels, 1.1, lambda stop, s: stop + math.fsum(s))
    highest = equation_13(codes.tolist(), labels, 1.1, lambda stop, s: max([stop, *s]))
    assert en.log_partition(scored) == pytest.approx(math.log(summed), abs=TIGHT)
    assert en.map_over_partitions(scored)[1] == pytest.approx(math.log(highest), abs=TIGHT)
    assert en.k_best(problem, prior, scored, 1)[0][1] == pytest.approx(math.log(highest), abs=TIGHT)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
def test_repeated_rows_are_weights(prior):
    codes, weights = np.array([[0, 1], [1, 0], [2, -1], [2, 2]]), [2, 1, 3, 1]
    values = np.array([0.4, -1.0, 0.8, 2.0])
    short = en.Problem(codes, weights=weights)
    long = en.Problem(np.repeat(codes, weights, axis=0))

    def evidence(problem, y):
        return en.log_evidence(
            en.trees(problem, prior, en.NormalInverseGamma(y, 0.0, 1.0, 2.0, 1.0))
        )

    assert evidence(short, values) == pytest.approx(
        evidence(long, np.repeat(values, weights)), abs=TIGHT
    )


# ------------------------------------------------------------------- what follows from the sum


@pytest.mark.parametrize("seed", range(8))
def test_expected_leaves_is_a_derivative(seed):
    problem, leaf = random_problem(seed)
    scored = en.trees(problem, en.DescriptionLength(1.7), leaf)
    step = 1e-5
    up, down = (
        en.log_partition_by_recursion(problem, en.DescriptionLength(1.7 + s), leaf)
        for s in (step, -step)
    )
    assert en.expected_leaves(scored) == pytest.approx(1 - (up - down) / (2 * step), abs=1e-7)
    # Every split is a production: their probabilities sum to the expected number of splits.
    total = math.fsum(en.production_probabilities(scored).values())
    assert total == pytest.approx(en.expected_leaves(scored) - 1, abs=TIGHT)
    root = {
        rule: p
        for (rows, rule), p in en.production_probabilities(scored).items()
        if rows == problem.all_rows
    }
    assert root == pytest.approx(en.root_rule_probabilities(scored), abs=TIGHT)


def test_entropy_counts_trees_as_the_prior_does():
    problem = en.Problem([[0, 0], [1, 1]])
    shared, separate = en.LeafPenalty(0.0), en.DescriptionLength(0.0)
    # Partitions: stop and one split, each 1/2. Rule-trees: stop and two splits, each 1/3.
    assert en.entropy(shared, en.trees(problem, shared, None)) == pytest.approx(math.log(2))
    assert en.entropy(separate, en.trees(problem, separate, None)) == pytest.approx(math.log(3))


def test_feature_probabilities_by_hand():
    problem = en.Problem([[0, 0], [0, 1], [1, 0], [1, 1]])
    scored = en.trees(problem, en.DescriptionLength(0.0), None)
    # Rule-trees: 1 without a split; from each root feature 2 x 2 by which children split by the
    # other feature. Without feature 1: no split, and feature 0 alone.
    assert len(scored) == 9
    assert en.feature_probabilities(problem, scored) == pytest.approx([7 / 9, 7 / 9], abs=TIGHT)


def test_k_best_takes_partitions_rule_trees_or_gaps():
    labels = [0, 0, 1, 1]
    leaf = en.DirichletCategorical(labels, [0.5, 0.5])
    codes = [[0, 0], [0, 1], [4, 3], [4, 4]]
    cuts = en.Problem(codes, rules="cuts")

    def best(prior, k=3):
        return en.k_best(cuts, prior, en.trees(cuts, prior, leaf), k)

    parted = leaf.log_marginal(cuts, frozenset({0, 1})) + leaf.log_marginal(cuts, frozenset({2, 3}))
    halves = frozenset({frozenset({0, 1}), frozenset({2, 3})})
    # Six cuts, four of one gap and two of another, make one partition at full weight.
    key, weight = best(en.LeafPenalty(1.0))[0]
    assert (key, weight) == (halves, pytest.approx(parted - 1.0, abs=TIGHT))
    # By rule each gap is one candidate, with the weight of one cut.
    first, second = best(en.DescriptionLength(1.0))[:2]
    assert {key.rule for key, _ in (first, second)} == {
        en.Rule(0, 0, 4, False),
        en.Rule(1, 1, 3, False),
    }
    assert [first[1], second[1]] == pytest.approx([parted - 1.0] * 2, abs=TIGHT)
    # Two features of four cuts each at the root; both children could split again by feature 1.
    assert best(en.DepthDecay(0.9, 1.0))[0][1] == pytest.approx(
        parted + math.log(0.9 / 2 / 4) + 2 * math.log(1 - 0.9 / 2), abs=TIGHT
    )


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_k_best_is_sorted_and_complete(seed, prior):
    problem, leaf = random_problem(seed)
    scored = en.trees(problem, prior, leaf)
    everything = en.k_best(problem, prior, scored, len(scored))
    weights = [weight for _, weight in everything]
    assert weights == sorted(weights, reverse=True)
    if prior.counts_partitions:
        assert en.logsumexp(weights) == pytest.approx(en.log_partition(scored), abs=TIGHT)
        assert weights[0] == pytest.approx(en.map_over_partitions(scored)[1], abs=TIGHT)
    elif problem.rules == "gaps":
        assert len(everything) == len(scored)
    else:
        assert weights[0] == pytest.approx(max(s.log_prior + s.log_likelihood for s in scored))


# ------------------------------------------------------------------------------- predictions


def test_predictive_by_hand():
    # Two buckets [0, 1] and [4, 6]: midpoint 2.5; a missing value goes to the rule's side.
    problem = en.Problem([[0], [1]], bucket_low=[[0, 4]], bucket_high=[[1, 6]], has_missing=[True])
    leaf = en.DirichletCategorical([0, 1], [1, 1])
    prior = en.LeafPenalty(math.log(2))
    scored = en.trees(problem, prior, leaf)
    # Weights: no split 1/6; split 1/8, half of it with missing values going left.
    split = Fraction(1, 8) / (Fraction(1, 8) + Fraction(1, 6))
    low = float((1 - split) / 2 + split * Fraction(2, 3))
    new = [[2.4999], [2.5], [100.0], [math.nan]]
    expected = [[low, 1 - low], [1 - low, low], [1 - low, low], [0.5, 0.5]]
    assert en.predictive_mean(problem, scored, leaf, new) == pytest.approx(np.array(expected))
    classes = en.predictive_density(problem, scored, leaf, new, [0, 0, 1, 1])
    assert classes == pytest.approx([low, 1 - low, low, 0.5])


def test_cuts_route_by_their_own_thresholds():
    problem = en.Problem([[0], [2]], rules="cuts", cut_thresholds=[[0.3, 1.9]])
    leaf = en.NormalInverseGamma([0.0, 3.0], 0.0, 1.0, 1.0, 1.0)
    scored = en.trees(problem, en.DescriptionLength(0.0), leaf)[1:]
    assert [en.route(problem, s.tree, [0.3]) for s in scored] == [{1}, {0}]
    assert en.predictive_mean(problem, scored, leaf, [[0.0], [1.0], [2.0]]) == pytest.approx(
        [0.0, 0.75, 1.5]
    )


def test_missing_value_that_training_never_had_is_refused():
    problem = line(2)
    leaf = en.DirichletCategorical([0, 1], [1, 1])
    scored = en.trees(problem, en.LeafPenalty(1.0), leaf)
    with pytest.raises(ValueError, match="feature 0 is missing"):
        en.predictive_mean(problem, scored, leaf, [[math.nan]])


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("seed", range(6))
def test_chain_rule(seed, prior):
    # Rows not seen yet stay in the grammar: evidence is the product of one-step predictives.
    problem, leaf = random_problem(seed, weights=None)
    data = leaf.labels if isinstance(leaf, en.DirichletCategorical) else leaf.values

    def seen(count):
        observed = [i < count for i in range(problem.num_rows)]
        if isinstance(leaf, en.DirichletCategorical):
            return en.DirichletCategorical(data, leaf.concentration, observed)
        return en.NormalInverseGamma(
            data, leaf.mean, leaf.pseudo_count, leaf.shape, leaf.scale, observed
        )

    steps = []
    for count in range(problem.num_rows):
        # Any value inside the buckets of the row's codes routes the row as training did.
        row = [
            math.nan if code == -1 else problem.bucket_low[feature][code]
            for feature, code in enumerate(problem.codes[count])
        ]
        scored = en.trees(problem, prior, seen(count))
        density = en.predictive_density(problem, scored, seen(count), [row], [data[count]])
        steps.append(math.log(density[0]))
    scored = en.trees(problem, prior, leaf)
    assert en.log_evidence(scored) == pytest.approx(math.fsum(steps), abs=1e-10)
