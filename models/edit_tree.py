"""A prior around a given tree: the tree is edited a random number of times.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 3 (EDITTREE).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.priors import DepthDecay, TreePrior, require_tree_prior

__all__ = ["EditTree"]


def _grow_tree() -> Any:
    return DepthDecay(rules="cuts")


@dataclass(frozen=True, eq=False)
class EditTree:
    """Edit a tree again and again, each time with probability ``edit_probability``.

    An edit has a kind, a place and, unless it merges, a rule:

    - *split*: a leaf with an available rule becomes a split;
    - *merge*: a split whose children are both leaves becomes a leaf;
    - *change*: a split gets another rule, or by chance the same.

    The kind is uniform among those that have a place in the tree, the place uniform among the
    kind's places, and the rule has the base prior's law at the node: its weights of the node's
    rules, over their sum. A change must leave every rule below it available; rules that do not are
    left out, and the weights of the others are renormalised. So all trees on the way obey the
    limits of the model, the leaf size among them; monotone features bind the last tree alone.
    Where no edit has a place, none follows.

    This is a law of sequences of edits. Many of them lead to one tree, so the probability of a tree
    is a sum without end: it is known on small tables alone, by enumeration. Estimators do
    not take it as their prior: `bdtppl.inference.metropolis.edits.sample_edits` draws from its
    posterior.

    Attributes
    ----------
    tree
        The tree at the start: typed in (`Tree.from_nested`), taken from scikit-learn
        (`Tree.from_sklearn`) or the tree of another inference. Its rules must be available.
    edit_probability
        Probability of each further edit, at least 0 and below 1.
    base
        Node-wise prior that rules are drawn from. With ``rules="gaps"`` a rule below a change is
        available only while the node still has a value next to its cut, so ``"cuts"`` lets more
        changes happen.

    Examples
    --------
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> EditTree(stump, 0.5).base.rules
    'cuts'
    """

    tree: Tree
    edit_probability: float = 0.8
    base: TreePrior = field(default_factory=_grow_tree)

    def __post_init__(self):
        if not isinstance(self.tree, Tree):
            raise TypeError(f"tree must be a Tree; got {type(self.tree).__name__}.")
        if self.tree.batch_shape:
            raise ValueError(
                f"tree must be a single tree; got a batch of shape {self.tree.batch_shape}."
            )
        require_tree_prior("base", self.base)
        probability = self.edit_probability
        if not isinstance(probability, int | float | np.number) or not 0 <= probability < 1:
            raise ValueError(f"edit_probability must lie in [0, 1); got {self.edit_probability!r}.")

    @property
    def counts_partitions(self) -> bool:
        """Whether the base prior counts partitions; see `TreePrior`."""
        return self.base.counts_partitions

    def resolve(self, design: Design) -> "EditTree":
        """Return the prior itself: its base has no defaults that depend on the data to show."""
        return self
