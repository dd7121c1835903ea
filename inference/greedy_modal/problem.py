"""The problem of growing a tree: rows laid out by column, a model and its limits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bdtppl.inference.greedy_modal.columns import Columns
from bdtppl.inference.greedy_modal.sparse_columns import SparseColumns
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.sparse import SparseDesign
from bdtppl.models.data.splits import Split, position_below
from bdtppl.models.hard.leaf_scores import LeafScore, has_whole_counts, leaf_scorer
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior, require_weighs, weighs_each_cut


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows, model and limits to grow trees with.

    Attributes
    ----------
    design, prior, leaf, constraints
        The model; the prior has its defaults filled in. The design is a `Design` or, for a sparse
        table, a `SparseDesign`.
    columns
        The rows by column, as `Columns` or `SparseColumns`.
    score
        Leaf scores of statistics.
    smoothing
        Share of a child's rows that its leaf prior absorbs; 0 for a constant prior.
    split_precision
        Gaps of at most this width, in units of the feature, cannot be cut.
    target
        int [n]; number of each row's target among the distinct ones, if nodes with one target are
        never split; else None.
    num_starts
        Random starts of the search for a hyperplane in each node; 0 for splits by single features
        alone.
    seed
        Seed of these starts.
    """

    design: Any
    prior: TreePrior
    leaf: Leaf
    constraints: Constraints
    columns: Any
    score: LeafScore
    smoothing: float = 0.0
    split_precision: float = 0.0
    target: np.ndarray | None = None
    num_starts: int = 0
    seed: int = 0

    def splits(self, rules: Any) -> Split:
        """Convert rules of features, a `Best`, to splits in the middle of gaps or lowest cuts."""
        feature = self.columns.features[rules.feature]
        offset = self.design.offset[feature]
        low = offset + position_below(rules.split)
        if self.prior.rules == "gaps":
            threshold = self.design.gap_threshold(low, offset + rules.high)
        else:
            threshold = self.design.cut_threshold[low + 1]
        return Split.at_nodes(rules.split, feature, threshold)


def pose(
    model: TreeModel,
    *,
    smoothing: float = 0.0,
    split_precision: float = 0.0,
    stop_pure: bool = False,
    num_starts: int = 0,
    seed: int = 0,
    num_features: int | None = None,
) -> Problem:
    """Lay out rows and model for growing.

    Parameters
    ----------
    model
        The model; its design is dense or sparse.
    smoothing
        Share of a node's rows that the leaf prior of its children absorbs (section 5.2).
    split_precision
        Neighbouring values no further apart than this are not separated, in units of the feature.
    stop_pure
        Whether nodes whose rows have one distinct target are never split.
    num_starts, seed
        Random starts of the search for hyperplanes, and their seed (see `Problem`).
    num_features
        The first features of the design, which rules may use; further ones are projections.
        Default all.

    Raises
    ------
    ValueError
        If constraints depend on the path, or the prior weights each rule differently.
    """
    require_weighs(model.prior, "The greedy modal tree", "nodes")
    design, leaf, constraints = model.design, model.leaf, model.constraints
    prior = model.prior.resolve(design)
    _require_greedy(prior, constraints)
    allowed = np.zeros(design.num_features, bool)
    allowed[:num_features] = constraints.allows(design.names[:num_features])
    columns = _columns(design, leaf, model.y, allowed)
    return Problem(
        design,
        prior,
        leaf,
        constraints,
        columns,
        leaf_scorer(
            leaf,
            design.total_weight,
            is_whole=not smoothing and has_whole_counts(leaf, columns.statistics.T),
        ),
        smoothing,
        split_precision,
        np.unique(model.y, return_inverse=True)[1].ravel() if stop_pure else None,
        num_starts,
        seed,
    )


def _require_greedy(prior: TreePrior, constraints: Constraints) -> None:
    constraints.require_free_leaves("Greedy modal trees")
    if constraints.looks_at_path:
        raise ValueError(
            "Greedy modal trees do not support constraints on paths: keep_together, "
            "features_at_depth and before need an exact or a Metropolis tree."
        )
    if constraints.judges_cuts:
        raise ValueError(
            "Greedy modal trees use all cuts of a feature: refused and allows_rule need an exact "
            "or a Metropolis tree."
        )
    if weighs_each_cut(prior) or not {"num_rows", "log_num_features"}.issuperset(prior.node_facts):
        raise ValueError(
            f"Greedy modal trees cannot weight rules by the {type(prior).__name__}'s "
            "feature_weights, functions, over='rules' or choice='chronological': use an exact or a "
            "Metropolis tree."
        )


def _columns(design: Any, leaf: Leaf, y: np.ndarray, allowed: np.ndarray) -> Any:
    if isinstance(design, SparseDesign):
        return SparseColumns.of(design, leaf, y, allowed)
    return Columns.of(design, leaf, y, allowed)
