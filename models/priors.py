"""Tree priors as weighted grammars.

A prior gives the log weight of stopping and one log weight per available rule at every node, as
functions of the node's facts. A tree's prior weight is the product of the weights of its nodes.
Weights need not be normalised: the normalising constant is the same sum over trees with every
likelihood set to one. Constraints remove rules; *available* always means the remaining ones.

References
----------
Sullivan et al. 2023 (BCART-PCFG), equation 9; Chipman, George and McCulloch 1998; Nuti et al. 2021
(GMT), section 3; Mahfoud et al. 2025 (DT-GFN), section 3;
Angelopoulos and Cussens 2005, sections 2 and 3 (priors as stochastic programs).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from bdtppl.models.arguments import require_choice
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.rule_laws import (
    CutTable,
    CutWeights,
    Node,
    Rule,
    RuleLaw,
    Rules,
    facts_read,
)
from bdtppl.models.prior_kinds import TREE_PRIORS as TREE_PRIORS
from bdtppl.models.prior_kinds import NodePrior, WeightBounds
from bdtppl.models.prior_kinds import TreePrior as TreePrior
from bdtppl.models.prior_kinds import TreeShape as TreeShape
from bdtppl.models.prior_kinds import WholeTreePrior as WholeTreePrior
from bdtppl.models.pytrees import Number, pytree_dataclass, require, setting
from bdtppl.models.wording import number

__all__ = [
    "DepthDecay",
    "DescriptionLength",
    "GreedyPartition",
    "LeafPenalty",
    "Node",
    "Program",
    "Rule",
    "excluding",
]


def excluding(prior: Any, constraints: Constraints, design: Any) -> Constraints:
    """Make constraints exclude the cuts rejected by `Constraints.allows_rule` or of weight 0."""
    limits = constraints.judged(design)
    if not isinstance(prior, _NormalisedRules):
        return limits
    features, cuts = prior.law.tabulated(design, prior.rules).excluded(design)
    names = list(design.names)
    if features:
        allowed = limits.allows(names)
        allowed[features] = False
        limits = replace(limits, features=[names[j] for j in np.flatnonzero(allowed)])
    known = set(limits.refused)
    new = [(names[j], threshold) for j, threshold in cuts]
    return replace(limits, refused=(*limits.refused, *(pair for pair in new if pair not in known)))


def _chances(shares: Sequence[Any]) -> str:
    first, second, third = map(number, shares)
    return (
        f"The root splits with prior probability {first}, a node below it with {second}, one below "
        f"that with {third}, and so on."
    )


def _cut_in_words(cut_weights: Any) -> str:
    if isinstance(cut_weights, CutTable):
        return "cuts it at each possible place in proportion to given weights"
    if callable(cut_weights):
        return "cuts it where a program chooses"
    if cut_weights == "gap":
        return "cuts it anywhere in the node's range with uniform density"
    return "cuts it at each possible place with the same probability"


class _NormalisedRules(NodePrior):
    """A split's rule with probabilities that sum to one over the node's available rules."""

    feature_weights: Any
    cut_weights: Any
    over: Any
    choice: Any
    rules: Rules

    @property
    def law(self) -> RuleLaw:
        """Distribution of the rule, given that a node splits."""
        return RuleLaw(self.feature_weights, self.cut_weights, self.over, self.choice)

    def _resolved_law(self, design: Design) -> dict[str, Any]:
        """Return weights as numbers, if numbers can represent them."""
        law = self.law.tabulated(design, self.rules).resolve(design)
        return {"feature_weights": law.feature_weights, "cut_weights": law.cut_weights}

    def _check_law(self) -> None:
        weights = self.feature_weights
        if weights is not None and not callable(weights):
            is_mapping = isinstance(weights, Mapping)
            pairs = tuple(weights.items() if is_mapping else weights)
            for pair in pairs:
                weight = pair[1] if isinstance(pair, tuple) else pair
                is_number = isinstance(weight, int | float | np.number)
                if not is_number or isinstance(weight, bool) or not 0 <= weight < np.inf:
                    raise ValueError(
                        f"feature_weights must be numbers of at least 0; got {weight!r}."
                    )
            object.__setattr__(self, "feature_weights", pairs)
        _check_rules(self.rules)
        self.law.check(self.rules)

    def _rule_in_words(self) -> str:
        if self.over == "rules":
            return "All rules of a node are equally probable, or proportional to weights."
        weights = self.feature_weights
        if callable(weights):
            chosen = "with a probability that a program gives"
        elif weights is None or len({_second(each) for each in weights}) <= 1:
            chosen = "with the same probability"
        else:
            chosen = "in proportion to given weights"
        cut = _cut_in_words(self.cut_weights)
        return f"A split chooses among the columns that it can use {chosen}, and {cut}."

    def _log_rule_share(self, node: Node, rule: Rule) -> Any:
        """Return the log probability of the entry, given that the node splits."""
        if self.law.is_plain:
            return _log_share_of_cut(self.cut_weights, rule) - node.log_num_features
        return rule.log_share

    def _facts_of_law(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the facts of nodes and of rules that `_log_rule_share` uses."""
        if self.law.is_plain:
            return ("log_num_features",), _facts_of_cut(self.cut_weights)
        return (), ("log_share",)


def _second(pair: Any) -> float:
    return float(pair[1] if isinstance(pair, tuple) else pair)


def _facts_of_cut(cut_weights: CutWeights) -> tuple[str, ...]:
    """Return the names of facts that the distribution of a split's cut, given its feature, uses."""
    return (
        ("log_width_share",) if cut_weights == "gap" else ("log_num_cuts", "log_num_feature_cuts")
    )


def _log_share_of_cut(cut_weights: CutWeights, rule: Rule) -> Any:
    """Return the log probability of an entry's cuts, given its feature."""
    if cut_weights == "gap":
        return rule.log_width_share
    return rule.log_num_cuts - rule.log_num_feature_cuts


def _check_rules(rules: str) -> None:
    require_choice("rules", rules, ("gaps", "cuts"))


@pytree_dataclass
class LeafPenalty(NodePrior):
    """Prior with a factor phi for each split (BCART-PCFG: phi^(1 - leaves), as in equation 13).

    Two rules that split a node's rows into the same unordered pair of sets are one partition, whose
    weight they share equally (the paper's second Tree Constraint). The log of the sum over trees is
    greater by log phi than with equation 10.

    Attributes
    ----------
    log_phi
        Log of phi; the paper uses 2.
    rules
        "gaps": one rule in each gap between neighbouring values in the node; "cuts": every cut of
        the design between the node's least and largest value.
    """

    log_phi: Number = 2.0
    rules: Rules = setting(default="gaps")

    counts_partitions: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {"log_phi": constraints.real}
    rule_facts: ClassVar[tuple[str, ...]] = ("log_num_equivalent",)

    def __post_init__(self):
        require(np.isfinite, "log_phi must be finite; got {}.", self.log_phi)
        _check_rules(self.rules)

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        factor = number(np.exp(self.log_phi))
        return [
            f"A tree is {factor} times less probable a priori for each further split; apart from "
            "that all trees are equally probable. Rules that split the rows alike count as one."
        ]

    def weight_bounds(self, depth: np.ndarray) -> WeightBounds:
        """Bound the log weights of nodes at depths."""
        zero = np.zeros(np.shape(depth))
        return WeightBounds(zero, zero, zero - self.log_phi)

    def log_stop(self, node: Node) -> Any:
        """Return 0."""
        return jnp.zeros_like(node.depth, dtype=float)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return -log_phi, shared among the rules that make the same partition."""
        share = -rule.log_num_equivalent
        return -self.log_phi + (share if rule.log_num_cuts is None else share + rule.log_num_cuts)

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Return -log_phi: trees are counted by partitions, which have their full weight."""
        return -self.log_phi + jnp.zeros_like(rule.feature, dtype=float)


@pytree_dataclass
class DescriptionLength(NodePrior):
    """Prior exp(-beta) for each split, with every rule counted (DT-GFN, P(T) ~ exp(-beta n)).

    Attributes
    ----------
    beta
        Cost of a split in nats; None means log 4 + log d + log t for d columns and t cuts (the
        most cuts that a column has). The paper's Table 5 has log 4 + log d.
    rules
        "gaps": one rule in each gap between neighbouring values in the node; "cuts": every cut of
        the design between the node's least and largest value.
    """

    beta: Any = None
    rules: Rules = setting(default="cuts")

    parameter_support: ClassVar[dict[str, Constraint]] = {"beta": constraints.real}
    rule_facts: ClassVar[tuple[str, ...]] = ("log_num_cuts",)

    def __post_init__(self):
        require(np.isfinite, "beta must be finite; got {}.", self.beta)
        _check_rules(self.rules)

    def resolve(self, design: Design) -> "DescriptionLength":
        """Fill in beta from the number of features and cuts."""
        if self.beta is not None:
            return self
        of_columns = np.add.reduceat(design.num_codes - 1, design.first_of_column)
        num_cuts = max(1, int(of_columns.max()))
        return replace(self, beta=float(np.log(4 * design.num_columns * num_cuts)))

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        return [
            f"Each split lowers the log prior probability of a tree by {number(self.beta)}, about "
            "the length of its description. Apart from that all trees are equally probable."
        ]

    def weight_bounds(self, depth: np.ndarray) -> WeightBounds:
        """Bound the log weights of nodes at depths."""
        zero = np.zeros(np.shape(depth))
        return WeightBounds(zero, zero, zero - self.beta)

    def log_stop(self, node: Node) -> Any:
        """Return 0."""
        return jnp.zeros_like(node.depth, dtype=float)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return -beta for every rule."""
        return rule.log_num_cuts - self.beta

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Return -beta: the number of cuts in a gap is not needed."""
        return -self.beta + jnp.zeros_like(rule.feature, dtype=float)


@pytree_dataclass
class DepthDecay(_NormalisedRules):
    """Split probability alpha (1 + depth)^(-beta) at each node (Chipman et al. 1998, GROWTREE).

    By default the feature is uniform among those with an available rule, the rule uniform among
    that feature's available ones, or proportional to its gap's width (``cut_weights="gap"``: as in
    Lakshminarayanan, Roy and Teh 2013, a cut uniform over the node's range). A node without an
    available rule stops with probability one, so the prior is normalised.

    Attributes
    ----------
    alpha
        Probability that the root splits, in (0, 1]. With 1, and ``beta=1``, a node splits with
        probability 1/D, where D is 1 at the root, which always splits (Angelopoulos and Cussens
        2005, Figure 2).
    beta
        Decay with depth, at least 0, and above 0 if alpha is 1.
    cut_weights, feature_weights, over, choice
        Distribution of the rule (see `bdtppl.models.hard.rule_laws.RuleLaw`).
    rules
        "gaps": one rule in each gap between neighbouring values in the node; "cuts": every cut of
        the design between the node's least and largest value.

    Examples
    --------
    >>> DepthDecay(0.9, feature_weights={"age": 3.0}).law.feature_weights
    (('age', 3.0),)
    >>> figure_2 = DepthDecay(1.0, 1.0, feature_weights={"x1": 0.4, "x2": 0.3, "x3": 0.3})
    >>> round(float(figure_2.log_split(Node(1.0, True), Rule(0, log_share=0.0))), 4)  # log 1/2
    -0.6931
    """

    alpha: Number = 0.95
    beta: Number = 1.0
    cut_weights: CutWeights = setting(default="uniform")
    rules: Rules = setting(default="gaps")
    feature_weights: Any = setting(default=None)
    over: Literal["features", "rules"] = setting(default="features")
    choice: Literal["uniform", "chronological"] = setting(default="uniform")

    depends_on_depth: ClassVar[bool] = True
    sums_to_at_most_one: ClassVar[bool] = True
    is_normalised: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {
        "alpha": constraints.unit_interval,
        "beta": constraints.positive,
    }

    def __post_init__(self):
        require(lambda a: (a > 0) & (a <= 1), "alpha must be in (0, 1]; got {}.", self.alpha)
        require(lambda b: b >= 0, "beta must be at least 0; got {}.", self.beta)
        require(
            lambda a, b: (a < 1) | (b > 0),
            "alpha={} and beta={} always split every node: set beta above 0.",
            self.alpha,
            self.beta,
        )
        self._check_law()

    @property
    def node_facts(self) -> tuple[str, ...]:
        """Facts of nodes that the distribution of the rule uses."""
        return self._facts_of_law()[0]

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Facts of rules that the distribution of the rule uses."""
        return self._facts_of_law()[1]

    def resolve(self, design: Design) -> "DepthDecay":
        """Assign every feature its weight."""
        return replace(self, **self._resolved_law(design))

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        shares = [self.alpha * (1 + depth) ** -self.beta for depth in range(3)]
        return [_chances(shares), self._rule_in_words()]

    def _log_split_probability(self, depth, xp: Any = jnp):
        return xp.log(self.alpha) - self.beta * xp.log1p(depth)

    def weight_bounds(self, depth: np.ndarray) -> WeightBounds:
        """Bound the log weights of nodes at depths."""
        log_p = self._log_split_probability(np.asarray(depth, float), np)
        with np.errstate(divide="ignore"):  # for a root that always splits
            log_stop = np.log1p(-np.exp(log_p))
        by_number = None
        if self.law.is_plain:
            by_number = "features"
        elif self.law == RuleLaw(over="rules"):
            by_number = "rules"
        return WeightBounds(log_stop, log_stop, log_p, log_p, by_number)

    def log_stop(self, node: Node) -> Any:
        """Return log(1 - p), or 0 if no rule is available."""
        log_p = self._log_split_probability(node.depth)
        return jnp.where(node.has_rule, jnp.log1p(-jnp.exp(log_p)), 0.0)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log probability of splitting, of the feature and of the cut."""
        return self._log_split_probability(node.depth) + self._log_rule_share(node, rule)


@pytree_dataclass
class Program(_NormalisedRules):
    """A prior written as a program: the user's functions compute each node's probabilities.

    A node splits with a computed probability, and then by a rule whose weights may be computed, too
    (labels "on the fly", Angelopoulos and Cussens 2005, Figure 2). Functions are written in
    `jax.numpy` and traced; they may use the facts of a `Node` (depth, num_rows, log_num_features,
    least, greatest) and, for weights of cuts, of a `Rule` (feature, threshold, width, num_left,
    num_right), as arrays of any shape. A node without an available rule stops with probability one.

    Attributes
    ----------
    split_probability
        Function of the node; a probability, in [0, 1] at every node.
    cut_weights, feature_weights, over, choice
        Distribution of the rule (see `bdtppl.models.hard.rule_laws.RuleLaw`).
    num_features
        d; None is filled in from the data.

    Examples
    --------
    >>> prior = Program(lambda node: 1 / (1 + node.depth), feature_weights=(0.4, 0.3, 0.3))
    >>> round(float(prior.log_split(Node(1.0, True), Rule(0, log_share=-0.5))), 3)
    -1.193
    """

    split_probability: Callable[[Node], Any] = setting()
    cut_weights: CutWeights = setting(default="uniform")
    rules: Rules = setting(default="gaps")
    feature_weights: Any = setting(default=None)
    over: Literal["features", "rules"] = setting(default="features")
    choice: Literal["uniform", "chronological"] = setting(default="uniform")
    num_features: int | None = setting(default=None)

    sums_to_at_most_one: ClassVar[bool] = True
    is_normalised: ClassVar[bool] = True

    def __post_init__(self):
        if not callable(self.split_probability):
            raise TypeError(
                f"split_probability must be a function of a node; got {self.split_probability!r}."
            )
        self._check_law()

    def _split_reads(self) -> frozenset[str]:
        """Return facts that the probability of splitting uses; facts of rows need d."""
        return facts_read(
            self.split_probability, self.num_features or 1, None, "split_probability"
        )[0]

    @property
    def depends_on_depth(self) -> bool:
        """Whether any function uses the depth."""
        reads = self.law.reads(self.num_features or 1)[0]
        return "depth" in self._split_reads() | reads

    @property
    def node_facts(self) -> tuple[str, ...]:
        """Facts of nodes that are used besides the depth."""
        reads = self._split_reads() - {"depth"}
        return tuple(sorted(reads.union(self._facts_of_law()[0])))

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Facts of rules that the distribution of the rule uses."""
        return self._facts_of_law()[1]

    def resolve(self, design: Design) -> "Program":
        """Fill in the number of features, and assign every feature its weight.

        Raises
        ------
        ValueError
            If the root's split probability is not in [0, 1].
        """
        law = self._resolved_law(design)
        resolved = replace(self, **law, num_features=design.num_features)
        resolved._check_root(design)
        return resolved

    def _check_root(self, design: Design) -> None:
        """Raise if the split probability at the root is not in [0, 1]; others are checked later."""
        if "log_num_features" in self._split_reads():  # constraints set how many can be split on
            return
        first, last = design.offset[:-1], design.offset[1:] - 1
        root = Node(
            depth=np.float64(0),
            has_rule=np.True_,
            num_rows=np.float64(design.num_rows or design.num_observations),
            least=design.low_edge[first],
            greatest=design.high_edge[last],
        )
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            probability = self.split_probability(root)
        is_known = not isinstance(probability, Tracer)
        if is_known and not 0 <= float(probability) <= 1:
            raise ValueError(
                f"split_probability must be in [0, 1]; got {float(probability):.6g} at the root."
            )

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        name = getattr(self.split_probability, "__name__", "a function")
        return [
            f"A node splits with a probability computed by a program, {name}.",
            self._rule_in_words(),
        ]

    def log_stop(self, node: Node) -> Any:
        """Return log(1 - p), or 0 if no rule is available."""
        return jnp.where(node.has_rule, jnp.log1p(-self._probability(node)), 0.0)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log probability of splitting, of the feature and of the cut."""
        return jnp.log(self._probability(node)) + self._log_rule_share(node, rule)

    def _probability(self, node: Node) -> Any:
        """Return the split probability; NaN if invalid, so that no sum over trees is finite."""
        probability = jnp.asarray(self.split_probability(node), float)
        return jnp.where((probability >= 0) & (probability <= 1), probability, jnp.nan)


@pytree_dataclass
class GreedyPartition(NodePrior):
    """Split probability p^(1 + depth) at each node (Nuti et al. 2021, GMT, section 3).

    The feature is uniform among all d features, the rule uniform among that feature's available
    ones, or proportional to its gap's width (``cut_weights="gap"``: the distance weighting of the
    paper's section 5, after Buntine 1992). The mass of features without a rule is lost, so the
    prior sums to less than one.

    Attributes
    ----------
    p
        Probability that the root splits, in (0, 1); the paper uses 0.99.
    num_features
        d; None is filled in from the data.
    rules
        "gaps": one rule in each gap between neighbouring values in the node; "cuts": every cut of
        the design between the node's least and largest value.
    """

    p: Number = 0.99
    num_features: Any = setting(default=None)
    cut_weights: CutWeights = setting(default="uniform")
    rules: Rules = setting(default="gaps")

    depends_on_depth: ClassVar[bool] = True
    sums_to_at_most_one: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {"p": constraints.unit_interval}

    def __post_init__(self):
        require(lambda p: (p > 0) & (p < 1), "p must be in (0, 1); got {}.", self.p)
        require_choice("cut_weights", self.cut_weights, ("uniform", "gap"))
        _check_rules(self.rules)

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Facts that the distribution of the cut uses."""
        return _facts_of_cut(self.cut_weights)

    def resolve(self, design: Design) -> "GreedyPartition":
        """Fill in the number of features."""
        return self if self.num_features else replace(self, num_features=design.num_columns)

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        cut = _cut_in_words(self.cut_weights)
        return [
            _chances([self.p ** (1 + depth) for depth in range(3)]),
            f"A split chooses any column with the same probability, and {cut}.",
        ]

    def weight_bounds(self, depth: np.ndarray) -> WeightBounds:
        """Bound the log weights of nodes at depths."""
        log_p = (1 + np.asarray(depth, float)) * np.log(self.p)
        log_stop = np.log1p(-np.exp(log_p))
        return WeightBounds(log_stop, log_stop, log_p - np.log(self.num_features), log_p)

    def log_stop(self, node: Node) -> Any:
        """Return log(1 - p^(1 + depth)), or 0 if no rule is available."""
        log_p = (1 + node.depth) * jnp.log(self.p)
        return jnp.where(node.has_rule, jnp.log1p(-jnp.exp(log_p)), 0.0)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log probability of splitting, of the feature and of the cut."""
        share = _log_share_of_cut(self.cut_weights, rule)
        return (1 + node.depth) * jnp.log(self.p) + share - jnp.log(float(self.num_features))
