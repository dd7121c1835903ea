"""A prior centred on a given tree, which is edited a random number of times.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 3 (EDITTREE).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.prior_kinds import (
    Node,
    NodePrior,
    Rule,
    Rules,
    TreePrior,
    Weighed,
    require_tree_prior,
    require_weighs,
)
from bdtppl.models.priors import DepthDecay
from bdtppl.models.pytrees import pytree_dataclass, setting
from bdtppl.models.wording import counted, describe_model, number


def _grow_tree() -> Any:
    return DepthDecay(rules="cuts")


@pytree_dataclass
class EditTree(NodePrior):
    """A tree that is edited repeatedly, each time with probability ``edit_probability``.

    An edit has a kind, a place and, unless it merges, a rule:

    - *split*: a leaf with an available rule becomes a split;
    - *merge*: a split whose children are both leaves becomes a leaf;
    - *change*: a split gets another rule, or by chance the same.

    The kind is uniform among those that have a place in the tree, the place uniform among the
    kind's places, and the rule has the base prior's distribution at the node: its weights of the
    node's rules, normalised. A change must leave every rule below it available; other rules are
    excluded, and the weights of the rest are renormalised. All intermediate trees therefore obey
    the limits of the model, including the leaf size; monotone features apply to the final tree
    alone. If no edit has a place, none follows.

    This is a distribution over sequences of edits. Many sequences lead to one tree, so the
    probability of a tree is an infinite sum, known only on small tables, by enumeration. Only the
    Metropolis estimators accept this prior.

    Attributes
    ----------
    tree
        The initial tree: written by hand (`Tree.from_nested`), converted from scikit-learn
        (`Tree.from_sklearn`) or the tree of another inference. Its rules must be available.
    edit_probability
        Probability of each further edit, at least 0 and below 1.
    base
        Node-wise prior that rules are drawn from. With ``rules="gaps"`` a rule below a change is
        available only while the node still has a value next to its cut, so ``"cuts"`` lets more
        changes happen.
    names
        Names of the features that the tree's splits index; None for the features of the table, in
        its order.

    Examples
    --------
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> EditTree(stump, 0.5).base.rules
    'cuts'
    """

    tree: Tree = setting(repr=False)
    edit_probability: float = 0.8
    base: TreePrior = setting(default_factory=_grow_tree)
    names: Sequence[str] | None = setting(default=None, repr=False)

    weighs: ClassVar[Weighed] = "edits"

    def __post_init__(self):
        if not isinstance(self.tree, Tree):
            raise TypeError(f"tree must be a Tree; got {type(self.tree).__name__}.")
        if self.tree.batch_shape:
            raise ValueError(
                f"tree must be a single tree; got a batch of shape {self.tree.batch_shape}."
            )
        if self.names is not None and self.tree.feature.max() >= len(self.names):
            raise ValueError(
                f"names has {len(self.names)} names, and tree splits on feature "
                f"{self.tree.feature.max()}."
            )
        require_tree_prior("base", self.base)
        require_weighs(self.base, "EditTree", "nodes")
        probability = self.edit_probability
        if not isinstance(probability, int | float | np.number) or not 0 <= probability < 1:
            raise ValueError(f"edit_probability must be in [0, 1); got {self.edit_probability!r}.")

    @property
    def rules(self) -> Rules:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rules of a node, as in the base prior; see `TreePrior`."""
        return self.base.rules

    @property
    def counts_partitions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the base prior counts partitions; see `TreePrior`."""
        return self.base.counts_partitions

    def resolve(self, design: Design) -> "EditTree":
        """Set the table's numbers of features, and fill in the defaults of the base.

        Raises
        ------
        ValueError
            If the tree splits on a feature that the table lacks.
        """
        tree = self.tree
        if self.names is not None and tuple(self.names) != tuple(design.names):
            place = {name: number for number, name in enumerate(design.names)}
            used = [self.names[feature] for feature in np.unique(tree.feature) if feature >= 0]
            if lacking := [name for name in used if name not in place]:
                raise ValueError(
                    f"tree splits on {lacking[0]!r}, which is not one of "
                    f"{', '.join(design.names[:10])}."
                )
            own = np.array([*(place.get(name, -1) for name in self.names), -1])  # -1 for leaves
            tree = replace(tree, feature=own[tree.feature].astype(np.int32))
        return replace(self, tree=tree, base=self.base.resolve(design), names=tuple(design.names))

    def log_stop(self, node: Node) -> Any:
        """Return the log weight of stopping under the base prior, which no edit uses."""
        return self.base.log_stop(node)

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log weight of an entry under the base prior, by which edits draw rules."""
        return self.base.log_split(node, rule)

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        leaves = counted(int(self.tree.num_leaves), "leaf", "leaves")
        edits = number(self.edit_probability / (1 - self.edit_probability))
        return [
            f"A given tree of {leaves} is edited before the data are seen: another edit follows "
            f"with probability {number(self.edit_probability)}, so that there are {edits} on "
            "average. An edit splits a leaf, makes a leaf of a split of two leaves, or changes a "
            f"rule; rules are drawn as by {describe_model(self.base)}."
        ]
