"""Random tiny problems, each stated twice: for the package and for the enumeration of all trees.

The table's cut points and codes are computed here by plain formulas, so that the reference depends
on nothing that `Design` does.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import enumeration as en
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2
from scipy.stats import t as student_t

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.prior_kinds import weighs_each_cut
from bdtppl.models.priors import (
    DepthDecay,
    DescriptionLength,
    GreedyPartition,
    LeafPenalty,
    Program,
)

TIGHT = 1e-9
FALSE_ALARM = 1e-4  # of every statistical test

# Each prior for the package, as a function of its rules, and for the reference.
PRIORS = {
    "leaf penalty": (lambda rules: LeafPenalty(1.3, rules=rules), en.LeafPenalty(1.3)),
    "description length": (
        lambda rules: DescriptionLength(1.7, rules=rules),
        en.DescriptionLength(1.7),
    ),
    "depth decay": (lambda rules: DepthDecay(0.9, 0.7, rules=rules), en.DepthDecay(0.9, 0.7)),
    "depth decay by gap": (
        lambda rules: DepthDecay(0.95, 0.4, cut_weights="gap", rules=rules),
        en.DepthDecay(0.95, 0.4, cut_weights="gap"),
    ),
    "greedy partition": (
        lambda rules: GreedyPartition(0.8, rules=rules),
        en.GreedyPartition(0.8),
    ),
    "greedy partition by gap": (
        lambda rules: GreedyPartition(0.7, cut_weights="gap", rules=rules),
        en.GreedyPartition(0.7, cut_weights="gap"),
    ),
}
# Sizes of arrays decide what is compiled, so each prior has one number of features.
MODELS = {
    f"{prior}, {rules}": (prior, rules, 1 + place % 3)
    for place, (prior, rules) in enumerate(itertools.product(PRIORS, ("gaps", "cuts")), start=1)
}
# Every prior and both kinds of rules, where all of `MODELS` would take too long.
SOME_MODELS = (
    "leaf penalty, gaps",
    "description length, cuts",
    "depth decay, gaps",
    "depth decay by gap, cuts",
    "greedy partition, gaps",
)
FAMILIES = ("classes", "values")


def _sizes(problem, rows):
    return len(rows)


def _left(problem, rows, rule):
    return _sizes(problem, en.part(problem, rows, rule)[0])


def _extent(problem, rows, feature):
    codes = en.present_codes(problem, rows, feature)
    if not codes:
        return 0.0
    return problem.bucket_high[feature][codes[-1]] - problem.bucket_low[feature][codes[0]]


# Laws of a split's rule, for the package as options of `DepthDecay`, or as a whole prior, and for
# the reference; both split with the same probability.
LAWS = {
    "features by weight": (
        {"feature_weights": (0.4, 0.3, 0.9)},
        {"feature_weight": lambda problem, rows, depth, f: (0.4, 0.3, 0.9)[f]},
    ),
    "all rules alike": ({"over": "rules"}, {"law": "rules"}),
    "all rules by gap and feature": (
        {"over": "rules", "cut_weights": "gap", "feature_weights": {"x0": 2.5}},
        {
            "law": "rules",
            "cut_weight": lambda problem, rows, depth, rule: en.rule_width(problem, rows, rule),
            "feature_weight": lambda problem, rows, depth, f: 2.5 if f == 0 else 1.0,
        },
    ),
    "cuts by threshold": (
        {"cut_weights": lambda node, rule: jnp.exp(-0.7 * rule.threshold)},
        {
            "cut_weight": lambda problem, rows, depth, rule: math.exp(
                -0.7 * en.rule_threshold(problem, rule)
            )
        },
    ),
    "balanced cuts, more so further down": (
        {
            "cut_weights": lambda node, rule: (
                (rule.num_left * rule.num_right) ** (1 + node.depth) / node.num_rows
            )
        },
        {
            "cut_weight": lambda problem, rows, depth, rule: (
                (_left(problem, rows, rule) * (_sizes(problem, rows) - _left(problem, rows, rule)))
                ** (1 + depth)
            )
        },
    ),
    "features by the extent of their rows": (
        {
            "feature_weights": lambda node, rule: jnp.where(
                rule.feature == 0,
                0.1 + jnp.nan_to_num(node.greatest[..., 0] - node.least[..., 0]),
                1.0 + rule.feature,
            )
        },
        {
            "feature_weight": lambda problem, rows, depth, f: (
                0.1 + _extent(problem, rows, 0) if f == 0 else 1.0 + f
            )
        },
    ),
}
CHRONOLOGICAL = {"choice": "chronological"}, {"law": "chronological"}


def law_pair(name: str, rules: str) -> tuple[Any, Any]:
    """A prior with a law of the rule, for the package and the reference."""
    if name == "program":
        return (
            Program(
                lambda node: node.num_rows / (node.num_rows + 3.0 + node.depth),
                lambda node, rule: 1.0 + rule.threshold**2,
                rules,
                feature_weights=lambda node, rule: node.num_rows + rule.feature,
            ),
            en.NodeWise(
                lambda problem, rows, depth: (
                    _sizes(problem, rows) / (_sizes(problem, rows) + 3.0 + depth)
                ),
                lambda problem, rows, depth, f: _sizes(problem, rows) + f,
                lambda problem, rows, depth, rule: 1.0 + en.rule_threshold(problem, rule) ** 2,
            ),
        )
    options, reference = CHRONOLOGICAL if name == "chronological" else LAWS[name]
    return (
        DepthDecay(0.9, 0.7, rules=rules, **options),
        en.NodeWise(lambda problem, rows, depth: 0.9 * (1 + depth) ** -0.7, **reference),
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A model and its data, in the package's words and in the reference's.

    Attributes
    ----------
    matrix, y, weights
        Values [n, d] with NaN where missing, targets [n], repeat counts [n].
    cuts
        For each feature the thresholds of the design that the test expects.
    binning
        Options of `Design.from_matrix`.
    constraints, prior, leaf
        As the package has them.
    problem, reference_prior, reference_leaf
        As the enumeration has them.
    """

    matrix: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    cuts: list[np.ndarray]
    binning: dict[str, Any]
    constraints: Constraints
    prior: Any
    leaf: Any
    problem: en.Problem
    reference_prior: Any
    reference_leaf: Any

    @functools.cached_property
    def design(self) -> Design:
        column = self.problem.column
        return Design.from_matrix(self.matrix, weights=self.weights, column=column, **self.binning)

    @functools.cached_property
    def grammar(self) -> Grammar:
        return compile_grammar(
            self.design,
            rules=self.prior.rules,
            constraints=self.constraints,
            each_cut=weighs_each_cut(self.prior),
        )

    @functools.cached_property
    def exact(self) -> ExactPosterior:
        return ExactPosterior(self.grammar, self.prior, self.leaf, self.y)

    @functools.cached_property
    def scored(self) -> list[en.ScoredTree]:
        return en.trees(self.problem, self.reference_prior, self.reference_leaf)

    @functools.cached_property
    def probabilities(self) -> dict[Any, float]:
        return en.tree_probabilities(self.scored)

    @property
    def model(self) -> TreeModel:
        """The model of the case."""
        return TreeModel(self.design, self.y, self.prior, self.leaf, self.constraints)

    def posterior(self, kind: type[ExactPosterior] = ExactPosterior, **changes) -> ExactPosterior:
        """Return a fresh posterior, of another class, prior, leaf or targets where given."""
        model = {"prior": self.prior, "leaf": self.leaf, "y": self.y} | changes
        # A grammar keeps scores, which a broken kind must neither take over nor leave behind.
        grammar = replace(self.grammar, normalisers={}, leaf_scores={})
        return kind(grammar, **model)

    def with_columns(self, *column: int) -> "Case":
        """Put features into columns, by a number for each."""
        return replace(self, problem=replace(self.problem, column=column))

    def observing(self, observed: np.ndarray | None) -> Any:
        """Return the reference's leaf when only some rows are observed."""
        return replace(self.reference_leaf, observed=observed)


def expected_cuts(values, weights, *, bins=None, binning="quantile", grid=None) -> np.ndarray:
    """Thresholds of a feature by the definition, from its present values [n]."""
    distinct = sorted(set(values))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(distinct)]
    if grid is not None:
        span = distinct[-1] - distinct[0]
        points = np.linspace(0, 1, grid + 2)[1:-1]
        return distinct[0] + span * points if span else np.empty(0)
    if bins is None or len(distinct) <= bins:
        return np.array(middles)
    if binning == "uniform":
        edges = np.linspace(distinct[0], distinct[-1], bins + 1)[1:-1]
    elif all(weight == int(weight) for weight in weights):
        edges = np.quantile(np.repeat(values, np.int64(weights)), np.arange(1, bins) / bins)
    else:
        edges = []
    # An edge parts the values below it from those that are not; one cut in each gap so parted.
    parted = {sum(value < edge for value in distinct) for edge in edges} - {0, len(distinct)}
    if binning == "quantile" and len(parted) < bins - 1:
        parted = nearest_gaps(values, weights, bins)
    return np.array([middles[below - 1] for below in sorted(parted)])


def nearest_gaps(values, weights, bins: int) -> tuple[int, ...]:
    """Try all choices of gaps for equal shares of the rows: how many distinct values each parts."""
    distinct, total = sorted(set(values)), sum(weights)
    held = [sum(w for v, w in zip(values, weights, strict=True) if v < cut) for cut in distinct]

    def distance(gaps):
        return sum(abs(bins * held[g] - i * total) for i, g in enumerate(gaps, 1))

    return min(itertools.combinations(range(1, len(distinct)), bins - 1), key=distance)


def codes_of(matrix: np.ndarray, cuts: list[np.ndarray], grid: int | None = None) -> np.ndarray:
    """Code of each value: how many cut points lie at or below it, -1 where it is missing.

    On a grid the scaled value is compared with the grid's points.
    """
    codes = np.full(matrix.shape, -1)
    for f, column in enumerate(matrix.T):
        present = ~np.isnan(column)
        values, points = column[present], cuts[f]
        if grid is not None and len(points):
            values = (values - values.min()) / (values.max() - values.min())
            points = np.linspace(0, 1, grid + 2)[1:-1]
        codes[present, f] = [sum(value >= point for point in points) for value in values]
    return codes


def state(matrix, weights, constraints, *, rules, **binning) -> tuple[en.Problem, list[np.ndarray]]:
    """State a table for the enumeration; also the cut points of its features."""
    num_features = matrix.shape[1]
    present = [~np.isnan(column) for column in matrix.T]
    cuts = [
        expected_cuts(matrix[here, f], weights[here], **binning) for f, here in enumerate(present)
    ]
    codes = codes_of(matrix, cuts, binning.get("grid"))

    def edges(f, least_or_greatest):
        # A code that no row has is never a side of a gap.
        return [
            least_or_greatest(matrix[codes[:, f] == code, f], default=math.nan)
            for code in range(len(cuts[f]) + 1)
        ]

    allowed = constraints.features
    boxes = [
        {f: (low, high) for f, low, high in box.intervals} for box in constraints.keep_together
    ]
    problem = en.Problem(
        codes,
        num_codes=[len(c) + 1 for c in cuts],
        weights=weights,
        bucket_low=[edges(f, min) for f in range(num_features)],
        bucket_high=[edges(f, max) for f in range(num_features)],
        cut_thresholds=cuts,
        rules=rules,
        min_leaf=constraints.min_leaf,
        max_depth=constraints.max_depth,
        allowed_features=allowed,
        boxes=boxes,
        features_at_depth=dict(constraints.features_at_depth),
        before=constraints.before,
    )
    return problem, cuts


def leaf_pair(family: str, y: np.ndarray) -> tuple[Any, Any]:
    """Leaf families with prior parameters of no special value, for the package and reference."""
    if family == "classes":
        concentration = [0.5, 1.0, 2.0]
        return DirichletCategorical(np.array(concentration)), en.DirichletCategorical(
            y.tolist(), concentration
        )
    return NormalInverseGamma(0.2, 0.7, 1.5, 0.9), en.NormalInverseGamma(
        y.tolist(), 0.2, 0.7, 1.5, 0.9
    )


def random_case(model: str, family: str, seed: int, *, most_trees: int = 2000, **fixed) -> Case:
    """Draw a problem of 30 to ``most_trees`` trees.

    Ties, repeated rows, missing values, weights, buckets, leaf sizes, depth limits and restricted
    features all occur; ``fixed`` sets options of the draw (see the code).
    """
    prior_name, rules, num_features = MODELS[model]
    package_prior, reference_prior = PRIORS[prior_name]
    rng = np.random.default_rng([list(MODELS).index(model), FAMILIES.index(family), seed])
    priors = package_prior(rules), reference_prior
    return _draw_case(rng, rules, num_features, priors, family, most_trees, fixed)


def case_of_law(law: str, rules: str, family: str, seed: int, *, num_features=3, **fixed) -> Case:
    """Draw a problem under a law of the rule (`law_pair`), with an option ``path`` or without."""
    rng = np.random.default_rng([len(law), len(rules), FAMILIES.index(family), seed])
    most_trees = fixed.pop("most_trees", 2000)
    priors = law_pair(law, rules)
    return _draw_case(rng, rules, num_features, priors, family, most_trees, fixed)


def random_path(rng, matrix: np.ndarray, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Draw constraints on the path of some kinds: "boxes", "levels", "order"."""
    num_features = matrix.shape[1]
    drawn: dict[str, Any] = {}
    if "boxes" in kinds:
        boxes = []
        for _ in range(2):
            intervals = {}
            for f in rng.permutation(num_features)[: rng.integers(1, num_features + 1)]:
                low, high = np.sort(rng.choice(np.unique(matrix[~np.isnan(matrix[:, f]), f]), 2))
                ends = (None, high), (low, None), (low, high), (low + 0.1, high + 0.1)
                intervals[int(f)] = ends[rng.integers(4)]
            boxes.append(KeepTogether(intervals))
        drawn["keep_together"] = boxes
    if "levels" in kinds:
        some = rng.permutation(num_features).tolist()
        drawn["features_at_depth"] = {0: some[: max(1, num_features - 1)], 2: some[:1]}
    if "order" in kinds:
        some = rng.permutation(num_features).tolist()
        drawn["before"] = tuple(itertools.pairwise(some))
    return drawn


def _draw_case(rng, rules, num_features, priors, family, most_trees, fixed) -> Case:
    kinds = fixed.pop("path", ())
    while True:
        options = _random_options(rng, num_features) | fixed
        matrix = _random_matrix(rng, num_features, options)
        num_rows = len(matrix)
        weights = np.ones(num_rows, int)
        if options["weighted"]:  # by counts, or by other numbers, whose sums are exact
            weights = rng.integers(1, 4, num_rows)
            weights = weights / 2 + np.arange(num_rows) / 64 if num_rows % 2 else weights
        binning = options["binning"]
        constraints = Constraints(
            min_leaf=options["min_leaf"],
            max_depth=options["max_depth"],
            features=options["features"],
            **random_path(rng, matrix, kinds) if not np.isnan(matrix).all(axis=0).any() else {},
        )
        y = rng.integers(0, 3, num_rows) if family == "classes" else rng.normal(size=num_rows)
        if np.isnan(matrix).all(axis=0).any():
            continue
        problem, cuts = state(matrix, weights, constraints, rules=rules, **binning)
        free = replace(problem, boxes=(), features_at_depth=None, before=())
        is_bound = not kinds or en.count_trees(problem) < en.count_trees(free)
        least_trees = 15 if kinds else 30
        if is_bound and least_trees <= en.count_trees(problem) <= most_trees:
            break
    leaf, reference_leaf = leaf_pair(family, y)
    return Case(
        matrix=matrix,
        y=y,
        weights=weights,
        cuts=cuts,
        binning=binning,
        constraints=constraints,
        prior=priors[0],
        leaf=leaf,
        problem=problem,
        reference_prior=priors[1],
        reference_leaf=reference_leaf,
    )


def _random_options(rng, num_features: int) -> dict[str, Any]:
    return {
        "num_rows": int(rng.integers(4, 11)),
        "missing": rng.random() < 0.4,
        "repeated": rng.random() < 0.4,
        "copied": rng.random() < 0.1,
        "weighted": rng.random() < 0.5,
        "min_leaf": int(rng.choice([1, 1, 1, 2, 3])),
        "max_depth": (None, None, 1, 2, 3, 20)[rng.integers(6)],
        "features": (None, None, tuple(range(1, num_features)) or None)[rng.integers(3)],
        "binning": (
            {},
            {},
            {"bins": 2},
            {"bins": 3},
            {"bins": 3, "binning": "uniform"},
            {"grid": 3},
            {"grid": 4},
        )[rng.integers(7)],
    }


def _random_matrix(rng, num_features: int, options: dict[str, Any]) -> np.ndarray:
    num_rows = options["num_rows"]
    columns = []
    for _ in range(num_features):
        levels = int(rng.integers(2, 10 if num_features == 1 else 5))
        values = np.cumsum(rng.uniform(0.2, 1.0, levels)) if rng.random() < 0.7 else range(levels)
        columns.append(rng.choice(np.asarray(values, float), num_rows))
    matrix = np.stack(columns, axis=1)
    if options["copied"]:  # equivalent rules
        matrix[:, -1] = matrix[:, 0] ** 2
    if options["missing"]:
        matrix[rng.random(matrix.shape) < 0.2] = np.nan
    if options["repeated"]:
        matrix = np.concatenate([matrix, matrix[rng.integers(0, num_rows, 2)]])
    return matrix


# ------------------------------------------------------------------------- from trees to keys


def rule_tree(
    case: Case,
    tree: Tree,
    *,
    slot: int = 0,
    rows: frozenset[int] | None = None,
    path: en.Path = (),
) -> Any:
    """Read one tree of arrays as the reference's rule-tree, by sending the training rows down."""
    problem = case.problem
    rows = problem.all_rows if rows is None else rows
    feature = int(tree.feature[slot])
    if feature < 0:
        return en.Leaf(rows)
    threshold, missing_left = float(tree.threshold[slot]), bool(tree.missing_left[slot])
    values = {row: case.matrix[row, feature] for row in rows}
    present = {row for row in rows if not math.isnan(values[row])}
    below = {row for row in present if values[row] < threshold}
    left = frozenset(below | (rows - present if missing_left else set()))
    assert set() < below < present, "a rule parts the values of its node"
    if problem.rules == "gaps":
        low = max(problem.codes[row][feature] for row in below)
        high = min(problem.codes[row][feature] for row in present - below)
        expected = en.rule_threshold(problem, en.Rule(feature, low, high, missing_left), path)
        assert abs(threshold - expected) < 1e-12, "a gap is cut at its middle, or beside boxes"
    else:
        distance = np.abs(case.cuts[feature] - threshold)
        assert distance.min() < 1e-12, "a cut is one of the design's"
        high = int(distance.argmin()) + 1
        low = high - 1
    return en.Split(
        en.Rule(feature, low, high, missing_left),
        *(
            rule_tree(
                case, tree, slot=int(child), rows=own, path=(*path, (feature, threshold, is_left))
            )
            for child, own, is_left in (
                (tree.left[slot], left, True),
                (tree.right[slot], rows - left, False),
            )
        ),
    )


def rule_trees(case: Case, trees: Tree) -> list[Any]:
    """Read a batch [b] of trees, each distinct one once."""
    flat = trees.reshape(-1)
    arrays = [flat.feature, np.nan_to_num(flat.threshold), flat.missing_left, flat.left, flat.right]
    _, first, inverse = np.unique(
        np.concatenate(arrays, axis=1), axis=0, return_index=True, return_inverse=True
    )
    distinct = [rule_tree(case, flat[int(i)]) for i in first]
    return [distinct[i] for i in inverse.ravel()]


def depth_of(tree: Any) -> int:
    """Levels of splits of a rule-tree."""
    if isinstance(tree, en.Leaf):
        return 0
    return 1 + max(depth_of(tree.left), depth_of(tree.right))


def rows_of_node(grammar: Grammar, node: int) -> frozenset[int]:
    """Training rows of a subproblem."""
    cells = np.flatnonzero(grammar.membership(np.array([node]))[0])
    return frozenset(np.flatnonzero(np.isin(grammar.cell_of_row, cells)).tolist())


def node_rows(grammar: Grammar) -> list[frozenset[int]]:
    """Training rows of every subproblem."""
    return [rows_of_node(grammar, node) for node in range(grammar.num_subproblems)]


def rules_of_production(grammar: Grammar, production: int) -> list[en.Rule]:
    """All rules that a production stands for, in the reference's words."""
    feature = int(grammar.feature[production])
    offset = int(grammar.design.offset[feature])
    low, high = int(grammar.low[production]) - offset, int(grammar.high[production]) - offset
    missing_left = grammar.missing_left is not None and bool(grammar.missing_left[production])
    if grammar.rules == "gaps":
        return [en.Rule(feature, low, high, missing_left)]
    if grammar.cut is not None:
        low = int(grammar.cut[production]) - offset - 1
        high = low + 1
    return [en.Rule(feature, v - 1, v, missing_left) for v in range(low + 1, high + 1)]


# ------------------------------------------------------------------------------- predictions


def queries(case: Case, count: int = 5) -> np.ndarray:
    """New rows: training rows, rows between training values, and rows with missing entries."""
    rng = np.random.default_rng(0)
    low, high = np.nanmin(case.matrix, axis=0), np.nanmax(case.matrix, axis=0)
    between = rng.uniform(low - 0.3, high + 0.3, (count, case.matrix.shape[1]))
    between[rng.random(between.shape) < 0.3 * case.design.has_missing] = np.nan
    return np.concatenate([case.matrix[:2], between])


def mixture_cdf(case: Case, leaves: Mapping[frozenset, float], y):
    """CDF of the reference's predictive of a regression target."""
    total = 0.0
    for leaf, p in leaves.items():
        _, mean, pseudo_count, shape, scale = case.reference_leaf.posterior(case.problem, leaf)
        width = math.sqrt(scale * (pseudo_count + 1) / (shape * pseudo_count))
        total = total + p * student_t.cdf(y, 2 * shape, mean, width)
    return total


# --------------------------------------------------------------------------- statistical tests


def g_test(observed: Counter, expected: Mapping[Hashable, float]) -> float:
    """p-value of the likelihood ratio test of counts against probabilities.

    Cells of expectation below 5 are pooled; an outcome of probability 0 gives p = 0.
    """
    total = sum(observed.values())
    if any(expected.get(outcome, 0.0) == 0.0 for outcome in observed):
        return 0.0
    cells: list[tuple[int, float]] = []
    pooled = (0, 0.0)
    for outcome, probability in sorted(expected.items(), key=lambda item: item[1]):
        pooled = pooled[0] + observed[outcome], pooled[1] + total * probability
        if pooled[1] >= 5:
            cells.append(pooled)
            pooled = (0, 0.0)
    if pooled[1] > 0:  # what is left over joins the largest cell
        last = cells.pop() if cells else (0, 0.0)
        cells.append((last[0] + pooled[0], last[1] + pooled[1]))
    if len(cells) < 2:
        raise ValueError("one cell tests nothing: take more draws")
    statistic = 2 * math.fsum(n * math.log(n / e) for n, e in cells if n)
    return float(chi2.sf(statistic, len(cells) - 1))


@functools.cache
def key(seed: int) -> jax.Array:
    return jax.random.key(seed)
