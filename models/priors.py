"""Tree priors as weighted grammars.

At every node a prior gives the log weight of stopping and one log weight per available rule, as
functions of what the node knows. A tree's prior weight is the product of the weights along it.
Weights need not be normalised: the normalising constant is the same sum over trees with every
likelihood set to one. A constraint removes rules; *available* always means those that are left.

References
----------
Sullivan et al. 2023 (BCART-PCFG), equation 9; Chipman, George and McCulloch 1998; Nuti et al. 2021
(GMT), section 3; Learning Decision Trees as Amortized Structure Inference (DT-GFN), section 3.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from bdtppl.models.data import Design
from bdtppl.models.pytrees import Number, pytree_dataclass, require, setting

__all__ = [
    "DepthDecay",
    "DescriptionLength",
    "GreedyPartition",
    "LeafPenalty",
    "Node",
    "Rule",
    "Rules",
    "TreePrior",
]

Rules = Literal["gaps", "cuts"]
CutWeights = Literal["uniform", "gap"]


class Node(NamedTuple):
    """What a prior may know of a node; arrays that broadcast against each other.

    Attributes
    ----------
    depth
        Splits above the node; the root has depth 0.
    has_rule
        Whether any rule is available.
    num_rows
        Rows in the node, repeated ones counted as often as they are.
    log_num_features
        Log of the number of features with an available rule.
    """

    depth: Any
    has_rule: Any
    num_rows: Any = None
    log_num_features: Any = None


class Rule(NamedTuple):
    """What a prior may know of a rule, or of all rules of a node inside one gap.

    With ``rules="cuts"`` the cuts between two neighbouring values of a node part its rows alike and
    are one entry that stands for several rules; with ``rules="gaps"`` it stands for one. Counts
    come as their logs, as weights use them: a pass over millions of entries looks logs up.

    Attributes
    ----------
    feature
        Feature index.
    log_num_cuts
        Log of the number of rules that the entry stands for.
    log_num_feature_cuts
        Log of the number of available rules of the same feature in the node.
    log_width_share
        Log of the width of the entry's gap over the summed width of its feature's available rules.
    log_num_equivalent
        Log of the number of rules of the node, the entry's own included, that part its rows into
        the same two sets.
    """

    feature: Any
    log_num_cuts: Any = None
    log_num_feature_cuts: Any = None
    log_width_share: Any = None
    log_num_equivalent: Any = None


@runtime_checkable
class TreePrior(Protocol):
    """What a node-wise tree prior is: an immutable pytree with these members.

    Attributes
    ----------
    rules
        "gaps": one rule per gap between neighbouring values in the node; "cuts": every cut of the
        design between the node's least and largest value.
    depends_on_depth
        Whether the weights depend on the node's depth.
    counts_partitions
        Whether rules that make the same partition share one weight.
    sums_to_at_most_one
        Whether the weights of all trees of any table sum to at most 1.
    parameter_support
        Support of each parameter that can be fitted.
    node_facts, rule_facts
        Names of the `Node` and `Rule` fields that the weights read, beside ``depth``, ``has_rule``
        and ``feature``, which are always there.
    """

    @property
    def rules(self) -> Rules:
        """Which rules a node has."""
        ...

    @property
    def depends_on_depth(self) -> bool:
        """Whether the weights depend on the node's depth."""
        ...

    @property
    def counts_partitions(self) -> bool:
        """Whether rules that make the same partition share one weight."""
        ...

    @property
    def sums_to_at_most_one(self) -> bool:
        """Whether the weights of all trees of any table sum to at most 1."""
        ...

    @property
    def parameter_support(self) -> dict[str, Constraint]:
        """Support of each parameter that can be fitted."""
        ...

    @property
    def node_facts(self) -> tuple[str, ...]:
        """Names of the node's facts that the weights read."""
        ...

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Names of the rule's facts that the weights read."""
        ...

    def resolve(self, design: Design) -> "TreePrior":
        """Fill in defaults that depend on the data."""
        ...

    def log_stop(self, node: Node) -> Any:
        """Log weight of making the node a leaf."""
        ...

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Log weight of all the rules that an entry stands for together."""
        ...

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Log weight of the entry in one tree, as the prior counts trees.

        One rule of the entry; where rules share a partition's weight, the whole weight.
        """
        ...


class _Defaults:
    """Members that most priors share."""

    log_split: Any

    depends_on_depth: ClassVar[bool] = False
    counts_partitions: ClassVar[bool] = False
    sums_to_at_most_one: ClassVar[bool] = False
    parameter_support: ClassVar[dict[str, Constraint]] = {}
    node_facts: ClassVar[tuple[str, ...]] = ()
    rule_facts: ClassVar[tuple[str, ...]] = ()

    def resolve(self, design: Design):
        """Return the prior itself: nothing depends on the data."""
        return self

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Log weight of one rule: the entry's weight shared among the cuts of its gap."""
        weight = self.log_split(node, rule)
        return weight if rule.log_num_cuts is None else weight - rule.log_num_cuts


def _facts_of_cut(cut_weights: CutWeights) -> tuple[str, ...]:
    """Name the facts that the law of a split's cut, given its feature, reads."""
    return (
        ("log_width_share",) if cut_weights == "gap" else ("log_num_cuts", "log_num_feature_cuts")
    )


def _log_share_of_cut(cut_weights: CutWeights, rule: Rule) -> Any:
    """Log probability of an entry's cuts, given its feature."""
    if cut_weights == "gap":
        return rule.log_width_share
    return rule.log_num_cuts - rule.log_num_feature_cuts


def _check_cut_weights(cut_weights: str) -> None:
    if cut_weights not in ("uniform", "gap"):
        raise ValueError(f"cut_weights must be 'uniform' or 'gap'; got {cut_weights!r}.")


def _check_rules(rules: str) -> None:
    if rules not in ("gaps", "cuts"):
        raise ValueError(f"rules must be 'gaps' or 'cuts'; got {rules!r}.")


@pytree_dataclass
class LeafPenalty(_Defaults):
    """Each split costs a factor phi (BCART-PCFG: phi^(1 - leaves), as in its equation 13).

    Two rules that part a node's rows into the same unordered pair of sets are one partition, whose
    weight they share equally (the paper's second Tree Constraint). The sum over trees lies log phi
    above the sum over equation 10.

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

    def log_stop(self, node: Node) -> Any:
        """Return 0."""
        return jnp.zeros_like(node.depth, dtype=float)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """-log_phi, shared among the rules that make the same partition."""
        share = -rule.log_num_equivalent
        return -self.log_phi + (share if rule.log_num_cuts is None else share + rule.log_num_cuts)

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """-log_phi: a tree is one of partitions, which carry their weight whole."""
        return -self.log_phi + jnp.zeros_like(rule.feature, dtype=float)


@pytree_dataclass
class DescriptionLength(_Defaults):
    """Each split costs exp(-beta), every rule counted by itself (DT-GFN, P(T) ~ exp(-beta n)).

    Attributes
    ----------
    beta
        Cost of a split in nats; None means log 4 + log d + log t for d features and t cuts (the
        most cuts that a feature has). The paper's Table 5 has log 4 + log d.
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
        num_cuts = max(1, int(design.num_codes.max()) - 1)
        return replace(self, beta=float(np.log(4 * design.num_features * num_cuts)))

    def log_stop(self, node: Node) -> Any:
        """Return 0."""
        return jnp.zeros_like(node.depth, dtype=float)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """-beta for every rule."""
        return rule.log_num_cuts - self.beta


@pytree_dataclass
class DepthDecay(_Defaults):
    """A node splits with probability alpha (1 + depth)^(-beta) (Chipman et al. 1998, GROWTREE).

    The feature is uniform among those with an available rule, the rule uniform among that
    feature's available ones, or proportional to its gap's width (``cut_weights="gap"``: the law of
    Lakshminarayanan, Roy and Teh 2013, a cut uniform over the node's range). A node without an
    available rule stops with probability one, so the prior is normalised.

    Attributes
    ----------
    alpha
        Probability that the root splits, in (0, 1).
    beta
        Decay with depth, at least 0.
    rules
        "gaps": one rule in each gap between neighbouring values in the node; "cuts": every cut of
        the design between the node's least and largest value.
    """

    alpha: Number = 0.95
    beta: Number = 1.0
    cut_weights: CutWeights = setting(default="uniform")
    rules: Rules = setting(default="gaps")

    depends_on_depth: ClassVar[bool] = True
    sums_to_at_most_one: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {
        "alpha": constraints.unit_interval,
        "beta": constraints.positive,
    }
    node_facts: ClassVar[tuple[str, ...]] = ("log_num_features",)

    def __post_init__(self):
        require(lambda a: (a > 0) & (a < 1), "alpha must lie in (0, 1); got {}.", self.alpha)
        require(lambda b: b >= 0, "beta must be at least 0; got {}.", self.beta)
        _check_cut_weights(self.cut_weights)
        _check_rules(self.rules)

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Facts that the law of the cut reads."""
        return _facts_of_cut(self.cut_weights)

    def _log_split_probability(self, depth):
        return jnp.log(self.alpha) - self.beta * jnp.log1p(depth)

    def log_stop(self, node: Node) -> Any:
        """log(1 - p), or 0 where no rule is available."""
        log_p = self._log_split_probability(node.depth)
        return jnp.where(node.has_rule, jnp.log1p(-jnp.exp(log_p)), 0.0)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Log probability of splitting, of the feature and of the cut."""
        share = _log_share_of_cut(self.cut_weights, rule)
        return self._log_split_probability(node.depth) + (share - node.log_num_features)


@pytree_dataclass
class GreedyPartition(_Defaults):
    """A node splits with probability p^(1 + depth) (Nuti et al. 2021, GMT, section 3).

    The feature is uniform among all d features, the rule uniform among that feature's available
    ones, or proportional to its gap's width (``cut_weights="gap"``: the distance-weighted law that
    the paper's section 5 takes from Buntine 1992); what falls on features without a rule is lost,
    so the prior sums to less than one.

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
        require(lambda p: (p > 0) & (p < 1), "p must lie in (0, 1); got {}.", self.p)
        _check_cut_weights(self.cut_weights)
        _check_rules(self.rules)

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Facts that the law of the cut reads."""
        return _facts_of_cut(self.cut_weights)

    def resolve(self, design: Design) -> "GreedyPartition":
        """Fill in the number of features."""
        return self if self.num_features else replace(self, num_features=design.num_features)

    def log_stop(self, node: Node) -> Any:
        """log(1 - p^(1 + depth)), or 0 where no rule is available."""
        log_p = (1 + node.depth) * jnp.log(self.p)
        return jnp.where(node.has_rule, jnp.log1p(-jnp.exp(log_p)), 0.0)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Log probability of splitting, of the feature and of the cut."""
        share = _log_share_of_cut(self.cut_weights, rule)
        return (1 + node.depth) * jnp.log(self.p) + share - jnp.log(float(self.num_features))
