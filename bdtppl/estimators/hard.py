"""The base of hard-tree estimators: limits, priors, leaf families, and rules as text."""

import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, cast

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import TableEstimator
from bdtppl.estimators.checkpoints import Run
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.targets import ClassTargets, RealTargets
from bdtppl.inference.exact_choice import leaf_by_evidence
from bdtppl.inference.hard.partitions import Grouping
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.arguments import require_integer
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import MOST_GRID_CUTS, Binning, CutPoints, Design
from bdtppl.models.data.schema import Schema
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf, require_leaf
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.prior_kinds import TreePrior, require_tree_prior
from bdtppl.models.wording import describe_model, function_name, listed, number

_MOST_CONSTRAINED = 20  # parts of a constraint that are written out
_MOST_SLOTS = 1_000_000  # slots of trees, which are ranked within a second
_MOST_TREES_LISTED = 1000  # trees that are listed for their partitions


def list_trees(most_probable: Callable[[int], RankedTrees], least: int = 1) -> RankedTrees:
    """List the most probable trees until they sum to nine tenths, or are 1,000 and ``least``."""
    number, most = 10, max(least, _MOST_TREES_LISTED)
    while True:
        ranked = most_probable(min(number, most))
        if ranked.probability.sum() >= 0.9 or len(ranked) < number or number >= most:
            return ranked
        number *= 10


@declared
class HardParameters:
    """Parameters of all estimators of hard trees."""

    prior: TreePrior | None = parameter(
        None,
        "Tree prior (`bdtppl.models.priors`, `bdtppl.models.leaf_count_priors`, "
        "`bdtppl.models.edit_tree`); None for the default of the inference.",
        option=False,
    )
    leaf: Leaf | Literal["from_targets"] | None = parameter(
        None,
        "Leaf family (`bdtppl.models.leaves`). None for ``DirichletCategorical`` with "
        "concentration 1 a class (0.1 for GFlowNets), or ``NormalInverseGamma`` with the "
        'hyperparameters of greatest evidence; "from_targets" for those of '
        "``NormalInverseGamma.from_targets``.",
        option=False,
    )
    bins: int | None = parameter(
        None,
        "Most buckets per feature; None keeps a cut between any two neighbouring distinct values.",
        option=str,
    )
    binning: Binning = parameter("quantile", 'How buckets are cut: "uniform" gives equal widths.')
    grid: int | None = parameter(
        None,
        "Instead of bins: number of evenly spaced cuts over each feature's range, at most "
        f"{MOST_GRID_CUTS:,}.",
        least=1,
    )
    max_depth: int | None = parameter(None, "Most levels of splits; None for no limit.", least=0)
    min_leaf: int = parameter(1, "Fewest rows in a leaf.", least=1)
    constraints: Constraints | None = parameter(
        None, "Further `bdtppl.models.constraints.Constraints`.", option=False
    )


class TreeEstimator(HardParameters, TableEstimator):
    """The base of hard-tree estimators: reads limits and writes trees as rules.

    Attributes
    ----------
    probability_name
        Name of the probabilities of `k_best`, for figures.
    default_prior
        Prior if none is given.
    default_concentration
        Concentration of each class in the leaves of a classifier if no leaf family is given.
    """

    probability_name: Any = "posterior probability"
    default_prior: ClassVar[Any]
    default_concentration: ClassVar[float] = 1.0

    design_: Design
    prior_: Any
    leaf_: Any
    constraints_: Constraints
    _default_leaf: Any
    _free_of_leaf: Any
    _leaf_of: Any
    _leaf_text: Any
    _most_probable: Any

    def k_best(self, k: int, *, by: Grouping = "tree") -> RankedTrees:
        """List the k most probable trees or partitions of the training rows, the best first.

        Trees that differ only by cuts inside gaps of a node's rows are one entry. An exact
        posterior has exact probabilities. Probabilities of weighted draws are joints over the
        estimated sum of all, those of chains are shares of the draws, and those of a greedy search
        are among the trees found.

        Parameters
        ----------
        k
            Number of entries; there may be fewer.
        by
            "tree", or "partition": trees whose leaves contain the same training rows, such as two
            orders of the same splits, are one entry, represented by the most probable one. Its
            probability is the sum over the listed trees: the most probable ones until they sum to
            nine tenths, but no more than k or 1,000. Other trees of the partition would add to it.

        Returns
        -------
        RankedTrees
            Trees, leaf statistics, log joints and probabilities.

        Raises
        ------
        ValueError
            If k or ``by`` is invalid, or if partitions are requested and the training rows came in
            parts, which are not stored.
        """
        check_is_fitted(self)
        require_integer("k", k)
        if by == "tree":
            return self._most_probable(k)
        if by != "partition":
            raise ValueError(f"by must be 'tree' or 'partition'; got {by!r}.")
        return self._listed(k).by_leaves(self.design_.matrix)[:k]

    @property
    def grouping(self) -> Grouping:
        """How figures and reports group trees: by partition if the training rows were stored."""
        check_is_fitted(self)
        return "partition" if self.design_.num_rows else "tree"

    def _listed(self, least: int = 1) -> RankedTrees:
        return list_trees(self._most_probable, least)

    def _read_model(self, X: Any, y: Any, sample_weight: Any) -> TreeModel:
        """Read the table and fill in the defaults of the model; sets ``schema_``."""
        prior = self._read_prior()
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        prior = with_weights_of_marks(schema, prior)
        leaf = self._default_leaf(y, weights)
        constraints = self._limits(schema)
        design = self._design(schema, matrix, weights)
        self._warn_of_no_cut(schema, design, constraints, stacklevel=5)
        self.schema_ = schema
        return self._with_fitted_leaf(TreeModel(design, y, prior, leaf, constraints))

    def _with_fitted_leaf(self, model: TreeModel) -> TreeModel:
        """Fit the hyperparameters of a default leaf family by evidence."""
        if not self._free_of_leaf(model.leaf):
            return model
        return replace(model, leaf=leaf_by_evidence(model))

    @property
    def _num_bins(self) -> int | None:
        """Return the most buckets of a column, for `Design`."""
        return self.bins

    def _design(self, schema: Schema, matrix: Any, weights: np.ndarray, **cuts: Any) -> Any:
        """Cut the columns of a table, by the parameters or other ``bins`` and ``grid``."""
        chosen: dict[str, Any] = {"bins": self._num_bins, "grid": self.grid} | cuts
        return Design.from_matrix(
            matrix,
            weights=weights,
            binning=self.binning,
            names=schema.features,
            is_indicator=schema.is_indicator,
            column=schema.column,
            **chosen,
        )

    def _run_of(self: Any, model: TreeModel) -> AbstractContextManager[Run]:
        """Store a run of a model in the checkpoint folder, if there is one."""
        design = model.design
        data = design.matrix, design.codes, design.weights, design.cut_threshold, model.y
        prior = model.prior.resolve(design)  # without functions, where possible
        filled_in = {"prior": prior, "leaf": model.leaf, "constraints": model.constraints}
        return self._run(design.names, data, **filled_in)

    def _keep_model(self, model: TreeModel) -> None:
        """Set the fitted attributes that describe the model."""
        self.design_, self.prior_ = model.design, model.prior
        self.leaf_, self.constraints_ = model.leaf, model.constraints

    def _limits(self, schema: Schema) -> Constraints:
        """Join max_depth and min_leaf with the further constraints, on existing features."""
        return join_limits(schema, self.constraints, self.max_depth, self.min_leaf)

    def _warn_of_no_cut(
        self, schema: Schema, design: CutPoints, limits: Constraints, stacklevel: int = 4
    ) -> None:
        """Warn of columns without a cut, levels perhaps without rows, and limits without effect."""
        warn_of_no_cut(schema, design, stacklevel + 1)
        if unmet := [*limits.unmet(design)]:
            feature, threshold, nearest = unmet[0]
            cuts = listed([f"{cut:g}" for cut in nearest]) or "none"
            others = f" The same applies to {len(unmet) - 1} more." if len(unmet) > 1 else ""
            warnings.warn(
                f"Constraints exclude the cut of {feature} at {threshold:g}, but the table has no "
                f"cut there, so the limit has no effect; the nearest cuts are {cuts}.{others}",
                UserWarning,
                stacklevel=stacklevel,
            )

    def _warn_of_no_rule(self) -> None:
        """Warn if the constraints, and not the table alone, prevent a split of the root."""
        from bdtppl.inference.prior_predictive.trees import has_root_rule  # which few fits need

        design, limits, rules = self.design_, self.constraints_, self.prior_.rules
        if limits.max_depth == 0 or has_root_rule(design, rules, limits):
            return
        if has_root_rule(design, rules):
            warnings.warn(
                f"The constraints ({describe_constraints(limits)}) leave the root without a rule, "
                "so every tree is a single leaf: loosen them.",
                UserWarning,
                stacklevel=4,  # the caller of `fit`
            )

    def _read_prior(self) -> TreePrior:
        prior = self.default_prior if self.prior is None else self.prior
        require_tree_prior("prior", prior)
        return prior

    def rules(self, rank: int = 0) -> str:
        """Write the rank-th most probable tree as rules, with the predictions of its leaves.

        Parameters
        ----------
        rank
            0 for the most probable tree. All trees before it are found first, so a rank of many
            thousands is slow.

        Raises
        ------
        ValueError
            If rank is not an integer of at least 0, or there are too few trees.
        """
        return self._written(*self._ranked(rank))

    def _written(self, tree: Tree, statistics: np.ndarray) -> str:
        """Write a tree as rules, with the predictions of its leaves."""
        leaf_text = self._leaf_text(statistics, self._rows_of_slots(tree))
        return tree.rules(self.design_.names, leaf_text, design=self.design_, schema=self.schema_)

    def explain(self, X: Any, rank: int = 0) -> list[str]:
        """Write the rules that lead each row to its leaf in the rank-th most probable tree.

        Parameters
        ----------
        X
            Rows [m].
        rank
            0 for the most probable tree. All trees before it are found first, so a rank of many
            thousands is slow.

        Returns
        -------
        list of str
            For each row, the conditions from the root down, joined by "and", and the leaf's
            prediction.

        Raises
        ------
        ValueError
            If there are too few trees.
        """
        matrix, (tree, statistics) = self._matrix(X), self._ranked(rank)
        leaf_text = self._leaf_text(statistics, self._rows_of_slots(tree))
        paths, design = {0: ""}, self.design_
        for slot in np.flatnonzero(tree.feature >= 0).tolist():  # parents have smaller slots
            for is_left, child in ((True, tree.left[slot]), (False, tree.right[slot])):
                condition = tree.condition(
                    slot, is_left, design.names, design=design, schema=self.schema_
                )
                if " or " in condition:
                    condition = f"({condition})"
                paths[int(child)] = f"{paths[slot]} and {condition}" if slot else condition
        slots = route(tree.reshape(1), matrix)[0]
        return [f"{paths[slot] or 'always'}: {leaf_text[slot]}" for slot in slots.tolist()]

    def _draw_prior(self, num_draws: int) -> Any:
        from bdtppl.arviz import PriorDraws
        from bdtppl.arviz.groups import describe_trees
        from bdtppl.inference.prior_predictive.draws import draw_prior_targets, draw_prior_trees

        key_tree, key_target = jax.random.split(jax.random.key(self._seed))
        model = self.design_, self.prior_, self.constraints_
        trees = draw_prior_trees(key_tree, *model, num_draws)
        targets = draw_prior_targets(key_target, trees, self.leaf_, self.design_.matrix)
        described = describe_trees(trees.reshape(1, num_draws), self.design_.names)
        return PriorDraws(described, targets[None])

    def _rows_of_slots(self, tree: Tree) -> np.ndarray:
        """Count the training rows in each slot of a tree, [k], repeated by whole weights."""
        # Statistics do not show this: the prior of a leaf may have absorbed rows (smoothing).
        slots = route(tree.reshape(1), self.design_.matrix)[0]
        weights = self.design_.weights if self.design_.has_whole_weights else None
        return np.bincount(slots, weights, minlength=tree.capacity)

    def _ranked(self, rank: int) -> tuple[Tree, np.ndarray]:
        """Return the rank-th most probable tree and the statistics of its slots."""
        check_is_fitted(self)
        require_integer("rank", rank, 0)
        ranked = self.k_best(rank + 1)
        if len(ranked.log_joint) <= rank:
            raise ValueError(
                f"rank must be below {len(ranked.log_joint)}, the number of distinct trees; "
                f"got {rank}."
            )
        return ranked.trees[rank], ranked.statistics[rank]

    def _describe(self) -> dict[str, Any]:
        """Start a summary with the model in words."""
        return {
            "model": type(self).__name__,
            "prior": describe_model(self.prior_),
            "leaf": describe_model(self.leaf_),
            "constraints": describe_constraints(self.constraints_),
            "rows": self.design_.num_observations,
            "features": self._num_read,
            "no_cut": list(self.no_cut),
        }

    @property
    def _num_read(self) -> int:
        """Number of features that were read."""
        return len(self.design_.names)

    def _at_hand(self) -> dict[str, Any]:
        known = self._describe()
        for name in ("log_evidence", "log_evidence_lower_bound"):
            value = getattr(self, f"{name}_", None)
            if value is not None and np.isfinite(value):
                known[name] = value
        error = getattr(self, "log_evidence_se_", np.nan)
        known["log_evidence_se"] = error if error > 0 else None  # neither NaN nor exact
        if (best := self._known_best()) is not None:
            known["map_rules"] = self._written(best.trees[0], best.statistics[0])
        return known

    def _known_best(self) -> RankedTrees | None:
        """Rank trees, the most probable first; None if they are unranked and ranking is slow."""
        posterior = self.posterior_
        is_ranked = "ranked" in vars(posterior)
        return posterior.ranked if is_ranked or posterior.trees.feature.size < _MOST_SLOTS else None


def join_limits(
    schema: Schema, given: Constraints | None, max_depth: int | None, min_leaf: int
) -> Constraints:
    """Join max_depth and min_leaf with further constraints, on existing features."""
    given = Constraints() if given is None else given
    if not isinstance(given, Constraints):
        raise TypeError(
            f"constraints must be a bdtppl.models.constraints.Constraints; "
            f"got {type(given).__name__}."
        )
    depths = [d for d in (max_depth, given.max_depth) if d is not None]
    for depth in depths:
        Constraints(max_depth=depth)  # raises if it is not a depth
    # A limit on a column also applies to the feature that marks its missing values.
    limits = replace(
        given,
        min_leaf=max(Constraints(min_leaf=min_leaf).min_leaf, given.min_leaf),
        max_depth=min(depths, default=None),
        features=None if given.features is None else schema.features_of(given.features),
        features_at_depth=tuple(
            (depth, (*features, *schema.marks_of(features)))
            for depth, features in given.features_at_depth
        ),
        before=(
            *given.before,
            *((first, mark) for first, then in given.before for mark in schema.marks_of([then])),
        ),
        keep_together=tuple(_with_marks(schema, box) for box in given.keep_together),
    )
    limits.allows(schema.features)
    return limits


def _with_marks(schema: Schema, box: KeepTogether) -> KeepTogether:
    """Restrict a box with an end on a column to rows that have a value there."""
    bounded = [feature for feature, *ends in box.intervals if np.isfinite(ends).any()]
    return KeepTogether((*box.intervals, *((mark, 0, 0) for mark in schema.marks_of(bounded))))


def with_weights_of_marks(schema: Schema, prior: Any) -> Any:
    """Give a column's weight to its features and to the marker of its missing values.

    Raises
    ------
    ValueError
        If a list has one number neither for each column nor for each feature.
    """
    if isinstance(prior, EditTree):
        return replace(prior, base=with_weights_of_marks(schema, prior.base))
    weights = getattr(prior, "feature_weights", None)
    if weights is None or callable(weights):
        return prior
    if not any(isinstance(pair, tuple) for pair in weights):
        if len(weights) == len(schema.columns):
            weights = tuple(weights[position] for position, *_ in schema.sources)
        if len(weights) != len(schema.features):
            raise ValueError(
                f"feature_weights has {len(weights)} numbers for {len(schema.columns)} columns: "
                f"pass one for each of {listed([column.name for column in schema.columns])}, or "
                f"names with their numbers, as {{{schema.columns[0].name!r}: 2}}."
            )
        return replace(prior, feature_weights=weights)
    each = {
        feature: weight
        for name, weight in weights
        for feature in (*schema.features_of([name]), *schema.marks_of([name]))
    }
    own = {name: weight for name, weight in weights if name in each}
    return replace(prior, feature_weights=tuple((each | own).items()))


class ClassLeaves(ClassTargets):
    """Leaves of class labels."""

    leaf: Any
    leaf_: Any
    default_concentration: ClassVar[float]

    def _default_leaf(self, y: np.ndarray, weights: np.ndarray) -> Leaf:
        num_classes = len(self.classes_)
        if self.leaf is None:
            return DirichletCategorical.symmetric(num_classes, self.default_concentration)
        concentration: Any = getattr(self.leaf, "concentration", None)
        if isinstance(self.leaf, DirichletCategorical) and not np.ndim(concentration):
            return DirichletCategorical.symmetric(num_classes, concentration)
        require_leaf(self.leaf, self.task)
        if concentration is not None and len(concentration) != num_classes:
            raise ValueError(
                f"leaf has {len(concentration)} concentrations, but there are {num_classes} "
                f"classes."
            )
        _require_score(self.leaf, y, weights)
        if concentration is None or self.classes is None:
            return self.leaf
        return cast(Any, replace)(self.leaf, concentration=self._by_class(concentration))

    def _free_of_leaf(self, leaf: Leaf) -> list[str]:
        return []

    def _leaf_of(self, labels: Any) -> Leaf:
        """Set the leaf family from the summary of labels of a pass over the rows."""
        self._set_classes(labels.values)
        each = np.arange(len(self.classes_))
        return self._default_leaf(each, np.ones(len(each)))

    def _leaf_text(self, statistics: np.ndarray, num_rows: np.ndarray) -> list[str]:
        with jax.enable_x64(True):
            probability = np.asarray(self.leaf_.posterior_mean(statistics))
        best = probability.argmax(axis=1)
        return [
            f"{self.classes_[b]} ({p[b]:.2f}, {_rows_in_words(count)})"
            for b, p, count in zip(best, probability, num_rows, strict=True)
        ]


class RealLeaves(RealTargets):
    """Leaves of real targets."""

    leaf: Any
    leaf_: Any

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        targets = super()._read_targets(y, kept)
        if (leaf := self._given_leaf()) is not None:
            leaf.require_targets(np.where(kept, np.asarray(y, np.float64), targets[0]))
        return targets

    def _given_leaf(self) -> Leaf | None:
        """Return the given leaf family; None if its hyperparameters come from the targets."""
        if self.leaf is None:
            return None
        if isinstance(self.leaf, str):
            if self.leaf != "from_targets":
                raise ValueError(
                    f"leaf must be a leaf family, 'from_targets' or None; got {self.leaf!r}."
                )
            return None
        given: Any = self.leaf
        require_leaf(given, self.task)
        return given

    def _default_leaf(self, y: np.ndarray, weights: np.ndarray) -> Leaf:
        given = self._given_leaf()
        if given is None:
            return NormalInverseGamma.from_targets(y, weights)
        _require_score(given, y, weights)
        return given

    def _free_of_leaf(self, leaf: Leaf) -> list[str]:
        """Name the hyperparameters of the leaf family that the user did not choose."""
        return [*leaf.parameter_support] if self.leaf is None else []

    def _leaf_of(self, moments: Any) -> Leaf:
        """Set the leaf family from the summary of targets of a pass over the rows."""
        given = self._given_leaf()
        if given is not None:
            return given
        spread = moments.mean, moments.variance
        return NormalInverseGamma.from_moments(*spread, moments.least, moments.greatest)

    def _leaf_text(self, statistics: np.ndarray, num_rows: np.ndarray) -> list[str]:
        with jax.enable_x64(True):
            mean = np.asarray(self.leaf_.posterior_mean(statistics))
        return [f"{number(m)} ({_rows_in_words(c)})" for m, c in zip(mean, num_rows, strict=True)]


def _rows_in_words(count: float) -> str:
    return "1 row" if count == 1 else f"{count:.0f} rows"


def describe_constraints(constraints: Constraints) -> str | None:
    """Describe the chosen constraints; None if there are none."""
    chosen = {f.name: getattr(constraints, f.name) for f in fields(constraints)}
    default = Constraints()
    parts = [
        f"{name}={_written_constraint(v)}"
        for name, v in chosen.items()
        if v != getattr(default, name)
    ]
    return ", ".join(parts) or None


def _written_constraint(value: Any) -> str:
    if callable(value):
        return function_name(value)
    is_long = isinstance(value, tuple) and len(value) > _MOST_CONSTRAINED
    return f"{len(value)} of them" if is_long else repr(value)


def warn_of_no_cut(
    schema: Schema, design: CutPoints, stacklevel: int, but: Collection[str] = ()
) -> None:
    """Warn of columns without a cut, except some, though levels may have no rows."""
    uncut = set(design.no_cut)
    names = [
        repr(each.name)
        for each in schema.columns
        if uncut.issuperset((*each.features, *each.missing_feature)) and each.name not in but
    ]
    if names:
        warnings.warn(
            f"No cut in {listed(names)}: no tree splits on a column "
            f"whose values are all equal or missing (NaN).",
            UserWarning,
            stacklevel=stacklevel,
        )


@in_float64
def _require_score(leaf: Leaf, y: np.ndarray, weights: np.ndarray) -> None:
    """Raise ValueError if a leaf family's score of all rows together is not a number."""
    statistics = np.asarray(leaf.statistics(y, weights)).sum(axis=0)
    if np.isfinite(statistics).all() and np.isnan(leaf.log_marginal(statistics)):
        raise ValueError(
            f"{type(leaf).__name__}.log_marginal of all training rows is not a number (NaN); their "
            f"statistics sum to {statistics.tolist()}."
        )


def require_finite(what: str, value: Any) -> None:
    """Raise ValueError unless the score of a fit is finite."""
    if not np.isfinite(value).all():
        raise ValueError(
            f"{what} is not finite: the targets or the parameters of the leaf or the prior are too "
            "large or too small for float64 (rescale them), or a split_probability is outside [0, "
            "1], or a weight of the prior is not positive."
        )
