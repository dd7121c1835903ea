"""Distributions of the rule of a node that splits.

A distribution gives the log probability of every available rule of a node, given that the node
splits. It is computed for tables of rules in any layout: rules of one node in a row, or all
productions of a grammar one after another (`RuleTable`).

References
----------
Angelopoulos and Cussens 2005, sections 2 and 3 (labels computed from the node; backtracking).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.models.arguments import require_choice
from bdtppl.models.data.design import Design

Rules = Literal["gaps", "cuts"]


class Node(NamedTuple):
    """Facts of a node that a prior may use; arrays that broadcast against each other.

    Attributes
    ----------
    depth
        Splits above the node; the root has depth 0.
    has_rule
        Whether any rule is available.
    num_rows
        Rows in the node, whatever their weights.
    log_num_features
        Log of the number of columns with an available rule (see `Design`); every feature is its own
        column, except those of sets of levels.
    least, greatest
        Least and greatest value of each feature in the node, [..., d]; NaN if all are missing.
    """

    depth: Any
    has_rule: Any
    num_rows: Any = None
    log_num_features: Any = None
    least: Any = None
    greatest: Any = None


class Rule(NamedTuple):
    """Facts that a prior may use, of a rule, or of all rules of a node inside one gap.

    With ``rules="cuts"`` the cuts between two neighbouring values of a node split its rows alike
    and may be one entry that represents several rules; with ``rules="gaps"`` an entry represents
    one rule. Counts are given as logs, as weights use them, because a pass over millions of entries
    looks logs up.

    Attributes
    ----------
    feature
        Feature index.
    log_num_cuts
        Log of the number of rules that the entry represents.
    log_num_feature_cuts
        Log of the number of available rules of the same column in the node.
    log_width_share
        Log of the width of the entry's gap over the summed width of its column's available rules.
    log_num_equivalent
        Log of the number of rules of the node, including the entry's own, that split its rows into
        the same two sets.
    log_share
        Log probability of the rule given that its node splits, by the prior's `RuleLaw`. An entry
        represents one rule if the prior uses this fact.
    threshold
        Values below it go left.
    width
        Width of the rule's gap, shared equally among the rules in it.
    num_left, num_right
        Rows on both sides, whatever their weights.
    """

    feature: Any
    log_num_cuts: Any = None
    log_num_feature_cuts: Any = None
    log_width_share: Any = None
    log_num_equivalent: Any = None
    log_share: Any = None
    threshold: Any = None
    width: Any = None
    num_left: Any = None
    num_right: Any = None


Weight = Callable[[Node, Rule], Any]
FeatureWeights = None | Mapping[int | str, float] | Sequence[float] | Weight
CutWeights = Literal["uniform", "gap"] | Weight

NODE_FACTS = ("depth", "num_rows", "log_num_features", "least", "greatest")
RULE_FACTS = ("feature", "threshold", "width", "num_left", "num_right")
_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class RuleTable(Protocol):
    """The available rules of some nodes, in any layout; m nodes, c columns (see `Design`).

    Attributes
    ----------
    xp
        Array namespace, `numpy` or `jax.numpy`.
    item
        int; place of each rule in the list of its column's rules: cut by cut, with missing values
        right, then left.
    num_items
        int [c]; length of that list.
    """

    @property
    def xp(self) -> ModuleType:
        """Array namespace."""
        ...

    @property
    def item(self) -> Any:
        """Place of each rule in the list of its column's rules."""
        ...

    @property
    def num_items(self) -> Any:
        """Length of each column's list, [c]."""
        ...

    def per_column(self, values: Any) -> Any:
        """Sum values of rules over the rules of each node and column, [m, c]."""
        ...

    def spread(self, values: Any) -> Any:
        """Spread values [m, c] to the rules of the node and column."""
        ...

    def before(self, values: Any) -> Any:
        """Sum values over the rules of the same node and column that precede each rule."""
        ...


@dataclass(frozen=True, eq=False)
class DenseRules:
    """Rules of m nodes in a row: the R rules of a design, column by column, for each node.

    Attributes
    ----------
    column, place
        int [R]; the column, and the place in its list (see `RuleTable.item`).
    num_items
        int [c].
    by_column
        float64 [R, c]; one if the rule splits on the column.
    """

    column: Any
    place: Any
    num_items: Any
    by_column: Any

    xp = jnp

    @property
    def item(self) -> Any:
        """Place of each rule in its column's list, [1, R]."""
        return self.place[None]

    def per_column(self, values: Any) -> Any:
        """Sum over the rules of each column, [m, c]."""
        return values.astype(float) @ self.by_column

    def spread(self, values: Any) -> Any:
        """Spread values [m, c] to the rules of the column, [m, R]."""
        return values[:, self.column]

    def before(self, values: Any) -> Any:
        """Sum over earlier rules of the column's list, [m, R]."""
        order = jnp.lexsort((self.place, self.column))
        in_order = values[:, order]
        running = jnp.cumsum(in_order, axis=1) - in_order
        first = jnp.searchsorted(self.column[order], self.column[order])
        return (running - running[:, first])[:, jnp.argsort(order)]


@dataclass(frozen=True)
class CutTable:
    """Weights of the cuts of a design as numbers, which can be saved: a function of node and rule.

    Attributes
    ----------
    thresholds, weights
        For each feature its cuts, ascending, and their weights. A cut of weight 0 is excluded.

    Examples
    --------
    >>> table = CutTable(((0.5, 1.5), (0.5,)), ((1.0, 0.0), (3.0,)))
    >>> table(None, Rule(np.array([0, 0, 1]), threshold=np.array([0.5, 1.5, 0.5]))).tolist()
    [1.0, 0.0, 3.0]
    """

    thresholds: tuple[tuple[float, ...], ...] = field(repr=False)
    weights: tuple[tuple[float, ...], ...] = field(repr=False)

    def __call__(self, node: Node | None, rule: Rule) -> Any:
        """Look weights up; NaN for cuts that the design lacks."""
        known = np.unique(np.concatenate([*self.thresholds, [np.inf]]))
        table = np.full((len(self.thresholds), len(known)), np.nan)
        for own, cuts, weights in zip(table, self.thresholds, self.weights, strict=True):
            own[np.searchsorted(known, cuts)] = weights
        place = jnp.minimum(jnp.searchsorted(known, rule.threshold), len(known) - 1)
        is_cut = jnp.asarray(known)[place] == rule.threshold
        return jnp.where(is_cut, jnp.asarray(table)[rule.feature, place], jnp.nan)


@dataclass(frozen=True)
class RuleLaw:
    """Distribution of the rule of a node that splits.

    Attributes
    ----------
    feature_weights
        None for equal weights, one number per feature, a mapping from features (index or name) to
        weights (default 1), or a function of node and rule that uses only ``rule.feature`` of the
        rule. A feature of weight 0 is excluded; a function that uses the node must be positive.
    cut_weights
        "uniform", "gap" (the width of the gap), or a function of node and rule; positive. With
        ``rules="cuts"`` a function that uses ``rule.feature`` and ``rule.threshold`` alone is
        evaluated once, at the cuts of the design (`CutTable`), and 0 excludes a cut.
    over
        "features": a feature by weight among those with an available rule, then one of its rules by
        weight. "rules": one choice among all available rules by the product of both weights.
    choice
        "uniform", by weights; or "chronological", a uniform choice written as a walk along a list
        (Prolog backtracking): first along the list of all features of the design, then along that
        of the feature's cuts. Item i of n is chosen with probability 1 / (n - i + 1); unavailable
        items are skipped and the last available one is always chosen. There are no weights.
    """

    feature_weights: Any = None
    cut_weights: Any = "uniform"
    over: Literal["features", "rules"] = "features"
    choice: Literal["uniform", "chronological"] = "uniform"

    @property
    def is_plain(self) -> bool:
        """Whether it needs only counts of features and cuts, or widths of gaps."""
        return self.feature_weights is None and self.over == "features" and self._is_by_name

    @property
    def _is_by_name(self) -> bool:
        return not callable(self.cut_weights) and self.choice == "uniform"

    def check(self, rules: Rules) -> None:
        """Reject invalid settings.

        Raises
        ------
        ValueError
            If a setting is unknown, a weight not positive, or settings exclude each other.
        """
        if not callable(self.cut_weights) and self.cut_weights not in ("uniform", "gap"):
            raise ValueError(
                f"cut_weights must be 'uniform', 'gap' or a function; got {self.cut_weights!r}."
            )
        require_choice("over", self.over, ("features", "rules"))
        require_choice("choice", self.choice, ("uniform", "chronological"))
        if self.choice == "chronological":
            if rules != "cuts":
                raise ValueError(
                    "choice='chronological' walks along the cuts of the design, so it needs "
                    f"rules='cuts'; got {rules!r}."
                )
            if replace(self, choice="uniform") != RuleLaw():
                raise ValueError("choice='chronological' excludes weights and over='rules'.")

    def tabulated(self, design: Design, rules: Rules) -> "RuleLaw":
        """Replace functions that use only the feature and the cut by numbers.

        Raises
        ------
        ValueError
            If a weight is negative or not finite.
        """
        features, cuts, num_features = self.feature_weights, self.cut_weights, design.num_features
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            if callable(features) and not facts_read(features, num_features, ("feature",))[0]:
                every = np.arange(num_features)
                features = _numbers_of("feature_weights", features, Rule(every))
            if callable(cuts) and rules == "cuts" and not isinstance(cuts, CutTable):
                node_reads, rule_reads = facts_read(cuts, num_features)
                if not node_reads and rule_reads <= {"feature", "threshold"}:
                    rules_of = [
                        Rule(np.full(len(own), j), threshold=own)
                        for j, own in enumerate(_cuts_of(design))
                    ]
                    weights = tuple(_numbers_of("cut_weights", cuts, each) for each in rules_of)
                    thresholds = tuple(tuple(each.threshold.tolist()) for each in rules_of)
                    cuts = CutTable(thresholds, weights)
        return replace(self, feature_weights=features, cut_weights=cuts)

    def excluded(self, design: Design) -> tuple[list[int], list[tuple[int, float]]]:
        """Return features, and cuts of features, whose weights are the number 0."""
        features, cuts = self.resolve(design).feature_weights, self.cut_weights
        pairs = []
        if isinstance(cuts, CutTable):
            columns = enumerate(zip(cuts.thresholds, cuts.weights, strict=True))
            pairs = [(j, t) for j, own in columns for t, w in zip(*own, strict=True) if w == 0]
        numbers = () if features is None or callable(features) else features
        return [j for j, weight in enumerate(numbers) if weight == 0], pairs

    def resolve(self, design: Design) -> "RuleLaw":
        """Assign every feature its weight, if these are numbers.

        Raises
        ------
        ValueError
            If there are too few weights, or a feature does not exist.
        """
        given = self.feature_weights
        if given is None or callable(given):
            return self
        named = [pair for pair in given if isinstance(pair, tuple)]
        if not named:
            weights = tuple(given)
            if len(weights) != design.num_features:
                raise ValueError(
                    f"feature_weights has {len(weights)} numbers for {design.num_features} "
                    f"features."
                )
            return self
        each = dict.fromkeys(range(design.num_features), 1.0)
        for feature, weight in named:
            if isinstance(feature, str) and feature in design.names:
                each[design.names.index(feature)] = weight
            elif not isinstance(feature, str) and 0 <= feature < design.num_features:
                each[feature] = weight
            else:
                listed = ", ".join(design.names[:10])
                raise ValueError(
                    f"feature_weights names {feature!r}, which is not one of {listed}."
                )
        # A column has the largest weight of its features.
        largest = np.maximum.reduceat(list(each.values()), design.first_of_column)
        return replace(self, feature_weights=tuple(largest[design.column].tolist()))

    def reads(self, num_features: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return names of the facts of nodes and of rules that the weights use."""
        node, rule = set(), set()
        if callable(self.feature_weights):
            own = facts_read(self.feature_weights, num_features, ("feature",), "feature_weights")
            node |= own[0]
        if callable(self.cut_weights):
            reads = facts_read(self.cut_weights, num_features, RULE_FACTS, "cut_weights")
            node, rule = node | reads[0], rule | reads[1]
        elif self.cut_weights == "gap":
            rule.add("width")
        return frozenset(node), frozenset(rule - {"feature"})

    def weigh_features(self, node: Node, feature: Any) -> Any:
        """Return weights of features of nodes; arrays that broadcast against each other."""
        if self.feature_weights is None:
            return jnp.ones_like(feature, dtype=float)
        if callable(self.feature_weights):
            return self.feature_weights(node, Rule(feature))
        return jnp.asarray(self.feature_weights, float)[feature]

    def weigh_cuts(self, node: Node, rule: Rule) -> Any:
        """Return weights of rules given their feature; arrays that broadcast against each other."""
        if callable(self.cut_weights):
            return self.cut_weights(node, rule)
        return rule.width if self.cut_weights == "gap" else jnp.ones_like(rule.feature, dtype=float)

    def log_shares(
        self, rules: RuleTable, available: Any, feature_weight: Any, cut_weight: Any
    ) -> Any:
        """Return the log probability of each rule given that its node splits.

        Parameters
        ----------
        rules
            The layout of the rules.
        available
            bool; whether a rule is available.
        feature_weight
            float64 [m, c]; weights of columns.
        cut_weight
            float64; weight of each rule.

        Returns
        -------
        array
            float64, of the rules' shape; meaningless if a rule is not available. NaN in nodes where
            any weight of an available rule or its feature is not positive and finite.
        """
        xp = rules.xp
        num_rules = rules.per_column(available)
        has_rule = num_rules > 0
        if self.choice == "chronological":
            spread, num_features = rules.spread, has_rule.shape[-1]
            place = xp.arange(num_features)[None]
            num_valid = has_rule.sum(axis=-1, keepdims=True)
            of_feature = _log_walk(xp, _running_sum, has_rule, place, num_features, num_valid)
            num_items = xp.broadcast_to(rules.num_items[None], has_rule.shape)
            of_cut = _log_walk(
                xp, rules.before, available, rules.item, spread(num_items), spread(num_rules)
            )
            return spread(of_feature) + of_cut
        weight = xp.where(available, _or_nan(xp, cut_weight), 0.0)
        total = rules.per_column(weight)
        feature_weight = xp.where(has_rule, _or_nan(xp, feature_weight), 0.0)
        whole = (feature_weight if self.over == "features" else feature_weight * total).sum(
            axis=-1, keepdims=True
        )
        share = feature_weight / xp.maximum(whole, 1e-300)
        if self.over == "features":
            share = share / xp.maximum(total, 1e-300)
        tiny = 1e-300  # of rules that do not exist
        return xp.log(xp.maximum(weight, tiny)) + rules.spread(xp.log(xp.maximum(share, tiny)))


def _cuts_of(design: Any) -> list[np.ndarray]:
    """Return the cuts of each feature, ascending."""
    return [own[1:] for own in np.split(design.cut_threshold, np.cumsum(design.num_codes)[:-1])]


def _numbers_of(name: str, weigh: Weight, rule: Rule) -> tuple[float, ...]:
    """Evaluate weights that use the rule alone."""
    nowhere: Any = Node(None, None)
    weights = np.broadcast_to(np.asarray(weigh(nowhere, rule), float), rule.feature.shape)
    if not ((weights >= 0) & (weights < np.inf)).all():
        raise ValueError(f"{name} must be finite and at least 0; got {weights.min()}.")
    return tuple(weights.tolist())


def _or_nan(xp: Any, weight: Any) -> Any:
    """Replace invalid weights by NaN, which makes a node's sums NaN."""
    return xp.where((weight > 0) & (weight < xp.inf), weight, xp.nan)


def _running_sum(values: Any) -> Any:
    return values.cumsum(axis=-1) - values


def _log_walk(xp, before, valid, place, num_items, num_valid) -> Any:
    """Return the log probability that a walk ends at each item; see `RuleLaw.choice`."""
    left_over = num_items - place  # items from this one on, n - i + 1
    # The last item is always chosen.
    log_past = xp.log(xp.maximum(left_over - 1, 1) / xp.maximum(left_over, 1))
    log_mass = before(xp.where(valid, log_past, 0.0))
    is_last = before(valid * 1.0) + 0.5 > num_valid - 1
    return log_mass - xp.where(is_last, 0.0, xp.log(xp.maximum(left_over, 1)))


class _Noted:
    """A placeholder of a node or a rule that records which of its facts are used."""

    def __init__(self, kind: str, facts: dict[str, Any]):
        self._kind, self._facts, self._read = kind, facts, set()

    def __getattr__(self, name: str) -> Any:
        if name not in self._facts:
            raise AttributeError(
                f"A {self._kind} has no {name!r} here; it has {', '.join(self._facts)}."
            )
        self._read.add(name)
        return self._facts[name]


@lru_cache(maxsize=256)
def facts_read(
    function: Callable[..., Any],
    num_features: int,
    rule_facts: tuple[str, ...] | None = RULE_FACTS,
    name: str = "function",
) -> tuple[frozenset[str], frozenset[str]]:
    """Find the facts that a function uses, by tracing it.

    Parameters
    ----------
    function
        A function of a node, and of a rule unless ``rule_facts`` is None, in `jax.numpy`.
    num_features
        d.
    rule_facts
        Facts of the rule that it may use.
    name
        Name of the function in errors.

    Returns
    -------
    node, rule
        Names of the node's and of the rule's facts that it uses.

    Raises
    ------
    ValueError
        If it uses an unknown fact.
    TypeError
        If it cannot be traced, or its value is not a number.

    Examples
    --------
    >>> sorted(facts_read(lambda node, rule: rule.num_left / node.num_rows, 3)[0])
    ['num_rows']
    """
    boxes = ("least", "greatest")
    node = {
        name: np.ones(num_features if name in boxes else ()) for name in (*NODE_FACTS, "has_rule")
    }
    rule = {name: np.ones((), int if name == "feature" else float) for name in rule_facts or ()}
    noted = []

    def traced(node, rule):
        noted.append(_Noted("node", node))
        if rule_facts is not None:
            noted.append(_Noted("rule", rule))
        value = function(*noted)
        if not isinstance(value, int | float | np.number | np.bool_ | np.ndarray | jax.Array):
            raise TypeError(f"{name} must return a number at every node; got {value!r}.")
        return value

    try:
        jax.eval_shape(traced, node, rule)
    except AttributeError as error:
        raise ValueError(f"{name}: {error}") from error
    except _UNTRACEABLE as error:
        raise TypeError(
            f"{name} must be written in jax.numpy, because it is traced: use jnp.where instead of "
            "if, and no functions of NumPy or math."
        ) from error
    reads = [frozenset(each._read) - {"has_rule"} for each in noted]
    return reads[0], reads[1] if rule_facts is not None else frozenset()
