"""The construction of trees split by split (DT-GFN, section 4.1).

A state is a tree. An action stops, or splits a leaf: the leaf is chosen first, then the feature,
then the cut. Only available rules of the model are offered, so every intermediate tree is a tree of
the model, at which construction may stop.

Slots are in the order of their creation: the i-th split makes the slots 2i + 1 and 2i + 2. A tree
in this layout *is* its trajectory: its slots determine its leaves at any step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.shapes import Shape, roots, select_trees
from bdtppl.inference.hard.written_trees import root_rows
from bdtppl.inference.metropolis.state import split_leaves
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.node_scores import NodeTerms, log_rule, node_terms
from bdtppl.models.hard.packed_model import Available, PackedModel, available_rules
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import require_weighs
from bdtppl.models.pytrees import pytree_dataclass, setting

NOTHING = -1  # in paths, beyond a node's depth

MOST_SPLITS = 15  # splits of trees without a limit on their depth


@pytree_dataclass
class Construction:
    """Rules of trees; R rules, F features, C cuts of the feature with most cuts.

    A feature with missing values counts twice: these go right, or left.

    Attributes
    ----------
    model
        The model.
    rule
        int32 [F, C]; number of each feature's cuts among the model's rules, -1 beyond the last.
    feature, cut
        int32 [R]; place of each rule in ``rule``.
    num_splits
        Most splits of a tree, T.
    num_levels
        Most splits above a node, D.
    """

    model: PackedModel
    rule: jax.Array
    feature: jax.Array
    cut: jax.Array
    num_splits: int = setting()
    num_levels: int = setting()

    @classmethod
    @in_float64
    def of(cls, model: TreeModel, *, num_splits: int | None = None) -> "Construction":
        """Tabulate a model.

        Parameters
        ----------
        model
            The model.
        num_splits
            Most splits of a tree, a bound of the model: larger trees have no weight. Default: the
            number that ``max_depth`` and the rows allow, and 15 if nothing limits the depth.

        Raises
        ------
        ValueError
            If the number is out of range, the prior is not node-wise, or a feature is monotone.

        Examples
        --------
        >>> import numpy as np
        >>> from bdtppl.models.constraints import Constraints
        >>> from bdtppl.models.data.design import Design
        >>> from bdtppl.models.leaves import DirichletCategorical
        >>> from bdtppl.models.priors import DescriptionLength
        >>> design, y = Design.from_matrix(np.arange(6.0)[:, None]), np.arange(6) % 2
        >>> leaf, limits = DirichletCategorical.symmetric(2), Constraints(max_depth=2)
        >>> Construction.of(TreeModel(design, y, DescriptionLength(), leaf, limits)).num_splits
        3
        """
        require_weighs(model.prior, "A GFlowNet", "nodes")
        model.constraints.require_free_leaves("A GFlowNet")
        depth = model.constraints.max_depth
        most = max(1, model.design.num_rows // model.constraints.min_leaf - 1)
        if num_splits is None:
            num_splits = min(most, MOST_SPLITS if depth is None else (1 << depth) - 1)
        if not isinstance(num_splits, int | np.integer) or num_splits < 1:
            given = f"max_depth={depth!r}" if depth == 0 else f"num_splits={num_splits!r}"
            raise ValueError(f"A tree must have room for a split; got {given}.")
        packed = PackedModel.of(model, is_padded=False)
        first = np.asarray(packed.first)
        start, feature = np.unique(first, return_inverse=True)
        cut = np.arange(len(first)) - first
        rule = np.full((len(start), cut.max() + 1), -1)
        rule[feature, cut] = np.arange(len(first))
        return cls(
            packed,
            *(jnp.asarray(table, jnp.int32) for table in (rule, feature, cut)),
            num_splits=int(num_splits),
            num_levels=int(num_splits if depth is None else min(num_splits, depth)),
        )

    @property
    def num_features(self) -> int:
        """Number of features F."""
        return self.rule.shape[0]

    @property
    def num_cuts(self) -> int:
        """Most cuts of a feature, C."""
        return self.rule.shape[1]

    @property
    def capacity(self) -> int:
        """Number of slots k."""
        return 2 * self.num_splits + 1


class Partial(NamedTuple):
    """Trees under construction; b trees, k = 2T + 1 slots, W words.

    Attributes
    ----------
    shape
        The trees; slots are in the order of their creation.
    rows
        uint64 [b, k, W]; rows of each slot.
    scores
        float64 [b, k, 4]; the `NodeTerms` of each slot.
    paths
        int32 [b, k, D]; the rules above each slot from the root on, each as twice its place in
        `Construction.rule`, plus one on its right side; `NOTHING` below the last one.
    """

    shape: Shape
    rows: jax.Array
    scores: jax.Array
    paths: jax.Array

    @property
    def terms(self) -> NodeTerms:
        """Return scores of each slot, [b, k]."""
        return NodeTerms(*jnp.moveaxis(self.scores, -1, 0))


def begin_trees(construction: Construction, num_trees: int) -> Partial:
    """Make trees of one leaf."""
    model, shape = construction.model, roots(num_trees, construction.capacity)
    root = node_terms(model, model.every_row[None], jnp.zeros(1, jnp.int32))
    scores = jnp.zeros((*shape.rule.shape, 4))
    own = jnp.stack([jnp.asarray(term, float) for term in root], axis=1)
    paths = jnp.full((*shape.rule.shape, construction.num_levels), NOTHING, jnp.int32)
    return Partial(shape, root_rows(model, shape), scores.at[:, 0].set(own), paths)


def offered(
    construction: Construction, trees: Partial, slot: jax.Array
) -> tuple[Available, jax.Array]:
    """Return the available rules of one leaf of each tree, also as bool [b, F, C]."""
    tree = jnp.arange(len(slot))
    own, depth = trees.rows[tree, slot], trees.shape.depth[tree, slot]
    available = available_rules(construction.model, own, depth)
    return available, available.is_rule[:, construction.rule] & (construction.rule >= 0)[None]


def split_leaf(
    construction: Construction,
    trees: Partial,
    is_split: jax.Array,
    slot: jax.Array,
    available: Available,
    rule: jax.Array,
) -> Partial:
    """Split a leaf of some trees.

    Parameters
    ----------
    construction
        The rules.
    trees
        Trees b.
    is_split
        bool [b]; which trees to change.
    slot, found
        int32 [b]; the leaf, and its rules (see `offered`).
    rule
        int32 [b]; the rule.
    """
    model, (shape, rows, scores, paths) = construction.model, trees
    tree = jnp.arange(len(slot))
    own, depth = rows[tree, slot], shape.depth[tree, slot]
    log_weight = log_rule(model, own, depth, available, rule)
    grown = split_leaves(model, shape, rows, scores, slot, rule, log_weight)
    level = jnp.arange(paths.shape[2])[None] == depth[:, None]
    place = construction.feature[rule] * construction.num_cuts + construction.cut[rule]
    longer = paths
    for side in (0, 1):
        path = jnp.where(level, (2 * place + side)[:, None], paths[tree, slot])
        longer = longer.at[tree, shape.size + side].set(path, mode="drop")
    return Partial(*select_trees(is_split, (*grown, longer), tuple(trees)))
