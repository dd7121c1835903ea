"""Effects of a treatment by sums of trees: Bayesian causal forests."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.bart import BART, BARTClassifier, BARTRegressor, RealSums
from bdtppl.estimators.base import estimator, read_target, read_weights
from bdtppl.estimators.draws import PosteriorSummary
from bdtppl.estimators.parameters import declared, parameter, require_level
from bdtppl.inference.additive.causal import CausalKernel
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.inference.additive.posterior import TreatmentEffect
from bdtppl.models.arguments import require_choice
from bdtppl.models.data.design import Design
from bdtppl.models.data.tables import columns_of
from bdtppl.models.hard.additive import AdditivePrior

TREATMENT, PROPENSITY = "treatment", "propensity"  # names of columns that are added
RARE = 0.05  # a propensity this close to 0 or 1 leaves an arm nearly empty
_MOST_RARE_ROWS = 0.1  # share of rows above which `fit` warns
_ROWS_OF_AN_AVERAGE = 4096
_MEDIAN_OF_HALF_NORMAL = 0.674  # in standard deviations
_MEDIAN_EFFECT = 0.5  # prior median of the effects' deviation, in that of the targets
_OF_PROPENSITIES = {"trees": 50, "chains": 2, "warmup": 50, "draws": 50, "extensions": 0}

Over = Literal["sample", "population", "treated"]


@declared
class BCFParameters:
    """Parameters of the effect of a treatment."""

    treatment: str | None = parameter(
        None,
        "Name of the column of X with the treatment: 0 or 1, or a dose. None if `fit` gets the "
        "treatment by itself.",
    )
    effect_trees: int = parameter(50, "Number of trees in the sum of the effect.", least=1)
    effect_alpha: float = parameter(
        0.25, "Prior probability that the root of such a tree is split.", above=0, below=1
    )
    effect_beta: float = parameter(
        3.0,
        "How fast that probability falls with depth d: effect_alpha (1 + d)^-effect_beta.",
        least=0,
    )


@estimator
class BCFRegressor(BCFParameters, RealSums, BART):
    """Estimate the effect of a treatment on real targets, for each row (Bayesian causal forests).

    Attributes
    ----------
    posterior_ : bdtppl.inference.additive.posterior.SumPosterior
        Draws of the targets' sum; ``posterior_.effect`` are those of the treatment's part.
    propensity_ : numpy.ndarray
        float64 [n]; propensities of the training rows: the probability of treatment, or the
        expected dose.
    average_effect_ : dict
        `average_effect` over the training rows ("sample"), over rows of their distribution
        ("population") and over the treated rows ("treated").
    {fitted}

    The columns that are added, "propensity" and "treatment", are columns of the fit as well.

    Notes
    -----
    The target of a row with features x and treatment z is
    ``mu(x, e(x)) + (b_0 + (b_1 - b_0) z) tau(x)`` plus normal noise (section 5 of Hahn and others).
    mu and tau are sums of trees, whose parameters are those of `bdtppl.BARTRegressor` and the
    ``effect_`` ones. The linear term, ``groups``, ``offset`` and ``monotone`` are part of mu. e(x)
    is the propensity, by which mu learns how treatments were chosen: the posterior mean of a
    `bdtppl.BARTClassifier` of the treatments, or of a `bdtppl.BARTRegressor` of doses. It is that
    of the training rows themselves, as in the paper: predicted from other rows, propensities left
    average effects two to three times the bias on the paper's simulations. A priori the median of
    the effects' standard deviation is half that of the targets; the paper has the whole, which
    predicted effects worse on its simulations. mu need not be monotone with the effect, and effects
    do not vary with columns of ``groups`` and ``offset``.

    Effects are causal if, given x, treatment and outcomes without and with it are independent, and
    rows like each one get either. No method can check the first.

    `fit` warns if more than a tenth of the rows have a propensity below .05 or above .95: there
    effects are extrapolated.

    References
    ----------
    Hahn, Murray and Carvalho 2020, Bayesian regression tree models for causal inference:
    regularization, confounding, and heterogeneous effects.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BCFRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> z = rng.random(200) < 0.5
    >>> y = X[:, 0] + 2.0 * z + 0.5 * rng.normal(size=200)
    >>> model = BCFRegressor(random_state=0).fit(X, y, treatment=z)
    >>> effect = model.average_effect_["sample"]
    >>> bool(effect.low < 2 < effect.high), model.effect_draws(X[:3]).shape
    (True, (4, 100, 3))
    """

    inference = "bcf"
    in_words = (
        "Targets were explained by two sums of small trees, one without the treatment and one for "
        "its effect (Bayesian causal forests; Hahn, Murray and Carvalho 2020). Each tree was "
        "Gibbs-sampled given the others."
    )

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        treatment: Any = None,
        propensity: Any = None,
    ) -> Self:
        """Fit both sums.

        Parameters
        ----------
        X, y, sample_weight
            Table [n, columns], real targets [n] and weights [n], as for `bdtppl.BARTRegressor`.
        treatment
            Treatments [n]: 0 and 1 (or False and True), or doses. None if the parameter
            ``treatment`` names a column of X.
        propensity
            Probabilities of treatment [n], or one for all rows, as of an experiment. Default:
            predicted.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used.

        Warns
        -----
        UserWarning
            If arms hardly overlap.
        sklearn.exceptions.ConvergenceWarning
            If chains disagree.
        """
        columns = columns_of(X)
        if (treatment is None) == (self.treatment is None):
            raise ValueError(
                "The treatment is needed once: fit(X, y, treatment=z), or the name of its column, "
                "BCFRegressor(treatment='z')."
            )
        if not columns.keys() - {self.treatment}:
            raise ValueError("X has no columns besides the treatment: mean differences are enough.")
        self.treatment_name_ = TREATMENT if self.treatment is None else self.treatment
        if self.treatment is None:
            columns = self._with(columns, TREATMENT, treatment)
        elif self.treatment not in columns:
            raise ValueError(f"treatment must name a column of X; got {self.treatment!r}.")
        columns = self._with(columns, PROPENSITY, 0.5 if propensity is None else propensity)
        weights = read_weights(sample_weight, len(columns[self.treatment_name_]))
        kept = weights > 0
        own = {"y": read_target(y), **columns} if y is not None else columns
        if wrong := [name for name, column in own.items() if len(column) != len(kept)]:
            raise ValueError(f"{wrong[0]} has another number of rows than the treatment.")
        own = {name: column[kept] for name, column in own.items()}
        columns, y = {name: own[name] for name in columns}, own.get("y")
        z = _finite_numbers("treatment", columns.pop(self.treatment_name_))
        if np.ptp(z) == 0:
            raise ValueError(f"All treatments are {z[0]:g}: there is no effect to estimate.")
        given = _finite_numbers(PROPENSITY, columns.pop(PROPENSITY))
        self.has_arms_, model = bool(np.isin(z, (0.0, 1.0)).all()), None
        if propensity is None:
            model = self._propensity_model(columns, z, weights[kept])
            given = model.predict_proba(columns)[:, 1] if self.has_arms_ else model.predict(columns)
        if self.has_arms_ and ((given < 0) | (given > 1)).any():
            raise ValueError("propensity must be probabilities, between 0 and 1.")
        rare = np.abs(given - 0.5) > 0.5 - RARE
        if self.has_arms_ and rare.mean() > _MOST_RARE_ROWS:
            warnings.warn(
                f"{rare.mean():.0%} of the rows have a propensity below {RARE:g} or above "
                f"{1 - RARE:g}: there one arm has hardly any rows, and effects are extrapolated. "
                "Drop these rows, or report effects of the others.",
                UserWarning,
                stacklevel=2,
            )
        is_same = bool(np.ptp(given) == 0)  # as in an experiment
        self._hidden = self.treatment_name_, *[PROPENSITY] * is_same
        columns |= {PROPENSITY: given, self.treatment_name_: z}
        super().fit(columns, y, weights[kept])
        if model is not None:
            effect = replace(self._effect, propensity=model.posterior_)
            self.posterior_ = replace(self.posterior_, effect=effect)
        return self

    def _propensity_model(self, columns: dict[str, Any], z: np.ndarray, weights: np.ndarray) -> Any:
        """Fit a small sum of trees to the treatments."""
        seed = 0 if self.random_state is None else self.random_state  # repeated fits are the same
        names = "categories", "drop_first", "ordered", "n_jobs"
        settings = {**_OF_PROPENSITIES, **{name: getattr(self, name) for name in names}}
        model: Any = BARTClassifier if self.has_arms_ else BARTRegressor
        with warnings.catch_warnings():  # what is wrong with X is told of the fit
            warnings.simplefilter("ignore")
            target = z.astype(int) if self.has_arms_ else z
            return model(**settings, random_state=seed).fit(columns, target, weights)

    @property
    def propensity_(self) -> np.ndarray:
        """Propensities of the training rows; see the class."""
        check_is_fitted(self)
        return self.posterior_.matrix[:, self.posterior_.names.index(PROPENSITY)]

    @staticmethod
    def _with(columns: Mapping[str, Any], name: str, values: Any) -> dict[str, Any]:
        """Add a column, of one number or [n]."""
        if name in columns:
            raise ValueError(f"X has a column {name!r}, a name that is needed: rename it.")
        number = len(next(iter(columns.values())))
        return {**columns, name: np.full(number, values) if np.ndim(values) == 0 else values}

    def _kernel(self, prior: AdditivePrior, design: Design, y: np.ndarray) -> CausalKernel:
        feature = design.names.index(self.treatment_name_)
        own = design.names.index(PROPENSITY)
        cuts = [each[1:] for each in np.split(design.cut_threshold, design.offset[1:-1])]
        cuts[own] = cuts[own][:0]
        without = Design.from_matrix(
            design.matrix,
            weights=design.weights,
            cuts=cuts,
            names=design.names,
            is_indicator=design.is_indicator,
            column=design.column,
        )
        target = y - prior.offsets_at(design.matrix)[0]
        both = np.cov([target, design.matrix[:, feature]], aweights=design.weights, ddof=0)
        spread, of_dose = np.sqrt(np.diag(both))
        scale = _MEDIAN_EFFECT * (float(spread) or 1.0)
        scale /= _MEDIAN_OF_HALF_NORMAL * self.effect_trees**0.5
        prior_of_effect = AdditivePrior(
            scale if self.has_arms_ else scale / float(of_dose),
            1.0,
            alpha=self.effect_alpha,
            beta=self.effect_beta,
            num_trees=self.effect_trees,
            max_depth=self.max_depth,
            min_leaf=self.min_leaf,
            draws_leaf_scale=not self.has_arms_,
        )
        effect = AdditiveKernel(prior_of_effect, without, np.zeros(len(y)))
        return CausalKernel(AdditiveKernel(prior, design, y), effect, feature, self.has_arms_)

    def with_treatment(self, X: Any, treatment: Any, propensity: Any = None) -> dict[str, Any]:
        """Add treatments to rows, for `predict` and all other methods but those of effects.

        Parameters
        ----------
        X
            Rows [m] without a treatment.
        treatment, propensity
            One number for all rows, or [m]. Propensities are predicted by default.

        Returns
        -------
        dict
            Columns by name.
        """
        check_is_fitted(self)
        if self.has_arms_ and not np.isin(treatment, (0, 1)).all():
            raise ValueError("Treatments must be 0 or 1, as at fit.")
        given = {self.treatment_name_: treatment, PROPENSITY: propensity}
        given = {name: values for name, values in given.items() if values is not None}
        columns = {name: own for name, own in columns_of(X).items() if name not in given}
        for name, values in given.items():
            columns = self._with(columns, name, values)
        return columns

    def _matrix(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return super()._matrix(columns_of(X))

    def _own_columns(self, X: Any) -> dict[str, Any]:
        columns = columns_of(X)
        if self.treatment_name_ not in columns:
            raise ValueError(
                "Predictions of targets need the treatment of each row: pass "
                "with_treatment(X, treatment). Effects do not: see effect_draws."
            )
        z = _finite_numbers("treatment", columns[self.treatment_name_])
        columns[self.treatment_name_] = z
        if PROPENSITY not in columns:
            columns[PROPENSITY] = np.full(len(z), self.propensity_[0])
            if (own := self._effect.propensity) is not None:
                matrix = self.schema_.transform(columns, refuse_unknown=False)
                means = own.means(matrix[:, : len(own.names)]).mean(axis=(0, 1))
                columns[PROPENSITY] = means[:, 1] if self.has_arms_ else means
            elif np.ptp(self.propensity_) > 0:
                raise ValueError(
                    "Propensities were given at fit: pass those of these rows as well, "
                    "with_treatment(X, treatment, propensity)."
                )
        return columns

    def effect_draws(self, X: Any = None) -> np.ndarray:
        """Return the effect of the treatment, or of one more unit of it, given each draw.

        Parameters
        ----------
        X
            Rows [m], with or without a treatment. Default: the training rows.

        Returns
        -------
        numpy.ndarray
            float64 [chains, draws, m], in units of y.
        """
        check_is_fitted(self)
        if X is None:
            return self._effect.of_one_unit(self.posterior_.matrix)
        # Effects depend on neither, but rows have them.
        return self._by_draw(self._effect.of_one_unit, self.with_treatment(X, 0.0, 0.5))

    @property
    def _effect(self) -> TreatmentEffect:
        return cast(TreatmentEffect, self.posterior_.effect)

    def effects(self, X: Any = None, level: float = 0.95) -> PosteriorSummary:
        """Return the posterior mean of the effect at each row, and its central interval.

        Parameters
        ----------
        X
            Rows [m], with or without a treatment. Default: the training rows.
        level
            Probability of the interval, in (0, 1).

        Returns
        -------
        PosteriorSummary
            Three arrays, float64 [m], in units of y.
        """
        require_level(level)
        return PosteriorSummary.of(self.effect_draws(X), level)

    def average_effect(self, over: Over = "sample", level: float = 0.95) -> PosteriorSummary:
        """Return the posterior of the average effect.

        Parameters
        ----------
        over
            "sample" for the training rows, "treated" for those treated. "population" for the
            distribution that the training rows are from, by a Bayesian bootstrap (Rubin 1981).
        level
            Probability of the interval, in (0, 1).

        Returns
        -------
        PosteriorSummary
            Three numbers, in units of y.

        Raises
        ------
        ValueError
            If an argument is none of these.
        """
        return PosteriorSummary.of(self.average_effect_draws(over), level)

    def average_effect_draws(self, over: Over = "sample") -> np.ndarray:
        """Return the average effect given each draw, float64 [chains, draws]; see the above."""
        require_choice("over", over, get_args(Over))
        check_is_fitted(self)
        posterior, effect = self.posterior_, self._effect
        weights = posterior.row_weights.astype(float)
        if over == "treated":
            weights = weights * (posterior.matrix[:, effect.feature] != 0)
        rng, shape = np.random.default_rng(self._seed), posterior.variance.shape
        total, whole = np.zeros(shape), np.zeros(shape)
        for first in range(0, len(weights), _ROWS_OF_AN_AVERAGE):
            rows = slice(first, first + _ROWS_OF_AN_AVERAGE)
            each = weights[rows]
            if over == "population":
                each = rng.standard_gamma(each, (*shape, len(each)))
            total += (effect.of_one_unit(posterior.matrix[rows]) * each).sum(axis=-1)
            whole += each.sum(axis=-1)
        return total / whole

    def _noise(self) -> dict[str, Any]:
        mean, *interval = self.average_effect()
        own = {"average_effect": mean, "average_effect_interval": interval}
        return super()._noise() | own

    @property
    def average_effect_(self) -> dict[str, PosteriorSummary]:
        """Average effects with intervals of 95 %; see the class."""
        return {over: self.average_effect(over) for over in get_args(Over)}


def _finite_numbers(name: str, values: Any) -> np.ndarray:
    """Read finite numbers [n], or booleans, which a table has as categories."""
    try:
        if set(np.unique(values)) <= {"False", "True"}:
            values = np.asarray(values) == "True"
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must contain numbers; code arms as 0 and 1.") from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite numbers, one for each row.")
    return numbers
