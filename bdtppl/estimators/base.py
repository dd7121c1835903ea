"""What all estimators share: reading tables and targets, and predicting.

An estimator class names its kind of targets and its inference: `ClassTargets` and `RealTargets`
turn a posterior predictive mixture, which every inference gives, into what scikit-learn expects.
"""

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.leaves import DirichletCategorical, Leaf, NormalInverseGamma
from bdtppl.models.priors import TreePrior, require_tree_prior
from bdtppl.models.pytrees import describe_kind
from bdtppl.models.table import Schema, require_distinct
from bdtppl.models.tree import Tree, route

__all__ = [
    "WIDE_LEAVES",
    "ClassTargets",
    "RealTargets",
    "TreeEstimator",
    "describe_constraints",
    "describe_model",
    "require_boolean",
    "require_finite",
    "require_positive_integer",
]


_SHOWN_NUMBERS = 12  # of a prior or a leaf family

WIDE_LEAVES = """\
    The default leaf expects the variance of all y inside each leaf. Where the splits explain most
    of it, leaves of few rows have wide predictive bands. To narrow them, give the variance that
    you expect around a leaf's mean, ``leaf=NormalInverseGamma(y.mean(), 1.0, 2.0, variance)``."""


class TreeEstimator(BaseEstimator):
    """Reads tables and limits as every tree estimator does.

    Attributes
    ----------
    probability_name
        What the probabilities of `k_best` are, for figures.
    reads_sparse
        Whether scipy sparse tables are read.
    columns_
        Columns of X that ``schema_`` and ``design_`` hold; None for all.
    """

    probability_name: ClassVar[str] = "posterior probability"
    reads_sparse: ClassVar[bool] = False
    columns_: np.ndarray | None = None

    prior: TreePrior | None
    drop_first: bool
    max_depth: int | None
    min_leaf: int
    constraints: Constraints | None
    random_state: Any
    schema_: Schema
    design_: Design
    prior_: Any
    leaf_: Any
    constraints_: Constraints
    n_features_in_: int
    _seed: int
    posterior_: Any
    _read_targets: Any
    _as_targets: Any
    _leaf_text: Any
    _mixture: Any
    k_best: Any

    def _read_training(self, X: Any, y: Any, sample_weight: Any) -> tuple:
        """Read schema, matrix [n, d], targets [n] and weights [n]; rows of weight 0 are gone.

        The matrix of a sparse table is sparse.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        require_boolean("drop_first", self.drop_first)
        if issparse(X):
            X = X.tocsc()  # a table by keys (dok) is a mapping too
        if isinstance(X, Mapping):
            self.feature_names_in_ = np.array([str(name) for name in X], object)
            self.n_features_in_ = len(X)
        elif _is_frame(X):
            require_distinct(X.columns)
            _check_feature_names(self, X, reset=True)
            self.n_features_in_ = X.shape[1]
        else:
            accepted = "csc" if self.reads_sparse else False
            X = validate_data(self, X, accept_sparse=accepted, dtype=None, ensure_all_finite=False)
        schema, matrix = Schema.read(X, drop_first=self.drop_first)
        y = column_or_1d(y, warn=True)
        if len(y) != matrix.shape[0]:
            raise ValueError(
                f"X has {matrix.shape[0]} rows and y has {len(y)} (inconsistent numbers)."
            )
        weights = _read_weights(sample_weight, len(y))
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is zero in every row: no rows are left.")
        return schema, matrix[kept], self._read_targets(y, kept), weights[kept]

    def _matrix(self, X: Any) -> np.ndarray:
        """Read new rows as the fitted schema does, float64 [m, d].

        Raises
        ------
        ValueError
            If columns differ from those of `fit`, or a value is missing in a feature that had no
            missing value there.
        """
        check_is_fitted(self)
        if issparse(X):
            X = X.tocsc()
        if isinstance(X, Mapping):
            pass  # the schema finds and checks columns by name
        elif _is_frame(X):
            require_distinct(X.columns)
            _check_feature_names(self, X, reset=False)
        else:
            accepted = "csc" if self.reads_sparse else False
            checks = {"dtype": None, "ensure_all_finite": False, "reset": False}
            X = validate_data(self, X, accept_sparse=accepted, **checks)
        matrix = self.schema_.transform(self._own_columns(X))
        missing = np.isnan(matrix) & ~self.design_.has_missing[: matrix.shape[1]]
        if missing.any():
            row, feature = np.argwhere(missing)[0]
            raise ValueError(
                f"Column {self.design_.names[feature]!r}, row {row}: the value is missing (NaN), "
                f"but no value of it was missing when the model was fitted, so no rule says where "
                f"the row goes."
            )
        return matrix

    def _own_columns(self, X: Any) -> Any:
        """Take, in a form that ``schema_`` reads, the columns of a table that it knows."""
        columns = self.columns_
        if columns is None:
            return X.toarray() if issparse(X) else X
        if isinstance(X, Mapping) or _is_frame(X):
            names = list(X if isinstance(X, Mapping) else X.columns)
            if {column.name for column in self.schema_.columns} <= set(map(str, names)):
                return X  # the schema finds them by name
            self._require_width(len(names))
            return {names[column]: np.asarray(X[names[column]]) for column in columns}
        X = X if issparse(X) else np.asarray(X)
        self._require_width(X.shape[1])
        return X[:, columns].toarray() if issparse(X) else X[:, columns]

    def _require_width(self, num_columns: int) -> None:
        if num_columns != self.n_features_in_:
            raise ValueError(
                f"X has {num_columns} columns, but the model was fitted with {self.n_features_in_}."
            )

    def _limits(self, schema: Schema) -> Constraints:
        """Join max_depth and min_leaf with the further constraints, on features that exist."""
        given = Constraints() if self.constraints is None else self.constraints
        if not isinstance(given, Constraints):
            raise TypeError(
                f"constraints must be a bdtppl.models.constraints.Constraints; "
                f"got {type(given).__name__}."
            )
        depths = [d for d in (self.max_depth, given.max_depth) if d is not None]
        for depth in depths:
            Constraints(max_depth=depth)  # refuses what is not a depth
        limits = replace(
            given,
            min_leaf=max(Constraints(min_leaf=self.min_leaf).min_leaf, given.min_leaf),
            max_depth=min(depths, default=None),
            features=None if given.features is None else schema.features_of(given.features),
        )
        limits.allows(schema.features)
        return limits

    def _warn_of_no_rule(self) -> None:
        """Say where the constraints, and not the table alone, keep the root from splitting."""
        from bdtppl.inference.tree_prior import has_root_rule  # which few fits need

        design, limits, rules = self.design_, self.constraints_, self.prior_.rules
        if limits.max_depth == 0 or has_root_rule(design, rules, limits):
            return
        if has_root_rule(design, rules):
            warnings.warn(
                f"The constraints ({describe_constraints(limits)}) leave the root no rule to split "
                f"by, so every tree is a single leaf: loosen them.",
                UserWarning,
                stacklevel=4,  # the caller of `fit`
            )

    def _read_prior(self, default: Any) -> TreePrior:
        prior = default if self.prior is None else self.prior
        if isinstance(prior, EditTree):
            raise TypeError(
                "prior must be a tree prior that weighs nodes one by one; draw from the posterior "
                "of an EditTree with bdtppl.inference.metropolis.edits.sample_edits."
            )
        require_tree_prior("prior", prior)
        return prior

    def _draw_seed(self) -> int:
        try:
            generator = check_random_state(self.random_state)
        except ValueError as error:
            raise ValueError(
                f"random_state must be None, a seed or a numpy.random.RandomState; "
                f"got {self.random_state!r}."
            ) from error
        return int(generator.randint(2**31 - 1))

    def rules(self, rank: int = 0) -> str:
        """Write the rank-th most probable tree as rules, with what its leaves predict.

        Parameters
        ----------
        rank
            0 for the most probable tree. Every tree before it is found first, so that a rank of
            many thousands takes long.

        Raises
        ------
        ValueError
            If rank is not an integer of at least 0, or there are too few trees.
        """
        tree, statistics = self._ranked(rank)
        return tree.rules(
            self.design_.names,
            self._leaf_text(statistics, self._rows_of_slots(tree)),
            is_indicator=self.design_.is_indicator,
            show_missing=self.design_.has_missing,
        )

    def explain(self, X: Any, rank: int = 0) -> list[str]:
        """Write the rules that lead each row to its leaf in the rank-th most probable tree.

        Parameters
        ----------
        X
            Rows [m].
        rank
            0 for the most probable tree. Every tree before it is found first, so that a rank of
            many thousands takes long.

        Returns
        -------
        list of str
            For each row the conditions from the root down, joined by "and", and what the leaf
            predicts.

        Raises
        ------
        ValueError
            If there are too few trees.
        """
        matrix, (tree, statistics) = self._matrix(X), self._ranked(rank)
        leaf_text = self._leaf_text(statistics, self._rows_of_slots(tree))
        paths = {0: ""}
        for slot in np.flatnonzero(tree.feature >= 0).tolist():  # parents have lesser slots
            for is_left, child in ((True, tree.left[slot]), (False, tree.right[slot])):
                condition = tree.condition(
                    slot,
                    is_left,
                    self.design_.names,
                    is_indicator=self.design_.is_indicator,
                    show_missing=self.design_.has_missing,
                )
                if " or " in condition:
                    condition = f"({condition})"
                paths[int(child)] = f"{paths[slot]} and {condition}" if slot else condition
        slots = route(tree.reshape(1), matrix)[0]
        return [f"{paths[slot] or 'always'}: {leaf_text[slot]}" for slot in slots.tolist()]

    def _rows_of_slots(self, tree: Tree) -> np.ndarray:
        """Count the training rows that end in each slot of a tree, by their weights, [k]."""
        # Statistics do not tell: the prior of a leaf may have absorbed rows (smoothing).
        slots = route(tree.reshape(1), self.design_.matrix)[0]
        return np.bincount(slots, self.design_.weights, minlength=tree.capacity)

    def _ranked(self, rank: int) -> tuple[Tree, np.ndarray]:
        """Get the rank-th most probable tree and the statistics of its slots."""
        check_is_fitted(self)
        if not isinstance(rank, int | np.integer) or rank < 0:
            raise ValueError(f"rank must be an integer of at least 0; got {rank!r}.")
        ranked = self.k_best(rank + 1)
        if len(ranked.log_joint) <= rank:
            raise ValueError(f"There are only {len(ranked.log_joint)} trees; rank {rank} is none.")
        return ranked.trees[rank], ranked.statistics[rank]

    def _describe(self) -> dict[str, Any]:
        """Begin a summary: the model in words."""
        return {
            "model": type(self).__name__,
            "prior": describe_model(self.prior_),
            "leaf": describe_model(self.leaf_),
            "constraints": describe_constraints(self.constraints_),
            "rows": int(self.design_.weights.sum()),
        }

    def to_arviz(self):
        """Hand the posterior to ArviZ.

        ArviZ takes all draws for equally weighted. Weighted trees, those of particles or of several
        roots, are resampled to 4 chains of 250 draws; the attribute ``effective_size`` is that of
        their weights.

        Returns
        -------
        xarray.DataTree or arviz.InferenceData
            What the functions of the installed ArviZ take: a data tree from ArviZ 1 on, else an
            InferenceData. `bdtppl.arviz.to_arviz` gives a data tree everywhere.
        """
        from bdtppl.arviz import for_installed_arviz, to_arviz

        check_is_fitted(self)
        data = to_arviz(
            self.posterior_,
            random_state=self._seed,
            classes=getattr(self, "classes_", None),
            inference=type(self).__name__,
        )
        return for_installed_arviz(data)

    def save(self, path) -> None:
        """Save the fitted model to a folder; `bdtppl.load` reads it."""
        from bdtppl.storage import save

        check_is_fitted(self)
        save(self, path)

    def __sklearn_tags__(self):
        """Say that missing values and categories are read."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def sample_predictive(self, X: Any, draws: int = 1000) -> np.ndarray:
        """Draw targets of new rows from the posterior predictive.

        Parameters
        ----------
        X
            Rows [m].
        draws
            Number of draws.

        Returns
        -------
        numpy.ndarray
            [draws, m]; independent given the rows. The same ``random_state`` gives the same draws.

        Raises
        ------
        ValueError
            If the number of draws is not an integer of at least 1.
        """
        check_is_fitted(self)
        require_positive_integer("draws", draws)
        mixture = self._mixture(X)
        return self._as_targets(mixture.sample(jax.random.key(self._seed), draws))


class ClassTargets:
    """Targets that are class labels."""

    classes: Any
    leaf: Leaf | None
    leaf_: Any
    _mixture: Any

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Class indices of the rows that are kept; sets ``classes_``."""
        missing = np.flatnonzero(y != y)  # NaN; of objects, each is compared
        if y.dtype.kind == "O":
            missing = np.flatnonzero([v is None or v != v for v in y.tolist()])
        if missing.size:
            raise ValueError(f"y, row {missing[0]}: the label is missing (NaN or None).")
        if y.dtype.kind == "f" and np.isinf(y).any():
            row = np.flatnonzero(np.isinf(y))[0]
            raise ValueError(f"y, row {row}: the label is infinite (inf).")
        check_classification_targets(y)
        labels = np.unique(y[kept])
        if self.classes is not None:
            if isinstance(self.classes, str) or np.ndim(self.classes) != 1:
                raise TypeError(f"classes must be a list of labels; got {self.classes!r}.")
            declared = np.unique(np.asarray(self.classes))
            unknown = np.setdiff1d(labels, declared)
            if unknown.size:
                raise ValueError(
                    f"y holds label {_plain(unknown[0])!r}, which classes does not declare."
                )
            labels = declared
        if len(labels) < 2:
            raise ValueError(
                f"y holds one class only ({_plain(labels[0])!r}); at least two are needed. "
                f"Declare absent ones with classes=[...]."
            )
        self.classes_ = labels
        return np.searchsorted(labels, y[kept])

    def _default_leaf(self, y: np.ndarray, weights: np.ndarray) -> Leaf:
        num_classes = len(self.classes_)
        if self.leaf is None:
            return DirichletCategorical.symmetric(num_classes)
        _require_leaf(self.leaf, "class labels", unfit=NormalInverseGamma)
        concentration = getattr(self.leaf, "concentration", None)
        if concentration is not None and len(concentration) != num_classes:
            raise ValueError(
                f"leaf has {len(concentration)} concentrations, but there are {num_classes} "
                f"classes."
            )
        return self.leaf

    def _as_targets(self, indices: np.ndarray) -> np.ndarray:
        return self.classes_[np.asarray(indices)]

    def _leaf_text(self, statistics: np.ndarray, num_rows: np.ndarray) -> list[str]:
        with jax.enable_x64(True):
            probability = np.asarray(self.leaf_.posterior_mean(statistics))
        best = probability.argmax(axis=1)
        return [
            f"{self.classes_[b]} ({p[b]:.2f}, {_rows(count)})"
            for b, p, count in zip(best, probability, num_rows, strict=True)
        ]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior predictive probability of each class, float64 [m, classes]."""
        return self._mixture(X).mean()

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class of each row, [m]."""
        return self._as_targets(self.predict_proba(X).argmax(axis=1))


class RealTargets:
    """Targets that are real numbers."""

    leaf: Leaf | None
    leaf_: Any
    _mixture: Any

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Finite float64 targets of the rows that are kept."""
        try:
            y = np.asarray(y).astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError("y must hold numbers for regression.") from None
        bad = np.flatnonzero(~np.isfinite(y))
        if bad.size:
            kind = "missing (NaN)" if np.isnan(y[bad[0]]) else "infinite (inf)"
            raise ValueError(f"y, row {bad[0]}: the target is {kind}; finite numbers are needed.")
        return y[kept]

    def _default_leaf(self, y: np.ndarray, weights: np.ndarray) -> Leaf:
        if self.leaf is None:
            return NormalInverseGamma.from_targets(y, weights)
        _require_leaf(self.leaf, "real targets", unfit=DirichletCategorical)
        return self.leaf

    def _as_targets(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values)

    def _leaf_text(self, statistics: np.ndarray, num_rows: np.ndarray) -> list[str]:
        with jax.enable_x64(True):
            mean = np.asarray(self.leaf_.posterior_mean(statistics))
        return [f"{m:.4g} ({_rows(c)})" for m, c in zip(mean, num_rows, strict=True)]

    def predict(self, X: Any) -> np.ndarray:
        """Posterior predictive mean of each row, float64 [m]."""
        return self._mixture(X).mean()

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Central posterior predictive interval of a new target at each row.

        Parameters
        ----------
        X
            Rows [m].
        level
            Probability inside, in (0, 1).

        Returns
        -------
        numpy.ndarray
            float64 [m, 2]; lower and upper end.

        Raises
        ------
        ValueError
            If the level is not a probability.
        """
        if not isinstance(level, float | int | np.number) or not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1); got {level!r}.")
        return self._mixture(X).quantiles([(1 - level) / 2, (1 + level) / 2])


def _rows(count: float) -> str:
    return "1 row" if count == 1 else f"{count:.0f} rows"


def describe_model(model: Any) -> str:
    """Name a prior or leaf family with its numbers, and with the settings that were chosen."""
    parts = []
    for f in fields(model):
        value = getattr(model, f.name)
        if not f.metadata.get("static"):
            numbers = [f"{v:.5g}" for v in np.ravel(value)]
            parts.append(f"{f.name}={numbers[0] if np.ndim(value) == 0 else _joined(numbers)}")
        elif isinstance(value, str) and value != f.default:
            parts.append(f"{f.name}={value!r}")
        elif isinstance(value, tuple):
            parts.append(f"{f.name}={_joined([f'{v:.5g}' for v in value])}")
        elif callable(value):
            parts.append(f"{f.name}={getattr(value, '__name__', 'function')}")
    return f"{type(model).__name__}({', '.join(parts)})"


def _joined(numbers: list[str]) -> str:
    more = ["..."] if len(numbers) > _SHOWN_NUMBERS else []
    return f"[{', '.join(numbers[:_SHOWN_NUMBERS] + more)}]"


def describe_constraints(constraints: Constraints) -> str | None:
    """Name the constraints that were chosen; None where none was."""
    chosen = {f.name: getattr(constraints, f.name) for f in fields(constraints)}
    default = Constraints()
    parts = [f"{name}={v!r}" for name, v in chosen.items() if v != getattr(default, name)]
    return ", ".join(parts) or None


def require_finite(what: str, value: Any) -> None:
    """Raise ValueError unless a score that a fit has come to is finite."""
    if not np.isfinite(value).all():
        raise ValueError(
            f"{what} is not finite: the targets or the parameters of the leaf or the prior are too "
            f"large or too small for float64 (rescale them), or a split_probability or a weight of "
            f"the prior is none."
        )


def require_boolean(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def require_positive_integer(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is an integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1; got {value!r}.")


def _require_leaf(leaf: Any, targets: str, *, unfit: type) -> None:
    """Refuse what is no leaf family, and the one that is for the other kind of targets."""
    if isinstance(leaf, type) or not isinstance(leaf, Leaf):
        raise TypeError(
            f"leaf must be a leaf family of bdtppl.models.leaves; got {describe_kind(leaf)}."
        )
    if isinstance(leaf, unfit):
        raise TypeError(f"leaf must be a family for {targets}; got {unfit.__name__}.")


def _plain(label: Any) -> Any:
    """Show a label without its NumPy type."""
    return label.item() if isinstance(label, np.generic) else label


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "__getitem__")


def _read_weights(sample_weight: Any, num_rows: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(num_rows, np.int64)
    if np.isscalar(sample_weight):
        sample_weight = np.full(num_rows, sample_weight)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight must hold numbers, one for each row.") from None
    if weights.shape != (num_rows,):
        raise ValueError(f"sample_weight must have shape ({num_rows},); got {weights.shape}.")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0) & (weights == np.floor(weights))))
    if bad.size:
        raise ValueError(
            f"sample_weight, row {bad[0]}: {weights[bad[0]]} is not a repeat count (an integer of "
            f"at least 0)."
        )
    return weights.astype(np.int64)
