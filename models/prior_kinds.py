"""Kinds of tree priors, over nodes or over whole trees: their interfaces, and who accepts them.

A custom prior starts from `NodePrior` or `WholeTreePrior`, which enter it in `TREE_PRIORS`.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from numpyro.distributions.constraints import Constraint

from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.rule_laws import Node, Rule, RuleLaw, Rules
from bdtppl.models.pytrees import describe_kind, enter
from bdtppl.models.wording import describe_model


@runtime_checkable
class TreePrior(Protocol):
    """A tree prior: an immutable pytree with these members.

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
    is_normalised
        Whether the weights of stopping and of all available rules sum to 1 in every node, and so do
        those of all trees.
    parameter_support
        Support of each parameter that can be fitted.
    node_facts, rule_facts
        Names of the `Node` and `Rule` fields that the weights use, besides ``depth``, ``has_rule``
        and ``feature``, which are always available. A prior that uses ``log_share`` has a member
        ``law``, the `bdtppl.models.hard.rule_laws.RuleLaw` that defines it.

    A prior that also weights the tree as a whole has a method ``log_tree`` (see `WholeTreePrior`).
    """

    @property
    def rules(self) -> Rules:
        """Rules of a node: "gaps" or "cuts"."""
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
    def is_normalised(self) -> bool:
        """Whether the weights of stopping and of all rules sum to 1 in every node."""
        ...

    @property
    def parameter_support(self) -> dict[str, Constraint]:
        """Support of each parameter that can be fitted."""
        ...

    @property
    def node_facts(self) -> tuple[str, ...]:
        """Names of the node's facts that the weights use."""
        ...

    @property
    def rule_facts(self) -> tuple[str, ...]:
        """Names of the rule's facts that the weights use."""
        ...

    def resolve(self, design: Design) -> "TreePrior":
        """Fill in defaults that depend on the data."""
        ...

    def log_stop(self, node: Node) -> Any:
        """Return the log weight of making the node a leaf."""
        ...

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log weight of all the rules that an entry represents together."""
        ...

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Return the log weight of the entry in one tree, as the prior counts trees.

        This is one rule of the entry; if rules share a partition's weight, it is the whole weight.
        """
        ...


def require_tree_prior(name: str, prior: Any) -> None:
    """Raise unless an object is a node-wise tree prior; a class is rejected, too.

    Raises
    ------
    TypeError
        If it is not.
    """
    if isinstance(prior, type) or not isinstance(prior, TreePrior):  # pyright: ignore[reportGeneralTypeIssues]
        raise TypeError(
            f"{name} must be a tree prior of bdtppl.models.priors; got {describe_kind(prior)}."
        )


def rule_law(prior: Any) -> RuleLaw | None:
    """Return the `RuleLaw` behind a prior's ``log_share``, or None if it does not use it."""
    return prior.law if "log_share" in prior.rule_facts else None


def weight_bounds(prior: Any, depth: np.ndarray) -> "WeightBounds":
    """Bound a prior's log weights of nodes at depths (`NodePrior.weight_bounds`).

    Raises
    ------
    TypeError
        If no bounds are known.
    """
    bounds = getattr(prior, "weight_bounds", None)
    if bounds is None:
        raise TypeError(_NO_BOUNDS.format(type(prior).__name__))
    return bounds(depth)


def weighs_each_cut(prior: TreePrior) -> bool:
    """Return whether a prior may weight the cuts of one gap differently."""
    return rule_law(prior) is not None


def require_rules_apart(prior: TreePrior, constraints: Constraints) -> None:
    """Reject a prior that does not distinguish rules if constraints do.

    Rules that split the rows alike leave different options below them if constraints depend on the
    path, and cuts of one gap differ if some are excluded.

    Raises
    ------
    ValueError
        If both are the case.
    """
    asks = constraints.allows_path or constraints.allows_tree
    if prior.counts_partitions and (constraints.looks_at_path or constraints.judges_cuts or asks):
        raise ValueError(
            f"{type(prior).__name__} shares a weight among rules that make one partition, which "
            "keep_together, features_at_depth, before, refused, allows_rule, allows_path and "
            "allows_tree distinguish: use DepthDecay or DescriptionLength."
        )
    if constraints.judges_cuts and prior.rules != "cuts":
        raise ValueError(
            f"refused, allows_rule and weights of 0 exclude cuts of the table, and a "
            f"{type(prior).__name__} with rules={prior.rules!r} has rules in gaps between values: "
            f"use rules='cuts'."
        )


TREE_PRIORS: dict[str, type] = {}
"""Tree priors by name; a subclass of `RegisteredPrior` enters itself."""


class RegisteredPrior:
    """A prior known by its name to saved models, prior files, the command line and reports."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__name__.startswith("_"):
            enter(TREE_PRIORS, cls)

    def in_words(self) -> list[str]:
        """Describe in sentences how probable the prior finds trees."""
        return [f"The prior is {describe_model(self)}."]


_NO_BOUNDS = "{} has no method weight_bounds, which a search needs to exclude trees."


class WeightBounds(NamedTuple):
    """Bounds of the log weights in any node that has a rule, at some depths; arrays like these.

    Attributes
    ----------
    stop_least, stop_most
        Bound for stopping.
    rule_most
        Bound for one rule, as `TreePrior.log_rule` gives it, times the number that `shared_by`
        names.
    split_most
        Bound for all rules of a node together; None for that of one rule times their number.
    shared_by
        Least divisor of a rule's weight: the number of "features" that have a rule, the number of
        "rules", or nothing (None).
    """

    stop_least: Any
    stop_most: Any
    rule_most: Any
    split_most: Any = None
    shared_by: Literal["features", "rules"] | None = None


class NodePrior(RegisteredPrior):
    """Members that most priors share; a custom node-wise prior may start from them."""

    log_split: Any

    depends_on_depth: ClassVar[bool] = False
    counts_partitions: ClassVar[bool] = False
    sums_to_at_most_one: ClassVar[bool] = False
    is_normalised: ClassVar[bool] = False
    parameter_support: ClassVar[dict[str, Constraint]] = {}
    node_facts: ClassVar[tuple[str, ...]] = ()
    rule_facts: ClassVar[tuple[str, ...]] = ()

    def resolve(self, design: Design):
        """Return the prior itself, because nothing depends on the data."""
        return self

    def weight_bounds(self, depth: np.ndarray) -> WeightBounds:
        """Bound the log weights of nodes at depths, for searches (`bdtppl.inference.pcfg.search`).

        A custom prior that `is_normalised` has bounds: a probability is at most 1.

        Raises
        ------
        TypeError
            If no bounds are known.
        """
        if not self.is_normalised:
            raise TypeError(_NO_BOUNDS.format(type(self).__name__))
        zero = np.zeros(np.shape(depth))
        return WeightBounds(zero - np.inf, zero, zero, zero)

    def log_rule(self, node: Node, rule: Rule) -> Any:
        """Return the log weight of one rule: the entry's weight shared among its gap's cuts."""
        weight = self.log_split(node, rule)
        return weight if rule.log_num_cuts is None else weight - rule.log_num_cuts


class TreeShape(NamedTuple):
    """The splits and leaves of one tree, k slots; children come after their parent.

    Functions of a tree read its arrays, and are written in `jax.numpy`.

    Attributes
    ----------
    is_leaf, is_split
        bool [k]; slots with a leaf or a split.
    left, right
        int [k]; slots of a split's children, meaningless elsewhere.
    feature
        int [k]; feature of a split, meaningless elsewhere.
    depth
        int [k]; number of splits above the slot.
    threshold
        float64 [k]; values below a split's threshold go left; meaningless elsewhere. None if a
        prior weights the tree.
    """

    is_leaf: Any
    is_split: Any
    left: Any
    right: Any
    feature: Any
    depth: Any
    threshold: Any = None


class WholeTreePrior(NodePrior):
    """A prior that weights whole trees; a custom prior adds `log_tree`.

    Stopping and every rule have weight 1, unless `log_stop` and `log_split` differ. Metropolis
    chains accept such a prior; other inferences need priors that are products over nodes.

    Attributes
    ----------
    rules
        See `TreePrior`.
    """

    rules: Rules = "gaps"

    def log_stop(self, node: Node) -> Any:
        """Return 0."""
        return jnp.zeros_like(node.depth, dtype=float)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return log weight 0 for each rule that the entry represents."""
        one = jnp.zeros_like(rule.feature, dtype=float)
        return one if rule.log_num_cuts is None else one + rule.log_num_cuts

    def log_tree(self, tree: TreeShape) -> Any:
        """Return the log weight of one tree, without that of its nodes."""
        raise NotImplementedError


Weighed = Literal["nodes", "leaf counts", "trees", "edits"]

_WEIGHED: dict[Weighed, tuple[str, str]] = {  # description, and who accepts it
    "nodes": ("nodes one by one", "All estimators accept it."),
    "leaf counts": ("the number of leaves", "ExactTree and MetropolisTree estimators accept it."),
    "trees": ("whole trees", "MetropolisTree estimators accept it."),
    "edits": ("sequences of edits", "MetropolisTree estimators accept it."),
}


def weighs(prior: Any) -> Weighed:
    """Return what a prior weights: nodes, numbers of leaves too, whole trees, or edits."""
    return getattr(prior, "weighs", "trees" if hasattr(prior, "log_tree") else "nodes")


def log_tree(prior: Any, tree: TreeShape) -> Any:
    """Return the log weight of a tree as a whole, 0 for a prior that is a product over nodes."""
    return 0.0 if weighs(prior) == "nodes" else prior.log_tree(tree)


def require_weighs(prior: Any, inference: str, *kinds: Weighed) -> None:
    """Reject a prior that an inference does not accept.

    Raises
    ------
    ValueError
        If the prior has none of these kinds.
    """
    if (own := weighs(prior)) not in kinds:
        wanted = " or ".join(_WEIGHED[kind][0] for kind in kinds)
        words, taken_by = _WEIGHED[own]
        raise ValueError(
            f"{inference} accepts priors that weight {wanted}; {type(prior).__name__} weights "
            f"{words}. {taken_by}"
        )
