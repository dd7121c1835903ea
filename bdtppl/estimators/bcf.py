"""Effects of a treatment by sums of trees: Bayesian causal forests."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.bart import BART, BARTClassifier, BARTRegressor, RealSums
from bdtppl.estimators.base import estimator
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
    average effects two to three times the bias on the paper's simulations. A priori the median
    size of effects is half the standard deviation of the targets; the paper has the whole, which
    predicted effects worse on its simulations.

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
        self.treatment_name_ = TREATMENT if self.treatment is None else self.treatment
        if self.treatment is None:
            columns = self._with(columns, TREATMENT, treatment)
        elif self.treatment not in columns:
            raise ValueError(f"treatment must name a column of X; got {self.treatment!r}.")
        z = _finite_numbers("treatment", columns.pop(self.treatment_name_))
        if np.ptp(z) == 0:
            raise ValueError(f"All treatments are {z[0]:g}: there is no effect to estimate.")
        self.has_arms_ = bool(np.isin(z, (0.0, 1.0)).all())
        self._propensity_model: Any = None
        if propensity is None:
            settings = {**_OF_PROPENSITIES, "random_state": self.random_state}
            model = (BARTClassifier if self.has_arms_ else BARTRegressor)(**settings)
            with warnings.catch_warnings():  # what is wrong with X is told of the fit
                warnings.simplefilter("ignore")
                model.fit(columns, z.astype(int) if self.has_arms_ else z, sample_weight)
                propensity = _expected(model, columns)
            self._propensity_model = model
        columns = self._with(columns, PROPENSITY, propensity)
        self.propensity_ = _finite_numbers(PROPENSITY, columns[PROPENSITY])
        rare = np.abs(self.propensity_ - 0.5) > 0.5 - RARE
        if self.has_arms_ and rare.mean() > _MOST_RARE_ROWS:
            warnings.warn(
                f"{rare.mean():.0%} of the rows have a propensity below {RARE:g} or above "
                f"{1 - RARE:g}: there one arm has hardly any rows, and effects are extrapolated. "
                "Drop these rows, or report effects of the others.",
                UserWarning,
                stacklevel=2,
            )
        return super().fit(columns | {self.treatment_name_: z}, y, sample_weight)

    @staticmethod
    def _with(columns: Mapping[str, Any], name: str, values: Any) -> dict[str, Any]:
        """Add a column, of one number or [n]."""
        if name in columns:
            raise ValueError(f"X has a column {name!r}, a name that is needed: rename it.")
        number = len(next(iter(columns.values())))
        return {**columns, name: np.full(number, values) if np.ndim(values) == 0 else values}

    @property
    def _hidden(self) -> tuple[str, ...]:
        is_same = bool(np.ptp(self.propensity_) == 0)  # as in an experiment
        return self.treatment_name_, *[PROPENSITY] * is_same

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
        scale = _MEDIAN_EFFECT * (float(np.std(y)) or 1.0)
        scale /= _MEDIAN_OF_HALF_NORMAL * self.effect_trees**0.5
        prior_of_effect = AdditivePrior(
            scale if self.has_arms_ else scale / float(np.std(design.matrix[:, feature])),
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
        columns = self._with(columns_of(X), self.treatment_name_, treatment)
        return columns if propensity is None else self._with(columns, PROPENSITY, propensity)

    def _matrix(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        columns = columns_of(X)
        if self.treatment_name_ not in columns:
            raise ValueError(
                "Predictions of targets need the treatment of each row: pass "
                "with_treatment(X, treatment). Effects do not: see effect_draws."
            )
        z = _finite_numbers("treatment", columns.pop(self.treatment_name_))
        if PROPENSITY not in columns:
            if np.ptp(self.propensity_) == 0:
                columns = self._with(columns, PROPENSITY, self.propensity_[0])
            elif (model := vars(self).get("_propensity_model")) is not None:
                columns[PROPENSITY] = _expected(model, columns)
            else:
                raise ValueError(
                    "Propensities were given at fit, or their model was not saved: pass those of "
                    "these rows, with_treatment(X, treatment, propensity)."
                )
        return super()._matrix(columns | {self.treatment_name_: z})

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
        filler = dict.fromkeys((self.treatment_name_, PROPENSITY), 0.0)
        columns = {name: own for name, own in columns_of(X).items() if name not in filler}
        for name, value in filler.items():
            columns = self._with(columns, name, value)
        return self._by_draw(self._effect.of_one_unit, columns)

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
            If an argument is none of these, or treatments are doses and none of the rows untreated.
        """
        require_choice("over", over, get_args(Over))
        check_is_fitted(self)
        return PosteriorSummary.of(self.average_effect_draws(over), level)

    def average_effect_draws(self, over: Over = "sample") -> np.ndarray:
        """Return the average effect given each draw, float64 [chains, draws]; see the above."""
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


def _expected(model: Any, rows: Mapping[str, Any]) -> np.ndarray:
    """Predict the probability of the treatment, or the expected dose."""
    return model.predict(rows) if is_regressor(model) else model.predict_proba(rows)[:, 1]
