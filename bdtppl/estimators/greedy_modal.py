"""Greedy modal trees (GMT), for classification and regression."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import estimator
from bdtppl.estimators.found import FoundTrees
from bdtppl.estimators.hard import ClassLeaves, RealLeaves, require_finite, with_weights_of_marks
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.inference.greedy_modal.ahead import compile_ahead
from bdtppl.inference.greedy_modal.growth import prune
from bdtppl.inference.greedy_modal.hyperplanes import projected, with_projections
from bdtppl.inference.greedy_modal.node import PartitionPosterior, partition_posterior
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.inference.greedy_modal.tree_space import (
    as_posterior,
    distinct_trees,
    keep_used_features,
    numbered,
    tree_space,
)
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import Schema
from bdtppl.models.data.sparse import SparseDesign
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import TreePrior
from bdtppl.models.priors import GreedyPartition
from bdtppl.summary import summarised


@declared
class GreedyModalParameters:
    """Parameters of greedy modal trees."""

    bins: int | Literal["auto"] | None = parameter(
        None,
        'Most buckets per feature; None and "auto" keep a cut between any two neighbouring '
        "distinct values.",
        option=str,
    )
    num_roots: int = parameter(
        1,
        "Number of trees to average, grown from the most probable partitions of the root (the "
        "weighted tree space). Predictions are their mean, weighted by probability. 1 is the "
        "greedy modal tree alone.",
        least=1,
    )
    root_levels: int = parameter(
        1,
        "1 tries the ``num_roots`` most probable partitions of the root; 2 also tries those of "
        "both its children, in all combinations.",
        least=1,
    )
    lookahead: int = parameter(
        1,
        "Levels of splits by which a rule is scored: 1 is greedy. 2 also tries all rules on both "
        "sides, which finds rules that pay only together (hidden XOR). Another level multiplies "
        "the cost by the number of rules, so use small tables or few ``bins``. The better of this "
        "tree and the greedy one is kept.",
        least=1,
    )
    smoothing: float = parameter(
        0.0,
        "Share of a node's rows that its leaf prior and those of all nodes below absorb, except "
        "the root's (section 5.2). Smoothed scores depend on the path, so they cannot be compared "
        "with those of an exact posterior.",
        least=0,
    )
    split_precision: float = parameter(
        0.0,
        "Neighbouring values no further apart than this are not separated, in units of the "
        "feature.",
        least=0,
    )
    stop_pure: bool = parameter(
        False,
        "Whether nodes whose rows have one distinct target are never split (the authors' program; "
        "the paper searches them). Otherwise even a constant y is split, because the default prior "
        "gives the trivial partition of the root probability 0.01.",
    )
    prune: bool = parameter(
        False,
        "Whether sibling leaves that predict the same class (the same mean) are merged afterwards. "
        "The merged tree is no longer the greedy one, and is less probable.",
    )
    hyperplanes: int = parameter(
        0,
        "Random starts, in each node, of a search for a cut of several columns. A hyperplane cuts "
        "a linear combination of numeric columns, such as ``0.6 length - 0.8 width < 1.2``. 0 for "
        "cuts of single columns alone; 8 is a good choice. Columns with missing values are left "
        "out, with a warning. The best cut of one column and least-squares directions are further "
        "starts. A hyperplane is scored like a cut of one column, N being the cuts of the "
        "combination in the node. It is used if it is strictly more probable than the best of "
        "these; ``bins`` and ``grid`` do not limit it. Needs ``lookahead=1``, no "
        '``split_precision`` and a prior with ``rules="gaps"``.',
        least=0,
    )


class GreedyModalTree(GreedyModalParameters, FoundTrees):
    """The inference, for any kind of target.

    Attributes
    ----------
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree found, with ``map_log_joint_``, which is at most that of the most
        probable of all trees.
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        All trees found, weighted by probability.
    directions_ : numpy.ndarray
        float64 [h, d]; normals of the hyperplanes of all trees, in units of 1 / feature, of length
        1 up to rounding. The projection on direction i is feature d + i of the trees, ``design_``
        and ``posterior_``.
    log_evidence_lower_bound_ : float
        Lower bound of the log evidence, for priors whose weights sum to at most 1.
    log_likelihood_gain_, log_prior_gain_ : numpy.ndarray
        Gain of the most probable tree's splits on each feature over stopping, in nats, separately
        for leaf scores and prior weights; float64 [d]. The features of a hyperplane share its gain
        by the squared components of its normal, in standard deviations of the node's rows.
    design_
        The coded training rows.
    columns_ : numpy.ndarray or None
        Columns of X in these two, which features of trees index. None for all; after a fit on a
        sparse table, those that a tree splits on (the first if there are none).
    prior_, leaf_, constraints_
        The model, with defaults filled in.
    {fitted}

    Notes
    -----
    A greedy search does not compute the evidence, so there is no ``log_evidence_``.

    A sparse table gives the same tree and scores as a dense one. Memory is linear in stored
    entries, rows, columns, and rows times the columns that the tree splits on. These need a dense
    table: ``bins``, ``grid``, ``num_roots``, ``lookahead``, ``hyperplanes`` and priors with
    ``cut_weights="gap"``.

    References
    ----------
    Nuti, Jimenez Rugama and Cross 2021 (GMT).
    """

    inference = "greedy-modal"
    in_words = (
        "The tree was grown from the root down, each node by its most probable partition (greedy "
        "modal tree, Nuti et al. 2021). It is a good tree, not a posterior: the uncertainty of its "
        "splits is not known."
    )
    reads_sparse = True
    default_prior = GreedyPartition(0.99)
    unknown: ClassVar = {
        "log_evidence": "a greedy search does not sum over all trees",
        "elpd_loo": "a greedy search draws no trees that could be reweighted without a row",
    }

    directions_: np.ndarray

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        prior = self._read_prior()
        if self.root_levels > 2:
            raise ValueError(f"root_levels must be 1 or 2; got {self.root_levels}.")
        self._check_hyperplanes(prior)
        if issparse(X) and (reason := self._why_dense()):
            raise ValueError(f"{reason}: give X.toarray() instead.")
        with ThreadPoolExecutor(1) as ahead:
            ahead.submit(jax.devices)  # starts the backend
            schema, matrix, y, weights = self._read_training(X, y, sample_weight)
            prior = with_weights_of_marks(schema, prior)
            leaf = self._default_leaf(y, weights)
            if not issparse(matrix):
                ahead.submit(compile_ahead, prior, leaf, matrix, y)
            constraints = self._limits(schema)
            design = self._design(schema, matrix, weights)
        self._warn_of_no_cut(schema, design, constraints)
        self._warn_of_missing(design, constraints)
        seed = self._draw_seed()
        search = {"num_starts": int(self.hyperplanes), "seed": seed}
        model = self._with_fitted_leaf(TreeModel(design, y, prior, leaf, constraints))
        problem = self._pose(model, **search)
        space = int(self.num_roots), int(self.lookahead), int(self.root_levels)
        grown = tree_space(problem, *space)
        require_finite("The log joint of the tree", grown[0].log_joint)
        if self.prune:
            grown = distinct_trees([prune(tree, model.leaf) for tree in grown])
        grown, self.directions_ = numbered(grown, design.num_features)
        self.log_likelihood_gain_, self.log_prior_gain_ = grown[0].gains(design.num_features)
        self.columns_ = None
        if issparse(matrix):
            problem, grown, self.columns_ = keep_used_features(problem, grown)
            schema = Schema(tuple(schema.columns[column] for column in self.columns_))
            self.directions_ = self.directions_[:, self.columns_]  # there are none
        problem = replace(problem, design=with_projections(problem.design, self.directions_))
        self.schema_ = schema
        self._keep_model(TreeModel(problem.design, y, problem.prior, model.leaf, constraints))
        self._random_seed = seed
        self.map_log_joint_ = grown[0].log_joint
        self.posterior_ = as_posterior(problem, grown, y)
        if self.columns_ is None and grown[0].tree.num_nodes == 1:
            self._warn_of_no_rule()
        return self

    @property
    def _num_bins(self) -> int | None:
        """Return the buckets per feature; no table is too large for all cuts."""
        return None if isinstance(self.bins, str) and self.bins == "auto" else self.bins

    def _design(self, schema: Schema, matrix: Any, weights: np.ndarray, **cuts: Any) -> Any:
        if issparse(matrix):
            return SparseDesign.from_matrix(matrix, weights=weights, names=schema.features)
        return super()._design(schema, matrix, weights, **cuts)

    def _why_dense(self) -> str | None:
        """Name the parameter that needs a dense table, if one does."""
        if self._num_bins is not None:
            return f"bins must be None for a sparse X; got {self.bins!r}"
        wanted = {"grid": None, "num_roots": 1, "lookahead": 1, "hyperplanes": 0}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                return f"{name} must be {value} for a sparse X; got {getattr(self, name)!r}"
        if "log_width_share" in getattr(self.prior, "rule_facts", ()):
            return "prior must not weigh cuts by their gaps (cut_weights='gap') for a sparse X"
        return None

    def __sklearn_tags__(self):
        """Declare that sparse tables are accepted if no parameter needs a dense one."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._why_dense() is None
        return tags

    def _check_hyperplanes(self, prior: TreePrior) -> None:
        """Reject settings that exclude hyperplanes."""
        number = self.hyperplanes
        if number and self.lookahead > 1:
            raise ValueError(f"lookahead must be 1 with hyperplanes; got {self.lookahead}.")
        if number and self.split_precision:
            raise ValueError(
                "hyperplanes cannot be combined with split_precision, because a direction could be "
                "chosen for its few wide gaps; set one of the two to 0."
            )
        if number and prior.rules != "gaps":
            raise ValueError(
                f"hyperplanes cut gaps between rows, so the prior needs rules='gaps'; got a "
                f"{type(prior).__name__} with rules={prior.rules!r}."
            )

    def _warn_of_missing(self, design: Any, constraints: Constraints) -> None:
        """Name the columns that hyperplanes leave out because values are missing."""
        if not self.hyperplanes:
            return
        left_out = constraints.allows(design.names) & design.has_missing & design.has_cut
        left_out &= ~design.is_indicator
        if left_out.any():
            names = ", ".join(repr(design.names[f]) for f in np.flatnonzero(left_out))
            warnings.warn(
                f"Hyperplanes leave out columns with missing values (NaN), here {names}, which get "
                "single cuts only: fill the values in, or drop the rows, if they matter.",
                UserWarning,
                stacklevel=4,
            )

    def _pose(self, model: TreeModel, **options: Any):
        return pose(
            model,
            smoothing=float(self.smoothing),
            split_precision=float(self.split_precision),
            stop_pure=bool(self.stop_pure),
            **options,
        )

    @property
    def counts_rows(self) -> bool:
        """False when nodes are smoothed, because these have fractional counts from above."""
        return not self.smoothing

    @property
    def log_evidence_lower_bound_(self) -> float:
        """Log of the summed joints of the trees found, a lower bound of the log evidence.

        Raises
        ------
        AttributeError
            If the prior's weights may sum to more than 1, leaves are smoothed, cuts are omitted
            (split_precision), or a tree has hyperplanes.
        """
        check_is_fitted(self)
        is_exact = not (self.smoothing or self.split_precision or len(self.directions_))
        if not self.prior_.sums_to_at_most_one or not is_exact:
            raise AttributeError(
                "log_evidence_lower_bound_ is known for a prior whose weights sum to at most 1 "
                "(DepthDecay, GreedyPartition), without smoothing, split_precision and hyperplanes."
            )
        return float(np.logaddexp.reduce(self.posterior_.sample_stats["log_joint"], axis=None))

    def partition_log_probabilities(self, node: int = 0) -> PartitionPosterior:
        """Score all partitions of the rows of a node of the most probable tree.

        These are the cuts of single features, even in a node that a hyperplane splits.

        Parameters
        ----------
        node
            Slot of the node in ``map_tree_``; 0 is the root.

        Returns
        -------
        PartitionPosterior
            Log probabilities of the trivial partition, of every rule, and of all rules of each
            feature together (section 3, equations 3 to 5).

        Raises
        ------
        ValueError
            If the tree has no such node, or if the model was fitted on a sparse table, of which it
            keeps too few columns.
        """
        check_is_fitted(self)
        if self.columns_ is not None:
            raise ValueError(
                "partition_log_probabilities needs all columns, and a model fitted on a sparse "
                "table keeps only those that it splits on: fit on X.toarray()."
            )
        if not isinstance(node, int | np.integer) or isinstance(node, bool):
            raise ValueError(f"node must be an integer; got {node!r}.")
        posterior = self.posterior_
        model = TreeModel(self.design_, posterior.y, self.prior_, self.leaf_, self.constraints_)
        num_features = self._num_features
        problem = self._pose(model, num_features=num_features)
        partitions = partition_posterior(problem, self.map_tree_, int(node))
        return replace(partitions, log_feature=partitions.log_feature[:num_features])

    @summarised
    def summary(self) -> dict:
        """Summarise the fit in numbers and text of JSON types."""
        check_is_fitted(self)
        names, tree = self.design_.names[: self._num_features], self.map_tree_
        own = slice(None) if self.columns_ is None else self.columns_
        return {
            **self._describe(),
            "bins": self._num_bins,
            "trees": len(self.posterior_.trees.num_nodes[0]),
            "log_evidence_lower_bound": getattr(self, "log_evidence_lower_bound_", None),
            "map_log_joint": self.map_log_joint_,
            "map_leaves": int(tree.num_leaves),
            "map_depth": int(tree.depth),
            "map_rules": self.rules(),
            "hyperplanes": int((tree.feature >= len(names)).sum()),
            "feature_importance": dict(
                zip(names, map(float, self._shares_of_gain[own]), strict=True)
            ),
        }

    def _draw_prior(self, num_draws: int) -> Any:
        if self.columns_ is not None:
            raise ValueError("a model fitted on a sparse table keeps those columns that it uses")
        if len(self.directions_):
            raise ValueError("the prior does not define which hyperplanes exist")
        return super()._draw_prior(num_draws)

    @property
    def _num_features(self) -> int:
        """Number of features d, without projections."""
        return self.directions_.shape[1]

    @property
    def _num_read(self) -> int:
        return len(self.log_likelihood_gain_)

    def _matrix(self, X: Any) -> np.ndarray:
        """Read new rows, and append their projections, float64 [m, d + h]."""
        matrix = super()._matrix(X)
        projections = [projected(matrix, direction) for direction in self.directions_]
        return np.column_stack([matrix, *projections])


@estimator
class GreedyModalTreeClassifier(ClassLeaves, GreedyModalTree):
    """Classify by the greedy modal tree (GMT, Nuti et al. 2021).

    Examples
    --------
    >>> from bdtppl import GreedyModalTreeClassifier
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> GreedyModalTreeClassifier().fit(X, y).predict([[1.0], [4.0]]).tolist()
    ['a', 'b']
    """


@estimator
class GreedyModalTreeRegressor(RealLeaves, GreedyModalTree):
    """Regress by the greedy modal tree (GMT, Nuti et al. 2021).

    Examples
    --------
    >>> from bdtppl import GreedyModalTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> GreedyModalTreeRegressor().fit(X, y).predict([[1.0], [4.0]]).round(2).tolist()
    [0.0, 9.0]
    """
