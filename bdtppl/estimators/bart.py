"""Sums of trees sampled by exact Gibbs steps: BART."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import TableEstimator, estimator
from bdtppl.estimators.chains import (
    agree,
    extensions_to,
    judge_chains,
    num_extensions,
    predictions_agree,
)
from bdtppl.estimators.hard import warn_of_no_cut
from bdtppl.estimators.long_fits import FansOut, RunsLong
from bdtppl.estimators.parameters import declared, made_of, parameter
from bdtppl.estimators.readable_sums import ReadableSums
from bdtppl.estimators.results import of_chains
from bdtppl.estimators.scale_choice import (
    ERRORS_BETTER,
    FEATURES_LIKE_A_ROW,
    FEWEST_ROWS,
    LEAST_GAIN,
    LEAST_SKEWNESS,
    MOST_ROWS,
    choose_scale,
)
from bdtppl.estimators.sum_features import find_features, group_columns, require_offset
from bdtppl.estimators.targets import ClassTargets, RealTargets
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.prior_draws import draw_sum_prior
from bdtppl.inference.additive.sample import SumChains
from bdtppl.inference.additive.tables import MOST_BINS, MOST_TREE_LEVELS, USUAL_BINS
from bdtppl.models.data.design import Binning, Design
from bdtppl.models.data.target_scale import IDENTITY, ScaleName, TargetScale
from bdtppl.models.hard.additive import (
    NOISE_QUANTILE,
    RANGE_DEVIATIONS,
    AdditivePrior,
    calibrated,
    calibrated_to_classes,
)
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.wording import counted
from bdtppl.summary import summarised

_AUTO_EXTENSIONS = 4
_MOST_WORK = 3_000_000  # sweeps times rows and sums: about twenty CPU seconds of four chains


def _smoothness(default: Any) -> Any:
    return parameter(
        default,
        "Prior standard deviations of a sum between its middle and its ends, where the ends are "
        "the extremes of the targets, or of plausible probabilities. Larger values give smoother "
        'sums. Chipman et al. use 2. "auto" samples it with the trees, under a prior with median '
        "2.",
        above=0,
        option=float,
    )


@declared
class BARTParameters(RunsLong, FansOut):
    """Parameters of sums of trees."""

    trees: int = parameter(AdditivePrior.num_trees, "Number of trees in the sum.", least=1)
    chains: int = parameter(4, "Independent chains, run in parallel threads.", least=1)
    warmup: int = parameter(100, "Warm-up sweeps over all trees that each chain discards.", least=0)
    draws: int = parameter(100, "Draws kept from each chain.", least=1)
    thin: int = parameter(1, "Sweeps between draws that are kept.", least=1)
    extensions: int | Literal["auto"] = extensions_to(
        "thin doubles",
        "four times",
        ' "auto" requires the predictions of fifty rows to agree; a number also requires it of the '
        "noise, the log likelihood and each prediction.",
    )
    warm_start: bool = parameter(
        False,
        "Whether `fit` on the same table resumes the chains of the previous fit in this process: "
        "it adds draws up to ``draws``, with the same spacing and no new warm-up.",
        option=False,
        is_of_run=False,
    )
    max_depth: int = parameter(
        AdditivePrior.max_depth,
        f"Most levels of splits of a tree, at most {MOST_TREE_LEVELS}. Under the default split "
        "prior few trees need more than 3.",
        least=1,
    )
    min_leaf: int = parameter(AdditivePrior.min_leaf, "Fewest rows in a leaf.", least=1)
    bins: int = parameter(
        USUAL_BINS, f"Most buckets of a column, at most {MOST_BINS - 1}.", least=2, option=str
    )
    binning: Binning = parameter("quantile", 'How buckets are cut: "uniform" gives equal widths.')
    alpha: float = parameter(
        AdditivePrior.alpha, "Prior probability that a tree's root is split.", above=0, below=1
    )
    beta: float = parameter(
        AdditivePrior.beta,
        "How fast that probability falls with depth d: alpha (1 + d)^-beta.",
        least=0,
    )
    linear: bool = parameter(
        True,
        "Whether to add a linear term with shrunken coefficients to the trees. It helps where "
        "targets rise and fall with many columns.",
    )
    groups: Any = parameter(
        None,
        "Name of a column of groups, each with its own random intercept; or a mapping from that "
        "name to numeric columns that get a random slope in each group, ``{'school': ['age']}``. "
        "No tree splits on it. The effects of a new group are drawn from their prior.",
        option=str,
    )
    offset: str | None = parameter(
        None,
        "Name of a numeric column that is added to the sum, such as the log of an exposure: in the "
        "units of real targets, and on the link scale for two classes. No tree splits on it.",
    )
    monotone: Any = parameter(
        None,
        "Directions by the names of numeric columns, ``{'age': 1, 'price': -1}``: 1 where the sum "
        "must not fall along the column, -1 where it must not rise. For labels, the sum is that of "
        "the second of two classes. Use about 20 trees, because with many trees the prior favours "
        "steep sums.",
        option=False,
    )
    sparsity: float | None = parameter(
        None,
        "Concentration of a Dirichlet prior on the features' weights in rules, for tables of many "
        "features of which few matter; 1 is sparse. None for equal weights.",
        above=0,
    )


@declared
class BARTNoiseParameters:
    """Parameters of sums for real targets, and of their noise."""

    k: float | Literal["auto"] = _smoothness("auto")
    noise_degrees: float = parameter(
        AdditivePrior.noise_degrees,
        "Degrees of freedom of the prior on the noise variance.",
        above=0,
    )
    noise_quantile: float = parameter(
        NOISE_QUANTILE,
        "Prior probability that the noise is below that of a linear model.",
        above=0,
        below=1,
    )
    noise_trees: int = parameter(
        0,
        "Number of trees whose product is the noise variance of a row, for example 40 "
        "(heteroskedastic BART, Pratola and others 2020); 0 for one variance for all rows.",
        least=0,
    )


@declared
class BARTScaleParameters:
    """The scale of real targets."""

    target_scale: Literal[ScaleName, "auto"] = parameter(
        "auto",
        'Scale on which targets are a sum plus noise: "log" for targets above 0, "log1p" for those '
        'above -1, such as counts, "yeo-johnson" for any, with the power in [0, 2] that makes them '
        "most nearly normal. Predictions, intervals and densities are of the targets themselves. "
        f'"auto" keeps "identity" for fewer than {FEWEST_ROWS} rows or a skewness of at most '
        f"{LEAST_SKEWNESS:g} either way. Otherwise each scale predicts each half of at most "
        f"{MOST_ROWS:,} training rows from the other half (2 chains of 100 sweeps), and the best "
        f"one is used if it gains {ERRORS_BETTER:g} standard errors and {LEAST_GAIN:g} nats a row.",
    )


@declared
class BARTClassParameters:
    """Parameters of sums of trees for classes."""

    k: float | Literal["auto"] = _smoothness(RANGE_DEVIATIONS)
    link: Literal["logit", "probit"] = parameter(
        "logit",
        "Link from the sum of trees to the second class's probability. More than two classes have "
        'one sum each and a softmax, which requires "logit".',
    )


class BART(BARTParameters, TableEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.additive.posterior.SumPosterior
        Draws of sums of trees, [chains, draws].
    diagnostics_ : dict
        Rank-normalised R-hat ("r_hat") and bulk effective sample size ("ess") of the log
        likelihood, the noise (sigma), predictions at a few training rows, and those of fifty rows
        at once ("predictions").
    trajectory_, trajectory_steps_ : numpy.ndarray
        float64 [chain, sweep] and int [sweep]; log likelihood along the chains, that of warm-up
        included (`bdtppl.plot_trajectories`).
    design_
        The coded training rows.
    prior_ : bdtppl.models.hard.additive.AdditivePrior
        The prior, calibrated to the targets.
    linear_effects_ : dict
        Effect of one more unit of each feature on the sum in the linear term: "mean", and the
        central 90 % interval ("low", "high"). By class and feature for more than two classes.
    group_effects_ : dict
        The same for ``groups``: by group under "intercept", and under each column with slopes.
    {fitted}

    Notes
    -----
    `fit` warns (``ConvergenceWarning``) if the R-hat of "predictions" exceeds 1.05 after all
    extensions, or any R-hat if ``extensions`` is a number. A sum of trees has no most probable tree
    and no readable rules: see ``feature_importances_`` and `bdtppl.plot_partial_dependence`, or use
    `bdtppl.ExactTreeRegressor` for a readable tree. With many trees importances are nearly equal,
    because trees with nothing left to explain split on any feature: set ``sparsity=1``, or use
    fewer trees, to distinguish features.

    References
    ----------
    Chipman, George and McCulloch 2010, BART: Bayesian additive regression trees; Linero 2018 for
    ``sparsity``.
    """

    inference = "bart"
    in_words = (
        "Targets were explained by sums of small trees (BART; Chipman, George and McCulloch 2010). "
        "Each tree was Gibbs-sampled given the others: every node was resampled from its full "
        'conditional over "leaf" and all available splits.'
    )
    draws_are = "chains"
    trees_are = "sums"
    unknown: ClassVar = {"log_evidence": "chains of sums of trees give no evidence"}

    k: Any
    design_: Design
    prior_: AdditivePrior
    posterior_: SumPosterior
    diagnostics_: dict[str, dict[str, float]]
    num_thrown_away_: int | None = None  # absent from models in older files
    _last_run: tuple[SumChains, Any] | None = None
    _calibrated: Any
    _hidden: tuple[str, ...] = ()  # columns that no tree of the sum splits on
    _kernel: Any = AdditiveKernel
    _scale = staticmethod(lambda matrix, y, weights, found: IDENTITY)
    _unit = staticmethod(lambda y: 1.0)
    _noise: Any

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        for name, most in (("max_depth", MOST_TREE_LEVELS), ("bins", MOST_BINS - 1)):
            if (value := getattr(self, name)) > most:
                raise ValueError(f"{name} must be at most {most}; got {value}.")
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        if len(y) < max(2, self.min_leaf):
            raise ValueError(
                f"There are too few rows (n_samples = {len(y)}): at least two are needed, and "
                f"min_leaf={self.min_leaf} of them."
            )
        found, coded = find_features(self, schema, matrix)
        scale, targets = self._scale(matrix, y, weights, found), y
        y = scale.forward(y)
        unit = self._unit(y)
        y = y / unit if unit != 1 else y
        design = Design.from_matrix(
            coded,
            weights=weights,
            bins=self.bins,
            binning=self.binning,
            names=schema.features,
            is_indicator=schema.is_indicator,
            column=schema.column,
        )
        design = replace(design, matrix=matrix)
        warn_of_no_cut(
            schema, design, stacklevel=4, but=(*self._whole, *self._hidden, self.offset or "")
        )
        prior = self._calibrated(
            design,
            y,
            k=RANGE_DEVIATIONS if self.k == "auto" else self.k,
            draws_leaf_scale=self.k == "auto",
            num_trees=self.trees,
            alpha=self.alpha,
            beta=self.beta,
            sparsity=self.sparsity,
            linear=self.linear,
            max_depth=self.max_depth,
            min_leaf=self.min_leaf,
            **found,
            **({} if self.offset is None else {"offset_factor": 1 / unit}),
        )
        # "auto" bounds the work of extensions, whatever the machine.
        of_features = 1 + design.num_features / FEATURES_LIKE_A_ROW
        work = prior.num_sums * design.num_rows * of_features
        chains = made_of(
            self,
            SumChains,
            kernel=self._kernel(prior, design, y),
            extensions=num_extensions(self, work, _MOST_WORK, _AUTO_EXTENSIONS),
            agree=predictions_agree if self.extensions == "auto" else agree,
        )
        if self.warm_start and self._last_run is not None:
            try:
                chains = chains.going_on(*self._last_run)
            except ValueError as error:
                raise ValueError(f"warm_start=True cannot resume: {error}.") from None
        keeping = self._run(design.names, (design.matrix, design.cut_threshold, design.weights, y))
        seed, state = self._run_to_end(chains, keeping, "Sampling sums of trees", key=int)
        self._last_run = (chains, state) if self.warm_start else None
        posterior = chains.result(state).in_units(unit).on_scale(scale, targets)
        self.schema_, self.design_, self.prior_ = schema, design, posterior.prior
        gained = weights @ scale.log_slope(targets) - design.total_weight * np.log(unit)
        self.trajectory_ = state.log_likelihood + gained
        self.trajectory_steps_ = 1 + np.arange(state.reached)
        self.num_thrown_away_ = chains.num_thrown_away(state)
        self._restore(posterior, {"seed": seed})
        judge_chains(self, "Raise extensions, warmup, draws or thin.")
        return self

    @property
    def _whole(self) -> tuple[str, ...]:
        return group_columns(self.groups)

    def _require_rows(self, matrix: np.ndarray) -> None:
        if (feature := self.posterior_.prior.offset_feature) is not None:
            require_offset(matrix, feature, self.schema_.features)

    @property
    def _may_miss(self) -> np.ndarray:
        # A group that is missing is a new one.
        own = np.arange(self.design_.num_features)
        return self.design_.has_missing | np.isin(own, self.prior_.groups[:1])

    @property
    def judged(self) -> Mapping[str, Any]:
        """Return diagnostics of predictions, or all if ``extensions`` is a number."""
        if self.extensions != "auto" or "predictions" not in self.diagnostics_:
            return self.diagnostics_
        return {"predictions": self.diagnostics_["predictions"]}

    @property
    def linear_effects_(self) -> dict[Any, Any]:
        """Effects of the linear term; see the class."""
        check_is_fitted(self)
        posterior: Any = self.posterior_
        if posterior.prior.linear_scale is None:
            raise AttributeError("There is no linear term: linear is False, or no column varies.")
        columns = posterior.linear_columns
        slopes = posterior.linear[..., : len(columns.feature)] / columns.deviation[columns.feature]
        return self._with_intervals(slopes, [posterior.names[j] for j in columns.feature])

    @property
    def group_effects_(self) -> dict[str, dict[Any, Any]]:
        """Effects of groups; see the class."""
        check_is_fitted(self)
        posterior: Any = self.posterior_
        if not posterior.prior.groups:
            raise AttributeError("There are no groups: groups is None.")
        columns, (own, *slopes) = posterior.linear_columns, posterior.prior.groups
        source = self.schema_.columns[self.schema_.sources[own][0]]
        named = [source.levels[int(g)] if source.levels else g for g in columns.levels.tolist()]
        blocks = np.split(posterior.linear[..., len(columns.feature) :], 1 + len(slopes), axis=-1)
        effects = {"intercept": self._with_intervals(blocks[0], named)}
        for feature, block in zip(slopes, blocks[1:], strict=True):
            slope = block / columns.deviation[feature]
            effects[posterior.names[feature]] = self._with_intervals(slope, named)
        return effects

    def _with_intervals(self, draws: np.ndarray, names: Sequence[Any]) -> dict[Any, Any]:
        """Summarise draws [chain, draw, sum, k] by name [k], first by class if many."""
        ends = draws.mean(axis=(0, 1)), *np.quantile(draws, [0.05, 0.95], axis=(0, 1))
        of_sums = [
            {
                name: dict(zip(("mean", "low", "high"), map(float, each), strict=True))
                for name, *each in zip(names, *own, strict=True)
            }
            for own in zip(*ends, strict=True)
        ]
        if len(of_sums) == 1:
            return of_sums[0]
        return dict(zip(self.classes_.tolist(), of_sums, strict=True))

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Sweeps of warm-up, including those of extensions."""
        if self.num_thrown_away_ is not None:
            return "warm-up", self.num_thrown_away_
        # Each extension doubles the sweeps and discards all earlier draws.
        return "warm-up", (len(self.trajectory_steps_) + self.warmup - self.draws * self.thin) // 2

    def cautions(self) -> Iterator[str]:
        """Warn the reader if chains disagree."""
        yield from of_chains(self)

    def _draw_prior(self, num_draws: int) -> Any:
        from bdtppl.arviz import PriorDraws
        from bdtppl.arviz.sum_groups import label_sum_draws

        prior = draw_sum_prior(np.random.default_rng(self._seed), self.posterior_, num_draws)
        targets = prior.sample_predictive(jax.random.key(self._seed), prior.matrix)
        return PriorDraws(label_sum_draws(prior)["posterior"], targets)

    def mean_draws(self, X: Any) -> np.ndarray:
        """Return the mean of a new target given each draw.

        Parameters
        ----------
        X
            Rows [m].

        Returns
        -------
        numpy.ndarray
            float64 [chains, draws, m], or class probabilities [chains, draws, m, classes].
        """
        check_is_fitted(self)
        return self._by_draw(self.posterior_.means, X)

    def structures(self, by: Any = None) -> Any:
        """Raise: a sum of many trees has no structure to list.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"A {type(self).__name__} draws sums of {self.trees} trees, which have no structure to "
            f"list: see feature_importances_ and plot_partial_dependence."
        )

    def _at_hand(self) -> dict[str, Any]:
        return self.summary()

    @summarised
    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types.

        ``feature_importance`` is the share of each column in all splits, those on all levels of a
        category together, and ``feature_importance_interval`` its central 90 % interval over the
        draws.
        """
        check_is_fitted(self)
        posterior = self.posterior_
        names = [column.name for column in self.schema_.columns]
        is_of = np.eye(len(names))[[position for position, *_ in self.schema_.sources]]
        splits = posterior.splits_on @ is_of  # by column, not by feature
        share = splits / np.maximum(splits.sum(axis=-1, keepdims=True), 1)
        ends = np.quantile(share, [0.05, 0.95], axis=(0, 1)).T
        known = [each for each in self.judged.values() if np.isfinite(each["r_hat"])]
        num_trees = self.trees * self.prior_.num_sums
        return {
            "model": type(self).__name__,
            "sum": f"{self.trees} trees of at most {counted(self.max_depth, 'level', 'levels')}",
            "rows": self.design_.num_observations,
            "features": len(posterior.names),
            "bins": self.bins,
            "chains": int(self.chains),
            "draws": int(posterior.num_leaves.shape[1]),
            "largest_r_hat": max((each["r_hat"] for each in known), default=None),
            "least_ess": min((each["ess"] for each in known), default=None),
            **self._noise(),
            "expected_leaves": float(posterior.num_leaves.mean()) / num_trees,
            "feature_importance": dict(zip(names, share.mean(axis=(0, 1)).tolist(), strict=True)),
            "feature_importance_interval": dict(zip(names, ends.tolist(), strict=True)),
        }


class RealSums(BARTNoiseParameters, RealTargets):
    """Sums of trees for real targets."""

    posterior_: SumPosterior
    offset: ClassVar[Any]
    _by_draw: Any

    @property
    def target_scale_(self) -> str:
        """Name of the scale of the targets that the sum is on; see ``posterior_.scale``."""
        return self.posterior_.scale.kind

    @staticmethod
    def _unit(y: np.ndarray) -> float:
        """Choose a unit near the spread if fourth powers of targets leave float64's range."""
        NormalInverseGamma.from_targets(y)  # refuses those whose squares do
        spread = float(np.ptp(y))
        return 1.0 if spread == 0 or 1e-30 < spread < 1e30 else 2.0 ** round(math.log2(spread))

    def _calibrated(self, design: Design, y: np.ndarray, **settings: Any) -> AdditivePrior:
        if self.noise_trees and self.noise_degrees <= 2:
            raise ValueError(
                f"noise_degrees must be above 2 with noise_trees; got {self.noise_degrees}."
            )
        noise = {
            "quantile": self.noise_quantile,
            "noise_degrees": self.noise_degrees,
            "noise_trees": self.noise_trees,
        }
        if (own := settings.get("offset_feature")) is not None:
            y = y - settings["offset_factor"] * design.matrix[:, own]
        return calibrated(design, y, **noise, **settings)

    @property
    def other_noise(self) -> dict[str, str]:
        """Settings to try where predictive intervals do not hold, as code, and what each means."""
        least = self.posterior_.y.min()
        scale = "log" if least > 0 else "log1p" if least > -1 else "yeo-johnson"
        known = {f'target_scale="{scale}"': "noise that grows with the target"}
        asked: Any = getattr(self, "target_scale", None)  # BCFRegressor has no scales
        if asked != "identity" or self.offset:
            known = {}
        return known if self.noise_trees else known | {"noise_trees=40": "noise that varies by row"}

    def noise_draws(self, X: Any) -> np.ndarray:
        """Compute the standard deviation of the noise for each draw, on the scale of the sum.

        Parameters
        ----------
        X
            Rows [m].

        Returns
        -------
        numpy.ndarray
            float64 [chains, draws, m]; the same at all rows without ``noise_trees``. In units of
            the transformed targets, which are those of y only if ``target_scale_`` is "identity".
        """
        check_is_fitted(self)
        draws = self.posterior_.variance.shape

        def deviations(matrix: np.ndarray) -> np.ndarray:
            return np.broadcast_to(self.posterior_.deviations(matrix), (*draws, len(matrix)))

        return self._by_draw(deviations, X)

    def _noise(self) -> dict[str, Any]:
        sigma = self.posterior_.sigma
        interval = np.quantile(sigma, [0.05, 0.95]).tolist()
        noise = {"sigma": float(sigma.mean()), "sigma_interval": interval}
        return {"target_scale": str(self.posterior_.scale), **noise}


@estimator
class BARTRegressor(BARTScaleParameters, RealSums, ReadableSums, BART):
    """Regress by sums of trees, each Gibbs-sampled given the others (BART).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BARTRegressor
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> model = BARTRegressor(trees=20, warmup=200, random_state=0).fit(X, y)
    >>> model.mean_draws(X[:5]).shape
    (4, 100, 5)
    >>> bool(np.abs(model.predict(X) - np.sin(6 * X[:, 0])).max() < 0.3)
    True
    """

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        targets = super()._read_targets(y, kept)
        if self.target_scale != "auto":
            TargetScale(self.target_scale).require(targets, np.flatnonzero(kept))
        return targets

    def _scale(
        self, matrix: np.ndarray, y: np.ndarray, weights: np.ndarray, found: Mapping[str, Any]
    ) -> TargetScale:
        """Return the scale of targets [n] that was requested, or that predicts best."""
        if self.offset is not None:
            if self.target_scale not in ("auto", "identity"):
                raise ValueError(
                    f"target_scale must be 'auto' or 'identity' with an offset, which is added to "
                    f"targets as they are; got {self.target_scale!r}."
                )
            return IDENTITY
        if self.target_scale != "auto":
            return TargetScale.fitted(self.target_scale, y, weights)
        return choose_scale(self, matrix, y, weights, found)

    @property
    def chosen(self) -> dict[str, Any]:
        """What ``target_scale="auto"`` chose, as a parameter."""
        return {"target_scale": self.target_scale_} if self.target_scale == "auto" else {}


class ClassSums(BARTClassParameters, ClassTargets):
    """Sums of trees for classes."""

    def _calibrated(self, design: Design, y: np.ndarray, **settings: Any) -> AdditivePrior:
        for name in ("offset", "monotone"):
            if getattr(self, name) and len(self.classes_) > 2:
                raise ValueError(
                    f"{name} requires two classes; y has {len(self.classes_)}, with a sum each."
                )
        if self.link == "probit" and len(self.classes_) > 2:
            raise ValueError(
                f"link='probit' requires two classes; y has {len(self.classes_)}: use link='logit'."
            )
        return calibrated_to_classes(
            y, len(self.classes_), design=design, link=self.link, **settings
        )

    def _noise(self) -> dict[str, Any]:
        return {}


@estimator
class BARTClassifier(ClassSums, ReadableSums, BART):
    """Classify by sums of trees, each Gibbs-sampled given the others (BART).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BARTClassifier
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> model = BARTClassifier(trees=20, warmup=200, random_state=0).fit(X, y)
    >>> model.mean_draws(X[:5]).shape
    (4, 100, 5, 2)
    >>> bool((model.predict(X) == (X[:, 0] > 0.5)).all())
    True
    """
