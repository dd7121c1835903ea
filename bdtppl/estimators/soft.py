"""The base of estimators of soft trees: scaled inputs, predictions, and topologies."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import TableEstimator
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.targets import ClassTargets, RealTargets
from bdtppl.inference.nuts.sample import NUTS, KernelName
from bdtppl.inference.soft.posterior import SoftPosterior, Votes
from bdtppl.models.soft.topology import TopologyPrior
from bdtppl.models.soft.tree import LikelihoodName, SoftClassification, SoftRegression
from bdtppl.summary import summarised

_LEAST_SHARPNESS = 1e-30  # its inverse is far from overflow in single precision


@declared
class SoftParameters:
    """Parameters of all estimators of soft trees."""

    h_init: float = parameter(
        0.1,
        "Sharpness of the splits at the first step of warm-up, on inputs scaled to [0, 1].",
        above=0,
    )
    h_final: float = parameter(
        0.025,
        "Sharpness of the splits of draws: the width around the threshold over which a split "
        "changes sides, on inputs scaled to [0, 1]. Smaller values give harder splits.",
        above=0,
    )
    model: Any = parameter(
        None,
        "Leaves and priors, a `SoftRegression` or `SoftClassification` of "
        "`bdtppl.models.soft.tree`; None for priors on the scale of y "
        "(``SoftRegression.scaled_to``), or for class probabilities integrated out, uniform a "
        "priori (equation 8).",
        option=False,
    )
    topology_prior: TopologyPrior | None = parameter(
        None, "Prior of the topologies; None for ``TopologyPrior(0.95, 1.0)``.", option=False
    )
    max_splits: int | None = parameter(None, "Most splits of a tree; None for no limit.", least=0)
    nuts: KernelName = parameter(
        "lanes",
        'The no-U-turn sampler of the parameters given a topology: "lanes" is ours, whose chains '
        'do not wait for one another, "blackjax" is '
        "BlackJAX's. Both draw from the same posterior; ours is faster.",
    )
    routing: Literal["soft", "hard"] | float = parameter(
        "soft",
        'How rows descend the trees in predictions: "soft" as in fitting, "hard", or a sharpness.',
        option=Literal["soft", "hard"],
        is_last=True,
        is_of_run=False,
    )


@declared
class SoftClassParameters:
    """Parameters of soft-tree classifiers."""

    likelihood: LikelihoodName = parameter(
        "compound",
        'Class probabilities in leaves are integrated out ("compound", equation 8) or sampled '
        '("mixture"). Equation 8 is not a distribution of the labels, so its evidence cannot be '
        "compared with other models. Sets the likelihood of the default model.",
    )
    votes: Votes = parameter(
        "probability",
        '"probability" for the '
        "leaves' probabilities of classes; "
        '"balanced" for the score of the '
        "authors' program, in which a leaf votes for a class with its share of the class's rows.",
        is_last=True,
        is_of_run=False,
    )


class _Problem(NamedTuple):
    """Data for sampling: inputs scaled to [0, 1], and real targets standardised.

    Attributes
    ----------
    matrix
        Rows [n, d].
    scaling
        Lowest value and range of each input, [2, d].
    given
        Targets [n], and their model.
    units
        Mean and standard deviation of real targets; None for classes.
    weights
        Weights of the rows [n]; None if all are 1.
    """

    matrix: np.ndarray
    scaling: np.ndarray
    given: tuple[np.ndarray, Any]
    units: tuple[float, float] | None
    weights: np.ndarray | None

    @property
    def x(self) -> np.ndarray:
        """Rows scaled to [0, 1]."""
        return (self.matrix - self.scaling[0]) / self.scaling[1]

    @property
    def y(self) -> np.ndarray:
        """Targets, those of real ones standardised: chains run in single precision."""
        y, _ = self.given
        return y if self.units is None else (y - self.units[0]) / self.units[1]

    @property
    def data(self) -> tuple[np.ndarray, ...]:
        """Rows, targets and weights, which enter the name of a run."""
        return tuple(each for each in (self.x, self.y, self.weights) if each is not None)

    @property
    def model(self) -> Any:
        """The model of these targets, with the same priors in their units."""
        _, model = self.given
        return model if self.units is None else model.standardised(*self.units)

    @property
    def log_jacobian(self) -> float:
        """Term that converts log densities of standardised targets to those of the given ones."""
        if self.units is None:
            return 0.0
        total = len(self.matrix) if self.weights is None else self.weights.sum()
        return float(-total * np.log(self.units[1]))

    def log_joint(self, log_density: np.ndarray, num_leaves: np.ndarray) -> np.ndarray:
        """Return the log joint density in the given units, including those of the leaves' means."""
        scale = 1.0 if self.units is None else self.units[1]
        return log_density + self.log_jacobian - num_leaves * np.log(scale)

    def restored(self, posterior: SoftPosterior) -> SoftPosterior:
        """Express a posterior in the units of the given targets."""
        y, model = self.given
        return posterior if self.units is None else posterior.in_units(model, y, *self.units)


class SoftTreeEstimator(SoftParameters, TableEstimator):
    """The base of soft-tree estimators: scales inputs to [0, 1], and predicts."""

    trees_are = "soft"
    # For inferences without such a parameter.
    with_leaf: ClassVar[Any] = True
    inputs: ClassVar[Any] = "soft"
    votes: ClassVar[Any] = "probability"

    model_: SoftRegression | SoftClassification
    topology_prior_: TopologyPrior
    posterior_: SoftPosterior
    _model_of: Any

    def _pose(self, X: Any, y: Any, sample_weight: Any) -> "_Problem":
        """Read a table and targets, and fill in the model."""
        self._check()
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        missing = np.argwhere(np.isnan(matrix))
        if len(missing):
            row, feature = missing[0]
            raise ValueError(
                f"Column {schema.features[feature]!r}, row {row}: the value is missing (NaN); soft "
                f"trees have no rule for missing values. Impute them, or use a hard tree."
            )
        low, high = matrix.min(axis=0), matrix.max(axis=0)
        if (low == high).all():
            raise ValueError("All features are constant: there is nothing to split on.")
        self.schema_ = schema
        scaling = np.stack([low, np.where(high > low, high - low, 1.0)])
        weights = None if (weights == 1).all() else weights
        self.model_ = self._model_of(y, weights)
        concentration = np.shape(self.model_.input_concentration)
        if concentration not in ((), (len(low),)):
            raise ValueError(
                f"input_concentration of the model must be one number, or one for each of the "
                f"{len(low)} inputs; got an array of shape {concentration}."
            )
        prior = TopologyPrior() if self.topology_prior is None else self.topology_prior
        if not isinstance(prior, TopologyPrior):
            raise TypeError(f"topology_prior must be a TopologyPrior; got {type(prior).__name__}.")
        self.topology_prior_ = prior
        is_real = isinstance(self.model_, SoftRegression)
        units = SoftRegression.units_of(y, weights) if is_real else None
        return _Problem(matrix, scaling, (y, self.model_), units, weights)

    def _fitted_posterior(self) -> SoftPosterior:
        check_is_fitted(self)
        return self.posterior_

    def __sklearn_tags__(self):
        """Declare that missing values are not accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags

    def _draw_prior(self, num_draws: int) -> Any:
        from bdtppl.arviz import PriorDraws
        from bdtppl.arviz.soft_groups import label_soft_draws
        from bdtppl.inference.prior_predictive.draws import draw_soft_prior

        prior = draw_soft_prior(
            np.random.default_rng(self._seed),
            self.posterior_,
            self.topology_prior_,
            num_draws,
            max_splits=self.max_splits,
            with_leaf=self.with_leaf,
            hard_inputs=self.inputs == "hard",
        )
        targets = prior.sample_predictive(jax.random.key(self._seed), prior.matrix)
        # Their numbers of topologies are not those of the posterior.
        return PriorDraws(label_soft_draws(prior)["posterior"].drop_vars("topology"), targets)

    def _check(self) -> None:
        """Check parameters that the inference does not check."""
        for name in ("h_init", "h_final"):
            value = getattr(self, name)
            if value < _LEAST_SHARPNESS:
                raise ValueError(
                    f"{name} must be at least {_LEAST_SHARPNESS:g}, for single precision; got "
                    f"{value!r}."
                )
        self._sharpness(self.routing)

    def _sampler(self, warmup: int) -> NUTS:
        """Make the sampler of the parameters given a topology."""
        return NUTS(warmup=warmup, h_init=self.h_init, h_final=self.h_final, kernel=self.nuts)

    def _sharpness(self, routing: Any) -> float | None:
        """Return the sharpness of predictions; None for that of the draws."""
        if isinstance(routing, str):
            if routing in ("soft", "hard"):
                return None if routing == "soft" else 0.0
        elif isinstance(routing, float | int | np.number) and not isinstance(routing, bool):
            if 0 < routing < np.inf:
                return float(routing)
        raise ValueError(f"routing must be 'soft', 'hard' or a positive number; got {routing!r}.")

    @property
    def _may_miss(self) -> np.ndarray:
        return np.zeros(len(self.schema_.features), bool)

    def _training_rows(self) -> tuple[np.ndarray, np.ndarray | None]:
        return self.posterior_.matrix, self.posterior_.weights

    @property
    def _predictive(self) -> tuple[Callable[[np.ndarray], Any], int]:
        predictive = partial(self.posterior_.predictive, **self._going_down)
        return predictive, self.posterior_.bytes_a_row

    @property
    def _going_down(self) -> dict[str, Any]:
        """Return how rows descend the trees, and how leaves vote."""
        return {"sharpness": self._sharpness(self.routing), "votes": self.votes}

    def predict_draws(self, X: Any) -> np.ndarray:
        """Return the mean of a new target given each draw of a tree.

        Parameters
        ----------
        X
            Rows [m].

        Returns
        -------
        numpy.ndarray
            float64 [chain, draw, m], or class probabilities [chain, draw, m, classes].
        """
        check_is_fitted(self)
        return self._by_draw(partial(self.posterior_.means, **self._going_down), X)

    def _at_hand(self) -> dict[str, Any]:
        return SoftTreeEstimator.summary(self)  # subclasses may have diagnostics, too

    @summarised
    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types.

        Topologies are listed by probability, down to a thousandth; their codes are explained in
        `bdtppl.models.soft.topology`. The log evidence of a topology does not include its prior.
        """
        check_is_fitted(self)
        posterior = self.posterior_
        shown = np.flatnonzero(posterior.probability >= 1e-3)
        return {
            "model": type(self).__name__,
            "tree": repr(posterior.model),
            "topology_prior": repr(self.topology_prior_),
            "rows": int(posterior.row_weights.sum())
            if posterior.pseudo_weight is None
            else len(posterior.y),
            "features": len(posterior.names),
            "sharpness": posterior.sharpness,
            "topologies_found": len(posterior.topologies),
            "topologies": [
                {
                    "code": posterior.topologies[m].code,
                    "splits": posterior.topologies[m].num_splits,
                    "probability": float(posterior.probability[m]),
                    "log_evidence": finite(posterior.log_evidences[m]),
                    "log_evidence_se": finite(posterior.log_evidence_ses[m]),
                }
                for m in shown
            ],
            "expected_leaves": float(
                posterior.probability @ [shape.num_leaves for shape in posterior.topologies]
            ),
            "log_evidence": finite(posterior.log_evidence),
            "log_evidence_se": finite(posterior.log_evidence_se),
            "input_weights": dict(
                zip(
                    posterior.names, posterior.input_weights.mean(axis=(0, 1)).tolist(), strict=True
                )
            ),
        }


class SoftTargets(RealTargets):
    """Real targets of soft trees."""

    model: SoftRegression | None

    def _model_of(self, y: np.ndarray, weights: np.ndarray | None = None) -> SoftRegression:
        if np.ptp(y) == 0:
            raise ValueError(f"y must vary; got the constant {y[0]:g}.")
        if self.model is None:
            return SoftRegression.scaled_to(y, weights)
        if not isinstance(self.model, SoftRegression):
            raise TypeError(f"model must be a SoftRegression; got {type(self.model).__name__}.")
        return self.model


class SoftClasses(SoftClassParameters, ClassTargets):
    """Class labels of soft trees."""

    model: SoftClassification | None
    model_: Any
    posterior_: Any

    def predict_proba_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Interval over the draws of each class's probability; see `ClassTargets`."""
        check_is_fitted(self)
        if "classes" not in self.posterior_.trees.leaves or self.votes != "probability":
            raise ValueError(
                "predict_proba_interval needs sampled class probabilities, as of "
                "likelihood='mixture' with votes='probability'; got "
                f"likelihood={self.model_.likelihood!r} and votes={self.votes!r}. Hard trees have "
                "them."
            )
        return super().predict_proba_interval(X, level)

    def _model_of(self, y: np.ndarray, weights: np.ndarray | None = None) -> SoftClassification:
        num_classes = len(self.classes_)
        if self.model is None:
            concentration = (1.0,) * num_classes
            return SoftClassification(concentration=concentration, likelihood=self.likelihood)
        if not isinstance(self.model, SoftClassification):
            raise TypeError(f"model must be a SoftClassification; got {type(self.model).__name__}.")
        if len(self.model.concentration) != num_classes:
            raise ValueError(
                f"model has {len(self.model.concentration)} concentrations, but there are "
                f"{num_classes} classes."
            )
        if self.likelihood not in ("compound", self.model.likelihood):  # the first is the default
            raise ValueError(
                f"likelihood={self.likelihood!r} conflicts with the model's likelihood "
                f"{self.model.likelihood!r}; pass only one of them."
            )
        if self.classes is None:
            return self.model
        concentration = tuple(self._by_class(self.model.concentration).tolist())
        return replace(self.model, concentration=concentration)


def finite(value: float) -> float | None:
    """Return a number that JSON has; None if it is not finite."""
    return float(value) if np.isfinite(value) else None
