"""The base of all estimators: reads tables, exposes results and saves models."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np
from rich.console import RenderableType
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import (
    _check_feature_names,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from bdtppl.estimators import INFERENCES
from bdtppl.estimators.parameters import (
    declared,
    nested_parameters,
    parameter,
    parameters_section,
    with_parameter,
)
from bdtppl.estimators.results import Results
from bdtppl.inference.compiling import make_room
from bdtppl.inference.parallel import workers
from bdtppl.inference.predictive.many_rows import ManyRows, by_rows
from bdtppl.models.arguments import require_integer
from bdtppl.models.data.design import as_weights
from bdtppl.models.data.schema import MOST_IN_SETS, Categories, Schema, TableWarning
from bdtppl.models.data.tables import as_table, column_names, has_names, lossless, require_distinct
from bdtppl.models.settings import check_parameters
from bdtppl.models.wording import listed
from bdtppl.rendering import as_html, as_text
from bdtppl.summary import glance_view


class ChoiceWarning(UserWarning):
    """A warning that an estimator chose a setting itself; it names the setting."""


EstimatorClass = TypeVar("EstimatorClass", bound=type)

_FITTED_ATTRIBUTES = """\
feature_importances_ : numpy.ndarray
    Share of each column of X in the splits of trees; of greedy trees, in what splits gain.
schema_
    How tables are read.
n_features_in_ : int
    Columns seen at `fit`; ``feature_names_in_`` are their names if X was a frame."""


def estimator(cls: EstimatorClass) -> EstimatorClass:
    """Make a class an estimator that users see.

    Its parameters are its fields (`bdtppl.estimators.parameters`). Its docstring gets their section
    and those of the class that names the inference. The class is entered in `INFERENCES`, which
    storage, reports and the command line read.
    """
    cls = declared(cls)
    name, task = cls.inference, cls.task
    # The class that names the inference documents what all kinds of targets share.
    above = [base.__doc__ or "" for base in cls.__mro__[1:] if "inference" in vars(base)]
    shared = inspect.cleandoc("".join(above[:1])).partition("\n\n")[2]
    labels = "classes_ : numpy.ndarray\n    Labels, sorted.\n" * (task == "classification")
    shared = shared.replace("{fitted}", labels + _FITTED_ATTRIBUTES)
    summary, _, own = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
    parts = [summary, parameters_section(cls), shared, own]
    cls.__doc__ = "\n\n".join(filter(None, parts)) + "\n"
    INFERENCES.setdefault(name, {})[task] = cls
    return cls


@declared
class TableParameters:
    """Parameters of all estimators."""

    categories: Categories = parameter(
        "one-hot",
        'How categories are split. "one-hot" separates one level from all others. "sets" splits by '
        "sets of levels, ``city in {Lyon, Paris}``, which share the prior weight of one column: "
        f"all sets of up to {MOST_IN_SETS} levels, otherwise each level alone and random sets.",
        is_last=True,
    )
    drop_first: bool = parameter(
        False, "Give no 0/1 column to the first level of each category.", is_last=True
    )
    ordered: Any = parameter(
        None,
        "Levels of ordered categories, by column name: ``{'size': ['S', 'M', 'L']}``. Rules on "
        "them are cuts, ``size < M``. Ordered categories of pandas and polars need not be listed.",
        option=False,
        is_last=True,
    )
    random_state: Any = parameter(
        None,
        "Seed of everything random, including predictive draws (scikit-learn's meaning).",
        option=False,
        is_last=True,
    )


class TableEstimator(TableParameters, Results, BaseEstimator):
    """Reads tables as every estimator does, and exposes the posterior.

    Attributes
    ----------
    inference
        Name of the inference, on the command line.
    in_words
        A sentence or two for reports that say how the posterior is computed.
    reads_sparse
        Whether scipy sparse tables are read.
    columns_
        Columns of X that ``schema_`` contains; None for all.
    """

    reads_sparse: ClassVar[bool] = False
    inference: ClassVar[str]
    in_words: Any = ""
    n_jobs: ClassVar[Any] = None  # for inferences without such a parameter
    columns_: np.ndarray | None = None
    _whole: tuple[str, ...] = ()  # columns whose levels no tree splits
    schema_: Schema
    n_features_in_: int
    posterior_: Any
    _random_seed: int
    _read_targets: Any
    _as_targets: Any
    _check_targets: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """List the parameters and, if deep, those of the prior, leaf family and constraints.

        The latter are named as in scikit-learn, ``prior__log_phi``.
        """
        parameters = super().get_params(deep)
        if deep:
            for name, value in list(parameters.items()):
                parameters |= nested_parameters(name, value)
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters, including those of prior, leaf and constraints (``prior__log_phi``).

        These objects are copied, not changed.

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        own = self.get_params(deep=False)
        inner = {name for name in params if "__" in name and name.partition("__")[0] in own}
        super().set_params(**{name: params[name] for name in params.keys() - inner})
        for each in sorted(inner):
            name, _, path = each.partition("__")
            setattr(self, name, with_parameter(name, getattr(self, name), path, params[each]))
        return self

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the posterior over trees.

        Parameters
        ----------
        X
            Table [n, columns]: array, pandas or polars frame, or mapping of names to columns.
            Categories are accepted by all estimators, missing values by hard trees. Greedy modal
            trees also accept scipy sparse tables, in which entries that are not stored are zero.
            Exact trees also accept rows in parts: a dask DataFrame, or a function that returns a
            new iterator of chunks (X, y) or (X, y, sample_weight) on each call.
        y
            Targets [n]: labels of a classifier, numbers of a regressor. For a dask DataFrame: the
            name of its column, or a dask Series. Omit y if X is a function.
        sample_weight
            Weights [n], finite and at least 0. Default 1. For a dask DataFrame: as for y. The
            likelihood of a row is raised to the power of its weight: a row of weight 2 counts
            twice, one of weight 0 not at all. Priors and ``min_leaf`` count the rows with a weight
            above 0. If weights are not counts, the evidence is that of a pseudo-likelihood.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used; the message names the column, the row or the
            parameter.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If the draws are not reliable.
        bdtppl.ChoiceWarning
            If a budget ended a choice of settings that more time would probably change, once for
            each table size; and if ``target_scale="auto"`` chose another scale than "identity".
        bdtppl.models.data.schema.TableWarning
            If a column or y probably means something else than how it is read.
        UserWarning
            If a column's values are all equal or missing, so no hard tree splits on it.
        """
        check_parameters(self)
        make_room()
        with workers(self.n_jobs):
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Fit, given valid parameters."""
        raise NotImplementedError

    def _read_training(self, X: Any, y: Any, sample_weight: Any) -> tuple:
        """Read schema, matrix [n, d], targets [n] and weights [n], without rows of weight 0.

        The matrix of a sparse table is sparse.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X = self._note_columns(as_table(X))
        schema, matrix = Schema.read(
            X,
            categories=self.categories,
            drop_first=self.drop_first,
            ordered=self.ordered,
            whole=self._whole,
        )
        y = read_target(y)
        if len(y) != matrix.shape[0]:
            raise ValueError(
                f"X has {matrix.shape[0]} rows and y has {len(y)} (inconsistent numbers)."
            )
        weights = read_weights(sample_weight, len(y))
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is zero in every row: no rows are left.")
        if not kept.all():
            matrix = matrix[kept]
            schema, matrix = (schema, matrix) if issparse(matrix) else schema.of_rows(matrix)
        return schema, matrix, self._read_targets(y, kept), weights[kept]

    def _note_columns(self, X: Any) -> Any:
        """Set ``n_features_in_`` and the column names, and return the table as it is read."""
        if isinstance(X, Mapping):
            self.feature_names_in_ = np.array([str(name) for name in X], object)
            self.n_features_in_ = len(X)
        elif has_names(X):
            require_distinct(column_names(X))
            _check_feature_names(self, X, reset=True)
            self.n_features_in_ = X.shape[1]
        else:
            accepted = "csc" if self.reads_sparse else False
            X = validate_data(self, X, accept_sparse=accepted, dtype=None, ensure_all_finite=False)
        return X

    @property
    def _may_miss(self) -> np.ndarray:
        """Return the features whose values may be missing in new rows, bool [d]."""
        return self.design_.has_missing

    def _require_rows(self, matrix: np.ndarray) -> None:
        """Raise if rows [m, d] lack values that the model needs."""

    def _training_rows(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Read the training rows [n, d] and their weights [n]; None if all are 1."""
        return self.design_.matrix, self.design_.weights

    def _matrix(self, X: Any) -> np.ndarray:
        """Read new rows as the fitted schema does, float64 [m, d].

        Warns (`TableWarning`) of levels that `fit` did not see, and of missing values in columns
        that were complete there, for which trees have no rule. Such a value is replaced by the
        median or most frequent level of the training rows, so the row goes where most rows go.

        Raises
        ------
        ValueError
            If columns differ from those of `fit`.
        """
        check_is_fitted(self)
        X = as_table(X)
        if isinstance(X, Mapping):
            pass  # the schema finds and checks columns by name
        elif has_names(X):
            require_distinct(column_names(X))
            _check_feature_names(self, X, reset=False)
        else:
            accepted = "csc" if self.reads_sparse else False
            checks = {"dtype": None, "ensure_all_finite": False, "reset": False}
            X = validate_data(self, X, accept_sparse=accepted, **checks)
        matrix = self.schema_.transform(self._own_columns(X), refuse_unknown=False)
        self._require_rows(matrix)
        is_new = np.isnan(matrix) & ~self._may_miss[: matrix.shape[1]]
        if is_new.any():
            matrix = np.where(is_new, self.schema_.typical_row(*self._training_rows()), matrix)
            sources = self.schema_.sources
            columns = dict.fromkeys(sources[j][0] for j in np.flatnonzero(is_new.any(axis=0)))
            names = listed([repr(self.schema_.columns[place].name) for place in columns])
            warnings.warn(
                f"Values are missing (NaN) in {names}, where no training row misses one: they are "
                "replaced by the median or most frequent level of the training rows.",
                TableWarning,
                stacklevel=4,  # the caller of `predict`
            )
        return matrix

    def _mixture(self, X: Any) -> ManyRows:
        """Return the posterior predictive of new rows; raise if there has been no fit."""
        return self._mixture_at(self._matrix(X))

    def _mixture_at(self, matrix: np.ndarray) -> ManyRows:
        """Return the posterior predictive of rows [m, d] as read by `_matrix`."""
        predictive, bytes_a_row = self._predictive
        return ManyRows(predictive, matrix, bytes_a_row, n_jobs=self.n_jobs)

    @property
    def _predictive(self) -> tuple[Callable[[np.ndarray], Any], int]:
        """Return a function from rows [m, d] to their mixture, and its bytes per row."""
        posterior = self.posterior_ if self.exact_ is None else self.exact_
        return posterior.predictive, posterior.bytes_a_row

    def _by_draw(self, function: Callable[[np.ndarray], np.ndarray], X: Any) -> np.ndarray:
        """Call a function from rows [m, d] to numbers [chain, draw, m, ...]."""
        matrix = self._matrix(X)
        return by_rows(
            lambda rows: function(matrix[rows]),
            len(matrix),
            self.posterior_.bytes_a_row,
            axis=2,
            n_jobs=self.n_jobs,
        )

    def _own_columns(self, X: Any) -> Any:
        """Select the columns of a table that ``schema_`` knows, in a form that it reads."""
        columns = self.columns_
        if columns is None:
            return X.toarray() if issparse(X) else X
        if has_names(X):
            names = column_names(X)
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

    def _draw_seed(self) -> int:
        try:
            generator = check_random_state(self.random_state)
        except ValueError as error:
            raise ValueError(
                f"random_state must be None, a seed or a numpy.random.RandomState; "
                f"got {self.random_state!r}."
            ) from error
        return int(generator.randint(2**31 - 1))

    def _warn_of(self, reasons: Iterable[str]) -> None:
        """Warn of what makes a fit unreliable; called by `_fit`."""
        for reason in reasons:
            warnings.warn(reason, ConvergenceWarning, stacklevel=4)  # the caller of `fit`

    # The following fits an estimator that stores its posterior and the seed of its draws.

    @property
    def _seed(self) -> int:
        check_is_fitted(self)  # its error is also an AttributeError, as `hasattr` requires
        return self._random_seed

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether a fit has completed: one that fails leaves attributes behind."""
        return "posterior_" in vars(self)

    def _saved_state(self) -> dict:
        """Return the state besides parameters, attributes and posterior, for `bdtppl.storage`."""
        return {"seed": self._random_seed}

    def _restore(self, posterior: Any, state: dict) -> None:
        """Restore a posterior, from a fit or from a file."""
        self._random_seed = state["seed"]
        self.posterior_ = posterior

    def _draw_prior(self, num_draws: int) -> Any:
        """Draw trees from the prior, and targets (`bdtppl.arviz.PriorDraws`).

        Raises
        ------
        ValueError
            If the prior has no distribution to draw from.
        """
        raise NotImplementedError

    def to_arviz(self, *, prior_draws: int = 250):
        """Convert the posterior for ArviZ.

        ArviZ treats all draws as equally weighted. Weighted trees (from particles or several roots)
        are resampled to 4 chains of 250 draws; the attribute ``effective_size`` is the effective
        sample size of their weights.

        Parameters
        ----------
        prior_draws
            Trees drawn from the prior for the groups ``prior`` and ``prior_predictive``; 0 for
            neither. If nothing can be drawn, the attribute ``no_prior_draws`` states why.

        Returns
        -------
        xarray.DataTree or arviz.InferenceData
            The type that functions of the installed ArviZ accept: a data tree from ArviZ 1 on, else
            an InferenceData. `bdtppl.arviz.to_arviz` always returns a data tree.
        """
        from bdtppl.arviz import for_installed_arviz, to_arviz

        check_is_fitted(self)
        prior, why_none = None, "none were requested"
        if prior_draws:
            require_integer("prior_draws", prior_draws)
            try:
                prior = self._draw_prior(int(prior_draws))
            except ValueError as error:
                why_none = str(error)
        data = to_arviz(
            self.posterior_,
            random_state=self._seed,
            classes=self.class_labels,
            inference=type(self).__name__,
            certificates=self.certificates,
            prior=prior,
        )
        if prior is None:
            data.attrs["no_prior_draws"] = why_none
        return for_installed_arviz(data)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column of X in the splits of trees, float64 [d].

        The expected number of splits on the column under the posterior, as a share of all expected
        splits; a category counts the splits on all its levels. In soft trees each split contributes
        its direction weights. Shares sum to 1, or are 0 if no tree has a split.
        """
        check_is_fitted(self)
        posterior = self.posterior_ if self.exact_ is None else self.exact_
        return self._shares_of_columns(posterior.expected_splits)

    def _shares_of_columns(self, values: np.ndarray) -> np.ndarray:
        """Sum values of features [d] by their columns, as shares."""
        column = [position for position, *_ in self.schema_.sources]
        total = np.bincount(column, values, minlength=len(self.schema_.columns))
        return total / max(total.sum(), np.finfo(float).tiny)

    def structures(self, by: Any = None) -> Any:
        """Summarise the posterior over structures: trees, their probabilities and common features.

        Parameters
        ----------
        by
            What counts as one structure for hard trees, as in `k_best`: "partition" (all trees
            whose leaves contain the same training rows) or "tree". Default: "partition", or "tree"
            if the training rows were not stored.

        Returns
        -------
        bdtppl.structures.Structures
            Distinct trees with probabilities, credible sets, entropy, split inclusion, the
            co-membership of rows in leaves, a consensus tree, and how well draws agree. It can be
            printed.
        """
        from bdtppl.structures import structures_of

        return structures_of(self, by)

    def __str__(self) -> str:
        return "\n".join(filter(None, [repr(self), self._glance(as_text)]))

    def _repr_html_inner(self) -> str:
        return estimator_html_repr(self) + self._glance(as_html)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        html = getattr(self, "_repr_html_", None)  # none if diagrams are switched off
        return {"text/plain": str(self)} | ({} if html is None else {"text/html": html()})

    def _get_fitted_attr_html(self, doc_link: str = "") -> dict[str, Any]:
        """List no attributes in diagrams: scikit-learn would compute all properties."""
        return {}

    def _glance(self, write: Callable[[RenderableType, int], str]) -> str:
        """Summarise a fit on one line; empty if there is none."""
        with suppress(Exception):  # whatever is wrong, a model can be displayed
            if self.__sklearn_is_fitted__():
                return write(glance_view(self._at_hand()), 80)
        return ""

    def _at_hand(self) -> dict[str, Any]:
        """Return the part of ``summary()`` that costs next to nothing."""
        raise NotImplementedError

    def save(self, path) -> None:
        """Save the fitted model to a folder; `bdtppl.load` reads it."""
        from bdtppl.storage import save

        check_is_fitted(self)
        save(self, path)

    def __sklearn_tags__(self):
        """Declare that missing values and categories are accepted."""
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
        require_integer("draws", draws)
        mixture = self._mixture(X)
        return self._as_targets(mixture.sample(jax.random.key(self._seed), draws))


def read_target(y: Any) -> np.ndarray:
    """Read targets [n]; their kind follows from the cells.

    Raises
    ------
    ValueError
        If they have two axes.
    """
    return column_or_1d(lossless(y), warn=True)


def read_weights(sample_weight: Any, num_rows: int) -> np.ndarray:
    """Read the weights of rows [n], 1 by default; one number applies to all rows.

    They are int64 if all are whole, else float64.

    Raises
    ------
    ValueError
        If they are not one finite number of at least 0 for each row.
    """
    if sample_weight is None:
        return np.ones(num_rows, np.int64)
    if np.isscalar(sample_weight):
        sample_weight = np.full(num_rows, sample_weight)
    try:
        weights = np.asarray(lossless(sample_weight), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight must contain numbers, one for each row.") from None
    if weights.shape != (num_rows,):
        raise ValueError(f"sample_weight must have shape ({num_rows},); got {weights.shape}.")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise ValueError(
            f"sample_weight, row {bad[0]}: the weight must be a finite number of at least 0; got "
            f"{weights[bad[0]]}."
        )
    with np.errstate(over="ignore"):
        if not weights.sum() < np.inf:
            raise ValueError("sample_weight must have a sum that float64 can represent: divide it.")
        return as_weights(weights)
