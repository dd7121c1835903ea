"""Enumerate every decision tree of a tiny data set and sum over them.

This is the reference that exact posteriors are held against. It lists all trees one by one by
plain recursion over sets of rows, in float64, and shares no code with the package: definitions
are written out as sums over explicit trees, and nothing is fast. Log weights are natural logs.

A tree is a nested tuple: ``Leaf(rows)`` or ``Split(rule, left, right)``, where ``rows`` is a
frozenset of training row indices. Two different rules give two different trees ("rule-trees"),
even where they part the rows alike; `partition_key` forgets that difference.

References
----------
Sullivan et al. 2023 (BCART-PCFG), equations 1, 9, 10, 13 and Q_max of section 5.4; Nuti et al.
2021 (GMT) for the greedy prior and the Normal-Gamma leaf; DT-GFN 2025, Table 5; Chipman, George
and McCulloch 1998 for the depth prior; Lakshminarayanan, Roy and Teh 2013 for cuts in proportion
to gap widths; Angelopoulos and Cussens 2005 for boxes that no split cuts.
"""

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.special import gammaln

__all__ = [
    "MAX_TREES",
    "DepthDecay",
    "DescriptionLength",
    "DirichletCategorical",
    "GreedyPartition",
    "Leaf",
    "LeafPenalty",
    "NodeWise",
    "NormalInverseGamma",
    "Problem",
    "Rule",
    "ScoredTree",
    "Split",
    "available_rules",
    "candidate_key",
    "chronological",
    "count_trees",
    "entropy",
    "expected_leaves",
    "feature_probabilities",
    "k_best",
    "log_evidence",
    "log_masses",
    "log_partition",
    "log_partition_by_recursion",
    "log_prior_normaliser",
    "logsumexp",
    "map_over_partitions",
    "num_leaves",
    "part",
    "partition_key",
    "partition_probabilities",
    "predictive_density",
    "predictive_mean",
    "production_probabilities",
    "productions",
    "root_rule_probabilities",
    "route",
    "tree_probabilities",
    "trees",
]

MAX_TREES = 2_000_000
MISSING = -1

Key = TypeVar("Key", bound=Hashable)

# What lies above a node: (feature, threshold, whether the node is on the left), root first.
Path = tuple[tuple[int, float, bool], ...]


# ------------------------------------------------------------------------------------- trees


class Rule(NamedTuple):
    """Name a split: a row goes left where its code is below ``high``.

    With ``rules="gaps"``, ``low`` and ``high`` are the neighbouring codes that are present in the
    node on either side of the gap. With ``rules="cuts"``, cut v is named ``low = v - 1`` and
    ``high = v``. Rows with a missing code go left if ``missing_left``; for a feature without
    missing values in training it is always False.
    """

    feature: int
    low: int
    high: int
    missing_left: bool


class Leaf(NamedTuple):
    """Hold the training rows of a leaf."""

    rows: frozenset[int]


class Split(NamedTuple):
    """Join two subtrees under a rule."""

    rule: Rule
    left: "Leaf | Split"
    right: "Leaf | Split"


class ScoredTree(NamedTuple):
    """Pair a tree with its log prior weight (unnormalised) and its log likelihood."""

    tree: Leaf | Split
    log_prior: float
    log_likelihood: float


class Production(NamedTuple):
    """Describe one way to split a node."""

    rule: Rule
    left: frozenset[int]
    right: frozenset[int]
    log_weight: float


def num_leaves(tree: Leaf | Split) -> int:
    """Count the leaves of a tree."""
    if isinstance(tree, Leaf):
        return 1
    return num_leaves(tree.left) + num_leaves(tree.right)


def tree_rows(tree: Leaf | Split) -> frozenset[int]:
    """Return all training rows under a tree."""
    if isinstance(tree, Leaf):
        return tree.rows
    return tree_rows(tree.left) | tree_rows(tree.right)


def tree_splits(tree: Leaf | Split) -> list[Split]:
    """List the inner nodes of a tree, root first."""
    if isinstance(tree, Leaf):
        return []
    return [tree, *tree_splits(tree.left), *tree_splits(tree.right)]


def partition_key(tree: Leaf | Split) -> frozenset:
    """Return what is left of a tree when rules and sides are forgotten.

    A leaf becomes its set of rows, a split the unordered pair of its children's keys. Two trees
    have one key exactly where every node is parted into the same unordered pair of sets.
    """
    if isinstance(tree, Leaf):
        return tree.rows
    return frozenset({partition_key(tree.left), partition_key(tree.right)})


# ----------------------------------------------------------------------------------- problem


@dataclass(frozen=True, eq=False)
class Problem:
    """State a table of codes and what trees on it may be.

    Parameters
    ----------
    codes : [n, d] integers
        Position of each value among the feature's codes 0, 1, ...; -1 where missing.
    num_codes : [d] integers, optional
        Number of codes of each feature; default one more than the largest code seen.
    weights : [n] positive integers, optional
        How often each row is repeated; default 1.
    has_missing : [d] booleans, optional
        Features with a missing value anywhere in training: each of their rules exists twice, with
        missing rows going right and going left. Default: read from ``codes``.
    bucket_low, bucket_high : d sequences of num_codes[f] floats, optional
        Smallest and largest value of each code's bucket; default the code itself.
    cut_thresholds : d sequences of num_codes[f] - 1 floats, optional
        Threshold of cut v at position v - 1; default v - 0.5.
    rules : {"gaps", "cuts"}
        One rule per gap between neighbouring codes present in the node, or one per cut v with
        smallest present code < v <= largest present code.
    min_leaf : float
        Smallest total weight of a child.
    max_depth : int, optional
        Depth at which a node has no rules; the root has depth 0.
    allowed_features : collection of int, optional
        Features that rules may use; default all.
    boxes : sequence of dict, optional
        Closed intervals (low, high) by feature; a split at v of the box's feature cuts it where
        low < v <= high, and no split may cut a box that lies on the node's side of all splits
        above. Features that a box does not name have the interval (-inf, inf).
    features_at_depth : dict, optional
        Features that rules at a depth may use; all at depths that are not named.
    before : sequence of (int, int), optional
        Pairs of features: the second one only below a split on the first.
    refused : set of (int, int), optional
        Features and cuts v that no rule may use, with ``rules="cuts"``.
    column : [d] integers, optional
        Features of one number are one column; default each by itself.

    Raises
    ------
    ValueError
        If the arguments do not fit together.
    """

    codes: Any
    num_codes: Any = None
    weights: Any = None
    has_missing: Any = None
    bucket_low: Any = None
    bucket_high: Any = None
    cut_thresholds: Any = None
    rules: str = "gaps"
    min_leaf: float = 1
    max_depth: int | None = None
    allowed_features: Any = None
    boxes: Any = ()
    features_at_depth: Any = None
    before: Any = ()
    refused: Any = ()
    column: Any = None

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes, dtype=int)
        if codes.ndim != 2 or len(codes) == 0:
            raise ValueError(f"codes must be [n, d] with n >= 1, got shape {codes.shape}")
        n, d = codes.shape
        missing = [bool(np.any(codes[:, f] == MISSING)) for f in range(d)]
        default = {
            "num_codes": [int(codes[:, f].max()) + 1 for f in range(d)],
            "weights": [1] * n,
            "has_missing": missing,
            "allowed_features": range(d),
            "column": range(d),
        }
        for name, value in default.items():
            given = getattr(self, name)
            object.__setattr__(self, name, list(value if given is None else given))
        object.__setattr__(self, "codes", codes.tolist())
        object.__setattr__(self, "num_codes", [int(k) for k in self.num_codes])
        default = {
            "bucket_low": [range(k) for k in self.num_codes],
            "bucket_high": [range(k) for k in self.num_codes],
            "cut_thresholds": [[v - 0.5 for v in range(1, k)] for k in self.num_codes],
        }
        for name, value in default.items():
            given = getattr(self, name)
            table = [[float(x) for x in row] for row in (value if given is None else given)]
            object.__setattr__(self, name, table)
        if self.rules not in ("gaps", "cuts"):
            raise ValueError(f"rules must be 'gaps' or 'cuts', got {self.rules!r}")
        if len(self.weights) != n or any(w <= 0 for w in self.weights):
            raise ValueError("weights must be n positive numbers")
        if len(self.num_codes) != d or len(self.has_missing) != d:
            raise ValueError("num_codes and has_missing must have one entry per feature")
        for f in range(d):
            if codes[:, f].min() < MISSING or codes[:, f].max() >= self.num_codes[f]:
                raise ValueError(f"codes of feature {f} must lie in -1..num_codes - 1")
            if missing[f] and not self.has_missing[f]:
                raise ValueError(f"feature {f} has missing codes but has_missing is False")

    @property
    def num_rows(self) -> int:
        return len(self.codes)

    @property
    def num_features(self) -> int:
        return len(self.num_codes)

    @property
    def all_rows(self) -> frozenset[int]:
        return frozenset(range(self.num_rows))

    @property
    def looks_at_path(self) -> bool:
        return bool(self.boxes or self.features_at_depth or self.before)


def present_codes(problem: Problem, rows: frozenset[int], feature: int) -> list[int]:
    """List the distinct codes of a feature in a node, sorted, without missing ones."""
    return sorted({problem.codes[row][feature] for row in rows} - {MISSING})


def part(
    problem: Problem, rows: frozenset[int], rule: Rule
) -> tuple[frozenset[int], frozenset[int]]:
    """Part a node's rows into those that a rule sends left and right."""
    left = set()
    for row in rows:
        code = problem.codes[row][rule.feature]
        if rule.missing_left if code == MISSING else code < rule.high:
            left.add(row)
    return frozenset(left), rows - left


def enclosing_gap(problem: Problem, rows: frozenset[int], rule: Rule) -> tuple[int, int]:
    """Return the neighbouring codes present in the node between which a rule cuts."""
    present = present_codes(problem, rows, rule.feature)
    return max(c for c in present if c < rule.high), min(c for c in present if c >= rule.high)


def rule_threshold(problem: Problem, rule: Rule, path: Path = ()) -> float:
    """Return the value below which a rule sends a row left, in a node below these splits."""
    if problem.rules == "cuts":
        return problem.cut_thresholds[rule.feature][rule.high - 1]
    below = problem.bucket_high[rule.feature][rule.low]
    above = problem.bucket_low[rule.feature][rule.high]
    held = [box_interval(box, rule.feature) for box in problem.boxes if is_held(box, path)]
    middle = (below + above) / 2

    def is_free(threshold):
        return not any(low < threshold <= high for low, high in held)

    ends = sorted({below, above, *(end for ends in held for end in ends if below < end < above)})
    parts = [part for part in itertools.pairwise(ends) if is_free(part[1])]
    if is_free(middle) or not parts:
        return middle
    return sum(min(parts, key=lambda part: max(middle - part[1], part[0] - middle))) / 2


def tree_thresholds(
    problem: Problem, tree: "Leaf | Split", path: Path = ()
) -> list[tuple[int, float]]:
    """List the feature and the threshold of each split of a tree."""
    if isinstance(tree, Leaf):
        return []
    below = zip(paths_below(problem, path, tree.rule), (tree.left, tree.right), strict=True)
    found = [(tree.rule.feature, rule_threshold(problem, tree.rule, path))]
    return found + [each for path, child in below for each in tree_thresholds(problem, child, path)]


def box_interval(box, feature: int) -> tuple[float, float]:
    """Return the interval of a box on a feature."""
    return box.get(feature, (-math.inf, math.inf))


def is_held(box, path: Path) -> bool:
    """Whether a node below these splits holds a box whole."""
    return all(
        box_interval(box, f)[1] < v if is_left else v <= box_interval(box, f)[0]
        for f, v, is_left in path
    )


def path_allows(problem: Problem, path: Path, feature: int, threshold: float) -> bool:
    """Whether what lies above a node leaves it a rule."""
    levels = problem.features_at_depth or {}
    if feature not in levels.get(len(path), [feature]):
        return False
    used = {step[0] for step in path}
    if any(then == feature and first not in used for first, then in problem.before):
        return False
    for box in problem.boxes:
        low, high = box_interval(box, feature)
        if is_held(box, path) and low < threshold <= high:
            return False
    return True


def paths_below(problem: Problem, path: Path, rule: Rule) -> tuple[Path, Path]:
    """Return the paths of the left and right child; empty where nothing looks at them."""
    if not problem.looks_at_path:
        return (), ()
    step = rule.feature, rule_threshold(problem, rule, path)
    return (*path, (*step, True)), (*path, (*step, False))


def available_rules(
    problem: Problem, rows: frozenset[int], depth: int, path: Path = ()
) -> list[Rule]:
    """List the rules of a node that the constraints leave.

    Parameters
    ----------
    rows : frozenset of int
        The node's training rows.
    depth : int
        Depth of the node; the root has 0.
    path : tuple
        The splits above it.
    """
    if problem.max_depth is not None and depth >= problem.max_depth:
        return []
    rules = []
    for feature in sorted(problem.allowed_features):
        present = present_codes(problem, rows, feature)
        if not present:
            continue
        if problem.rules == "gaps":
            places = list(itertools.pairwise(present))
        else:
            cuts = range(1, problem.num_codes[feature])
            cuts = [v for v in cuts if (feature, v) not in problem.refused]
            places = [(v - 1, v) for v in cuts if present[0] < v <= present[-1]]
        sides = (False, True) if problem.has_missing[feature] else (False,)
        for (low, high), missing_left in itertools.product(places, sides):
            rule = Rule(feature, low, high, missing_left)
            children = part(problem, rows, rule)
            is_large = all(len(child) >= problem.min_leaf for child in children)
            threshold = rule_threshold(problem, rule, path)
            if is_large and path_allows(problem, path, feature, threshold):
                rules.append(rule)
    return rules


# ------------------------------------------------------------------------------------ priors


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def rule_width(problem: "Problem", rows: frozenset[int], rule: Rule) -> float:
    """Return the width that a rule has a share of: its gap's, parted among the gap's rules."""
    low, high = enclosing_gap(problem, rows, rule)
    width = problem.bucket_low[rule.feature][high] - problem.bucket_high[rule.feature][low]
    return width if problem.rules == "gaps" else width / (high - low)


def cut_share(cut_weights: str, problem: "Problem", rows, rules: list[Rule], rule: Rule) -> float:
    """Return the probability of a rule among the available ones of its column."""
    siblings = [r for r in rules if problem.column[r.feature] == problem.column[rule.feature]]
    if cut_weights == "uniform":
        return 1 / len(siblings)
    widths = [rule_width(problem, rows, sibling) for sibling in siblings]
    return rule_width(problem, rows, rule) / math.fsum(widths)


@dataclass(frozen=True)
class LeafPenalty:
    """Weigh a tree by phi^(1 - leaves), each two-way partition of a node counted once.

    A partition's weight 1/phi is shared equally among the node's available rules that make it
    (Sullivan et al. 2023, equations 9 and 13).
    """

    log_phi: float
    counts_partitions = True

    def log_stop(self, problem, rows, depth, rules) -> float:
        return 0.0

    def log_split(self, problem, rows, depth, rules, rule) -> float:
        partition = frozenset(part(problem, rows, rule))
        equivalent = [r for r in rules if frozenset(part(problem, rows, r)) == partition]
        return -self.log_phi - math.log(len(equivalent))


@dataclass(frozen=True)
class DescriptionLength:
    """Weigh a tree by exp(-beta) a split, each rule counted by itself (DT-GFN 2025)."""

    beta: float
    counts_partitions = False

    def log_stop(self, problem, rows, depth, rules) -> float:
        return 0.0

    def log_split(self, problem, rows, depth, rules, rule) -> float:
        return -self.beta


@dataclass(frozen=True)
class DepthDecay:
    """Split with probability alpha (1 + depth)^(-beta), then choose a feature, then a rule of it.

    The feature is uniform among those with an available rule. Its rules are equally likely with
    ``cut_weights="uniform"``, in proportion to their widths with ``"gap"``: a gap's width is the
    low edge of the upper bucket minus the high edge of the lower one, and cuts inside one gap
    share its width equally (Chipman et al. 1998; Lakshminarayanan et al. 2013).
    """

    alpha: float
    beta: float
    cut_weights: str = "uniform"
    counts_partitions = False

    def __post_init__(self) -> None:
        if self.cut_weights not in ("uniform", "gap"):
            raise ValueError(f"cut_weights must be 'uniform' or 'gap', got {self.cut_weights!r}")

    def split_probability(self, depth: int) -> float:
        probability = self.alpha * (1 + depth) ** (-self.beta)
        if not 0 <= probability <= 1:
            raise ValueError(f"alpha (1 + depth)^(-beta) must lie in [0, 1], got {probability}")
        return probability

    def log_stop(self, problem, rows, depth, rules) -> float:
        return _log(1 - self.split_probability(depth)) if rules else 0.0

    def log_split(self, problem, rows, depth, rules, rule) -> float:
        columns = {problem.column[r.feature] for r in rules}
        share = cut_share(self.cut_weights, problem, rows, rules, rule)
        return _log(self.split_probability(depth)) - math.log(len(columns)) + _log(share)


@dataclass(frozen=True)
class GreedyPartition:
    """Weigh splits by p^(1 + depth) / (d x cuts of the feature) (Nuti et al. 2021).

    d counts all features, also those that a node cannot split, so the weights of a node's choices
    may sum to less than 1. With ``cut_weights="gap"`` a feature's share is parted in proportion to
    the widths of its gaps instead.
    """

    p: float
    cut_weights: str = "uniform"
    counts_partitions = False

    def log_stop(self, problem, rows, depth, rules) -> float:
        return _log(1 - self.p ** (1 + depth)) if rules else 0.0

    def log_split(self, problem, rows, depth, rules, rule) -> float:
        share = cut_share(self.cut_weights, problem, rows, rules, rule)
        return (1 + depth) * _log(self.p) - math.log(len(set(problem.column))) + _log(share)


def chronological(num_items: int, valid: Sequence[int]) -> dict[int, float]:
    """Return the law of a uniform choice by a walk along a list, items 0 to num_items - 1.

    At each item a coin says whether to take it; an item that is not valid is walked past, and the
    last valid one is taken for certain (backtracking of a logic program).
    """
    mass, law = 1.0, {}
    for item in range(num_items):
        if item in valid:
            law[item] = mass if item == max(valid) else mass / (num_items - item)
            mass -= law[item]
    return law


@dataclass(frozen=True)
class NodeWise:
    """Split with a probability of the node's own, then choose a rule by weights.

    ``split_probability(problem, rows, depth)``, ``feature_weight(problem, rows, depth, feature)``
    and ``cut_weight(problem, rows, depth, rule)`` are plain functions. ``law`` is "features"
    (feature by weight, then one of its rules by weight), "rules" (one choice among all rules by the
    product of weights) or "chronological" (without weights).
    """

    split_probability: Any
    feature_weight: Any = lambda problem, rows, depth, feature: 1.0
    cut_weight: Any = lambda problem, rows, depth, rule: 1.0
    law: str = "features"
    counts_partitions = False

    def log_stop(self, problem, rows, depth, rules) -> float:
        return _log(1 - self.split_probability(problem, rows, depth)) if rules else 0.0

    def log_split(self, problem, rows, depth, rules, rule) -> float:
        node = problem, rows, depth
        share = {
            "features": self._by_features,
            "rules": self._by_rules,
            "chronological": self._by_walks,
        }[self.law]
        return _log(self.split_probability(*node)) + _log(share(node, rules, rule))

    def _by_features(self, node, rules, rule) -> float:
        column = node[0].column
        siblings = [r for r in rules if column[r.feature] == column[rule.feature]]
        cut = self.cut_weight(*node, rule) / sum(self.cut_weight(*node, r) for r in siblings)
        firsts = {column.index(column[r.feature]) for r in rules}
        total = sum(self.feature_weight(*node, f) for f in firsts)
        return cut * self.feature_weight(*node, column.index(column[rule.feature])) / total

    def _by_rules(self, node, rules, rule) -> float:
        def weight(r):
            return self.feature_weight(*node, r.feature) * self.cut_weight(*node, r)

        return weight(rule) / sum(weight(r) for r in rules)

    def _by_walks(self, node, rules, rule) -> float:
        problem = node[0]
        column = problem.column
        own = column[rule.feature]
        columns = chronological(len(set(column)), [column[r.feature] for r in rules])
        every = [
            (f, high, left)
            for f in range(problem.num_features)
            for high in range(1, problem.num_codes[f])
            for left in ((False, True) if problem.has_missing[f] else (False,))
            if column[f] == own
        ]

        def item(r):
            return every.index((r.feature, r.high, r.missing_left))

        cuts = chronological(len(every), [item(r) for r in rules if column[r.feature] == own])
        return columns[own] * cuts[item(rule)]


def productions(
    problem: Problem, prior, rows: frozenset[int], depth: int, path: Path = ()
) -> list[Production]:
    """List a node's splits with their children and log weights."""
    rules = available_rules(problem, rows, depth, path)
    return [
        Production(
            rule,
            *part(problem, rows, rule),
            prior.log_split(problem, rows, depth, rules, rule),
        )
        for rule in rules
    ]


def log_stop(problem: Problem, prior, rows: frozenset[int], depth: int, path: Path = ()) -> float:
    """Return the log weight of making a node a leaf."""
    return prior.log_stop(problem, rows, depth, available_rules(problem, rows, depth, path))


# ------------------------------------------------------------------------------------ leaves


def observed_values(problem: Problem, values, observed, rows: frozenset[int]) -> list:
    """List the observed values in a node with their rows' weights, as pairs."""
    return [
        (values[row], problem.weights[row])
        for row in sorted(rows)
        if observed is None or observed[row]
    ]


@dataclass(frozen=True, eq=False)
class DirichletCategorical:
    """Give class labels in a leaf a categorical law with a Dirichlet prior.

    Parameters
    ----------
    labels : [n] integers 0..c-1
    concentration : [c] positive floats
    observed : [n] booleans, optional
        Rows whose label counts; the others stay in the grammar alone. Default all.
    """

    labels: Sequence[int]
    concentration: Sequence[float]
    observed: Sequence[bool] | None = None

    def counts(self, problem: Problem, rows: frozenset[int]) -> list[float]:
        labels = observed_values(problem, self.labels, self.observed, rows)
        return [
            math.fsum(weight for label, weight in labels if label == c)
            for c in range(len(self.concentration))
        ]

    def log_marginal(self, problem: Problem, rows: frozenset[int]) -> float:
        """Return log beta(counts + concentration) - log beta(concentration).

        Probability of the labels as a sequence (Sullivan et al. 2023, equations 1 and 2).
        """

        def log_beta(gamma):
            return math.fsum(gammaln(g) for g in gamma) - gammaln(math.fsum(gamma))

        counts = self.counts(problem, rows)
        posterior = [n + a for n, a in zip(counts, self.concentration, strict=True)]
        return float(log_beta(posterior) - log_beta(self.concentration))

    def predictive_mean(self, problem: Problem, rows: frozenset[int]) -> np.ndarray:
        """Return the probability of each class for a new row in the leaf, [c]."""
        counts = self.counts(problem, rows)
        posterior = [n + a for n, a in zip(counts, self.concentration, strict=True)]
        return np.array([g / math.fsum(posterior) for g in posterior])

    def predictive_density(self, problem: Problem, rows: frozenset[int], value: int) -> float:
        """Return the probability of one class for a new row in the leaf."""
        return float(self.predictive_mean(problem, rows)[value])


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    """Give values in a leaf a normal law with unknown mean and variance.

    variance ~ InverseGamma(shape, scale); leaf mean given it ~ Normal(mean, variance /
    pseudo_count) (Nuti et al. 2021: the Normal-Gamma with mu, kappa, a, b).

    Parameters
    ----------
    values : [n] floats
    mean, pseudo_count, shape, scale : float
    observed : [n] booleans, optional
        Rows whose value counts; the others stay in the grammar alone. Default all.
    """

    values: Sequence[float]
    mean: float
    pseudo_count: float
    shape: float
    scale: float
    observed: Sequence[bool] | None = None

    def posterior(
        self, problem: Problem, rows: frozenset[int]
    ) -> tuple[float, float, float, float, float]:
        """Return the weight of the values and the updated mean, pseudo_count, shape and scale."""
        values = observed_values(problem, self.values, self.observed, rows)
        if not values:
            return 0, self.mean, self.pseudo_count, self.shape, self.scale
        n = math.fsum(weight for _, weight in values)
        average = math.fsum(weight * value for value, weight in values) / n
        sum_of_squares = math.fsum(weight * (value - average) ** 2 for value, weight in values)
        kappa = self.pseudo_count
        shift = kappa * n * (average - self.mean) ** 2 / (2 * (kappa + n))
        return (
            n,
            (kappa * self.mean + n * average) / (kappa + n),
            kappa + n,
            self.shape + n / 2,
            self.scale + sum_of_squares / 2 + shift,
        )

    def log_marginal(self, problem: Problem, rows: frozenset[int]) -> float:
        """Return the log marginal density of the values in a node."""
        n, _, pseudo_count, shape, scale = self.posterior(problem, rows)
        return float(
            gammaln(shape)
            - gammaln(self.shape)
            + self.shape * math.log(self.scale)
            - shape * math.log(scale)
            + (math.log(self.pseudo_count) - math.log(pseudo_count)) / 2
            - n * math.log(2 * math.pi) / 2
        )

    def predictive_mean(self, problem: Problem, rows: frozenset[int]) -> np.ndarray:
        """Return the predictive mean of a new row in the leaf, a scalar array."""
        return np.array(self.posterior(problem, rows)[1])

    def predictive_density(self, problem: Problem, rows: frozenset[int], value: float) -> float:
        """Return the Student-t predictive density of a new row in the leaf.

        2 shape degrees of freedom, squared scale scale (pseudo_count + 1) / (shape pseudo_count),
        all after the update.
        """
        _, mean, pseudo_count, shape, scale = self.posterior(problem, rows)
        freedom = 2 * shape
        square = scale * (pseudo_count + 1) / (shape * pseudo_count)
        log_density = (
            gammaln((freedom + 1) / 2)
            - gammaln(freedom / 2)
            - math.log(freedom * math.pi * square) / 2
            - (freedom + 1) / 2 * math.log1p((value - mean) ** 2 / (freedom * square))
        )
        return math.exp(log_density)


def leaf_log_marginal(problem: Problem, leaf, rows: frozenset[int]) -> float:
    """Return a leaf's log marginal likelihood, 0 where ``leaf`` is None (no data)."""
    return 0.0 if leaf is None else leaf.log_marginal(problem, rows)


# ------------------------------------------------------------------------------- enumeration


def count_trees(problem: Problem) -> int:
    """Count the rule-trees of a problem without listing them."""

    @functools.cache
    def count(rows: frozenset[int], depth: int, path: Path) -> int:
        total = 1
        for rule in available_rules(problem, rows, depth, path):
            left, right = part(problem, rows, rule)
            left_path, right_path = paths_below(problem, path, rule)
            total += count(left, depth + 1, left_path) * count(right, depth + 1, right_path)
        return total

    return count(problem.all_rows, 0, ())


def trees(problem: Problem, prior, leaf, max_trees: int = MAX_TREES) -> list[ScoredTree]:
    """List every rule-tree with its log prior weight and log likelihood.

    Parameters
    ----------
    problem : Problem
    prior : LeafPenalty, DescriptionLength, DepthDecay, GreedyPartition
        Anything with ``log_stop``, ``log_split`` and ``counts_partitions``.
    leaf : DirichletCategorical, NormalInverseGamma or None
        Anything with ``log_marginal(problem, rows)``; None gives every tree likelihood 1.
    max_trees : int
        Largest number of trees to list.

    Raises
    ------
    ValueError
        If there are more than ``max_trees`` trees.
    """
    total = count_trees(problem)
    if total > max_trees:
        raise ValueError(
            f"the problem has {total:,} trees, more than max_trees = {max_trees:,}: "
            "take fewer rows, codes or features, a smaller max_depth or a larger min_leaf"
        )

    @functools.cache
    def grow(rows: frozenset[int], depth: int, path: Path) -> list[ScoredTree]:
        stop = log_stop(problem, prior, rows, depth, path)
        found = [ScoredTree(Leaf(rows), stop, leaf_log_marginal(problem, leaf, rows))]
        for rule, left_rows, right_rows, log_weight in productions(
            problem, prior, rows, depth, path
        ):
            left_path, right_path = paths_below(problem, path, rule)
            for left in grow(left_rows, depth + 1, left_path):
                for right in grow(right_rows, depth + 1, right_path):
                    found.append(
                        ScoredTree(
                            Split(rule, left.tree, right.tree),
                            log_weight + left.log_prior + right.log_prior,
                            left.log_likelihood + right.log_likelihood,
                        )
                    )
        return found

    return grow(problem.all_rows, 0, ())


def logsumexp(terms) -> float:
    """Return the log of the sum of exponentials."""
    terms = list(terms)
    top = max(terms, default=-math.inf)
    if top == -math.inf:
        return -math.inf
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))


def log_partition(scored: list[ScoredTree]) -> float:
    """Return the log of the sum over trees of prior weight times likelihood."""
    return logsumexp(s.log_prior + s.log_likelihood for s in scored)


def log_prior_normaliser(scored: list[ScoredTree]) -> float:
    """Return the log of the sum over trees of the prior weights."""
    return logsumexp(s.log_prior for s in scored)


def log_evidence(scored: list[ScoredTree]) -> float:
    """Return the log marginal likelihood of the data under the normalised prior."""
    return log_partition(scored) - log_prior_normaliser(scored)


def log_partition_by_recursion(problem: Problem, prior, leaf) -> float:
    """Return `log_partition` by a sum at every node instead of a list of trees.

    Q(N) = stop x L(N) + sum over rules of weight x Q(left) x Q(right) (Sullivan et al. 2023,
    equation 13), with depth as part of the node.
    """

    @functools.cache
    def log_q(rows: frozenset[int], depth: int, path: Path) -> float:
        rules = available_rules(problem, rows, depth, path)
        likelihood = leaf_log_marginal(problem, leaf, rows)
        terms = [prior.log_stop(problem, rows, depth, rules) + likelihood]
        for rule in rules:
            left, right = part(problem, rows, rule)
            weight = prior.log_split(problem, rows, depth, rules, rule)
            left_path, right_path = paths_below(problem, path, rule)
            below = log_q(left, depth + 1, left_path) + log_q(right, depth + 1, right_path)
            terms.append(weight + below)
        return logsumexp(terms)

    return log_q(problem.all_rows, 0, ())


# --------------------------------------------------------------------- what follows from them


def tree_probabilities(scored: list[ScoredTree]) -> dict[Leaf | Split, float]:
    """Return the posterior probability of every rule-tree."""
    total = log_partition(scored)
    return {s.tree: math.exp(s.log_prior + s.log_likelihood - total) for s in scored}


def _grouped(pairs: Iterable[tuple[Key, float]]) -> dict[Key, list[float]]:
    groups: dict[Key, list[float]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def partition_probabilities(scored: list[ScoredTree]) -> dict[frozenset, float]:
    """Return the posterior probability of every tree of partitions, by `partition_key`."""
    pairs = ((partition_key(tree), p) for tree, p in tree_probabilities(scored).items())
    return {key: math.fsum(values) for key, values in _grouped(pairs).items()}


def map_over_partitions(scored: list[ScoredTree]) -> tuple[frozenset, float]:
    """Return the tree of partitions with most weight, and its log weight.

    The weight is the sum over the rule-trees that make it: prior weight times likelihood,
    unnormalised (Q_max in section 5.4 of Sullivan et al. 2023).
    """
    pairs = ((partition_key(s.tree), s.log_prior + s.log_likelihood) for s in scored)
    summed = {key: logsumexp(values) for key, values in _grouped(pairs).items()}
    best = max(summed, key=summed.__getitem__)
    return best, summed[best]


def candidate_key(problem: Problem, prior, tree: Leaf | Split) -> Any:
    """Return what MAP and k best take as one candidate.

    For a prior that counts partitions: `partition_key`. Otherwise the rule-tree itself, where
    every cut is named by its gap: cuts inside one gap with one missing side are one candidate,
    unless the prior or a box may tell them apart.
    """
    if prior.counts_partitions:
        return partition_key(tree)
    if isinstance(tree, Leaf) or problem.boxes or isinstance(prior, NodeWise):
        return tree
    low, high = enclosing_gap(problem, tree_rows(tree), tree.rule)
    return Split(
        Rule(tree.rule.feature, low, high, tree.rule.missing_left),
        candidate_key(problem, prior, tree.left),
        candidate_key(problem, prior, tree.right),
    )


def k_best(
    problem: Problem, prior, scored: list[ScoredTree], k: int
) -> list[tuple[Hashable, float]]:
    """Return the k candidates with the largest log weights, best first.

    A partition has the summed weight of its rule-trees. Any other candidate has the weight of one
    rule-tree: its cuts, which all weigh the same, are not summed. Ties come in no stated order.

    Returns
    -------
    list of (key, log weight)
        Keys as `candidate_key`; log weights are log prior plus log likelihood, unnormalised.
    """
    combine = logsumexp if prior.counts_partitions else max
    weights = _combined(problem, prior, scored, combine)
    return sorted(weights.items(), key=lambda item: -item[1])[:k]


def log_masses(problem: Problem, prior, scored: list[ScoredTree]) -> dict[Hashable, float]:
    """Sum the weights of the rule-trees of every candidate: of all its cuts."""
    return _combined(problem, prior, scored, logsumexp)


def _combined(problem: Problem, prior, scored: list[ScoredTree], combine) -> dict[Hashable, float]:
    pairs = (
        (candidate_key(problem, prior, s.tree), s.log_prior + s.log_likelihood) for s in scored
    )
    return {key: combine(values) for key, values in _grouped(pairs).items()}


def entropy(prior, scored: list[ScoredTree]) -> float:
    """Return the posterior entropy in nats, over trees as the prior counts them.

    Over trees of partitions for a prior that counts partitions, over rule-trees otherwise.
    """
    counted = partition_probabilities if prior.counts_partitions else tree_probabilities
    return -math.fsum(p * math.log(p) for p in counted(scored).values() if p > 0)


def expected_leaves(scored: list[ScoredTree]) -> float:
    """Return the posterior mean of the number of leaves."""
    return math.fsum(p * num_leaves(tree) for tree, p in tree_probabilities(scored).items())


def feature_probabilities(problem: Problem, scored: list[ScoredTree]) -> np.ndarray:
    """Return the posterior probability that a tree uses each feature at all, [d]."""
    terms: list[list[float]] = [[] for _ in range(problem.num_features)]
    for tree, p in tree_probabilities(scored).items():
        for feature in {split.rule.feature for split in tree_splits(tree)}:
            terms[feature].append(p)
    return np.array([math.fsum(values) for values in terms])


def root_rule_probabilities(scored: list[ScoredTree]) -> dict[Rule, float]:
    """Return the posterior probability of each rule at the root; the rest is no split."""
    pairs = (
        (tree.rule, p) for tree, p in tree_probabilities(scored).items() if isinstance(tree, Split)
    )
    return {rule: math.fsum(values) for rule, values in _grouped(pairs).items()}


def production_probabilities(
    scored: list[ScoredTree],
) -> dict[tuple[frozenset[int], Rule], float]:
    """Return the posterior probability that a tree splits a set of rows by a rule, at any depth.

    A set of rows is a node of a tree at most once, so these are probabilities.
    """
    pairs = (
        ((tree_rows(split), split.rule), p)
        for tree, p in tree_probabilities(scored).items()
        for split in tree_splits(tree)
    )
    return {key: math.fsum(values) for key, values in _grouped(pairs).items()}


# ------------------------------------------------------------------------------- predictions


def route(problem: Problem, tree: Leaf | Split, x: Sequence[float]) -> frozenset[int]:
    """Return the training rows of the leaf that a new row reaches.

    ``x < threshold`` goes left. The threshold of a gap is the midpoint between the high edge of
    its lower bucket and the low edge of its upper one, or beside the boxes that lie there; that of
    cut v is ``cut_thresholds[f][v - 1]``. A missing value (NaN) goes to the side that the rule
    names.

    Raises
    ------
    ValueError
        If a value is missing that a rule asks for and the feature had none missing in training.
    """
    path: Path = ()
    while isinstance(tree, Split):
        rule = tree.rule
        value = float(x[rule.feature])
        threshold = rule_threshold(problem, rule, path)
        if math.isnan(value):
            if not problem.has_missing[rule.feature]:
                raise ValueError(
                    f"feature {rule.feature} is missing in a new row but never was in training"
                )
            left = rule.missing_left
        else:
            left = value < threshold
        path = (*path, (rule.feature, threshold, left))
        tree = tree.left if left else tree.right
    return tree.rows


def leaf_probabilities(
    problem: Problem, scored: list[ScoredTree], x: Sequence[float]
) -> dict[frozenset[int], float]:
    """Return the posterior probability of each leaf that a new row may reach."""
    pairs = ((route(problem, tree, x), p) for tree, p in tree_probabilities(scored).items())
    return {rows: math.fsum(values) for rows, values in _grouped(pairs).items()}


def predictive_mean(problem: Problem, scored: list[ScoredTree], leaf, x) -> np.ndarray:
    """Return the posterior predictive mean of new rows.

    Parameters
    ----------
    x : [m, d] floats
        Raw values on the scale of the bucket edges, NaN where missing.

    Returns
    -------
    [m, c] class probabilities, or [m] means for a regression leaf.
    """
    return np.array(
        [
            sum(
                p * leaf.predictive_mean(problem, rows)
                for rows, p in leaf_probabilities(problem, scored, row).items()
            )
            for row in x
        ]
    )


def predictive_density(problem: Problem, scored: list[ScoredTree], leaf, x, y) -> np.ndarray:
    """Return the posterior predictive density, or class probability, of y at new rows.

    Parameters
    ----------
    x : [m, d] floats
        Raw values on the scale of the bucket edges, NaN where missing.
    y : [m]
        One class or value for each new row.

    Returns
    -------
    [m] floats
    """
    return np.array(
        [
            math.fsum(
                p * leaf.predictive_density(problem, rows, value)
                for rows, p in leaf_probabilities(problem, scored, row).items()
            )
            for row, value in zip(x, y, strict=True)
        ]
    )
