"""Times until an event, some of them censored, by sums of trees."""

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.bart import BART, ClassSums
from bdtppl.estimators.base import estimator, read_weights
from bdtppl.estimators.draws import PosteriorSummary
from bdtppl.estimators.parameters import declared, parameter, require_level
from bdtppl.models.data.tables import columns_of

TIME = "time"  # name of the column that is added
_HAZARDS_AT_ONCE = 1 << 24


@declared
class SurvivalParameters:
    """Parameters of survival times."""

    intervals: int = parameter(
        20,
        "Most intervals of time, which end at quantiles of the times of events. Within an interval "
        "the hazard is constant.",
        least=2,
    )


@estimator
class BARTSurvival(SurvivalParameters, ClassSums, BART):
    """Predict survival by sums of trees, from times some of which are censored.

    Attributes
    ----------
    times_ : numpy.ndarray
        float64 [k]; ends of the intervals of time.
    {fitted}

    Notes
    -----
    The probability of an event in an interval of time, given none before it, is that of a
    classifier by sums of trees whose columns are those of X and the end of the interval, "time"
    (Sparapani and others 2016). So hazards need not be proportional. Each row of X stands for one
    row in each interval that it reached. A time censored within an interval counts there by the
    share of the interval that it reached, or with ``link="probit"`` from its middle on.

    References
    ----------
    Sparapani, Logan, McCulloch and Laud 2016, Nonparametric survival analysis using Bayesian
    additive regression trees (BART).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BARTSurvival
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> event, censored = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, 200)
    >>> y = np.column_stack([event < censored, np.minimum(event, censored)])
    >>> model = BARTSurvival(trees=50, random_state=0).fit(X, y)
    >>> slow, fast = model.survival([[-1.0, 0.0], [1.0, 0.0]], [0.5, 1.0]).mean
    >>> bool((slow > fast + 0.3).all())
    True
    """

    inference = "bart"
    task = "survival"
    in_words = (
        "The hazard in each interval of time was explained by a sum of small trees, Gibbs-sampled "
        "one given the others (BART survival; Sparapani and others 2016)."
    )

    @property
    def is_classifier(self) -> bool:
        """Whether targets are classes: whether a row has an event in an interval."""
        return True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit hazards.

        Parameters
        ----------
        X
            Table [n, columns], as for `bdtppl.BARTClassifier`, without a column "time".
        y
            Events and times: an array of two columns [n, 2], whether the event happened (1, or 0 if
            censored) and the time, or a structured array with these fields, as in scikit-survival.
        sample_weight
            Weights [n].

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used.
        """
        columns, (event, time) = columns_of(X), read_times(y)
        if TIME in columns:
            raise ValueError(f"X has a column {TIME!r}, a name that is needed: rename it.")
        if not columns or len(next(iter(columns.values()))) != len(time):
            raise ValueError(f"X must have columns with a row for each of the {len(time)} times.")
        weights = read_weights(sample_weight, len(time))
        is_known = event & (weights > 0)
        shares = np.linspace(0, 1, self.intervals + 1)[1:]
        if not is_known.any() or np.ptp(time[is_known]) == 0:
            raise ValueError("There must be events at two times or more.")
        self.times_ = np.unique(
            np.quantile(time[is_known], shares, weights=weights[is_known], method="inverted_cdf")
        )
        reached = np.searchsorted(self.times_, time)  # the interval of the time
        number = np.minimum(reached + 1, len(self.times_))
        row = np.repeat(np.arange(len(time)), number)
        place = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
        is_last = place == reached[row]
        # A time censored within an interval has reached a share of it.
        starts = np.append(0.0, self.times_)
        share = (time[row] - starts[place]) / np.diff(starts)[place]
        share = np.where(is_last & ~event[row], share, 1.0)
        weight = weights[row] * (np.rint(share) if self.link == "probit" else share)
        table = self._at(columns, row, self.times_[place])
        return super().fit(table, event[row] & is_last, weight)

    @staticmethod
    def _at(columns: dict[str, Any], row: np.ndarray, time: np.ndarray) -> dict[str, Any]:
        """Select rows of a table by their places, each at a time."""
        return {name: own[row] for name, own in columns.items()} | {TIME: time}

    def survival_draws(self, X: Any, times: Any = None) -> np.ndarray:
        """Return the probability of no event until each time, given each draw.

        Parameters
        ----------
        X
            Rows [m].
        times
            Times [t], at least 0. Default: ``times_``. After the last interval the curve is flat.

        Returns
        -------
        numpy.ndarray
            float64 [chains, draws, m, t].
        """
        check_is_fitted(self)
        columns, wanted = columns_of(X), self.times_ if times is None else np.asarray(times, float)
        if wanted.ndim != 1 or not np.isfinite(wanted).all() or (wanted < 0).any():
            raise ValueError("times must be finite numbers of at least 0.")
        if not columns or not len(next(iter(columns.values()))):
            raise ValueError("X has no rows.")
        ends = np.append(0.0, self.times_)
        number, steps = len(next(iter(columns.values()))), len(self.times_)
        found = []
        size = max(1, _HAZARDS_AT_ONCE // (self.posterior_.variance.size * steps))
        for first in range(0, number, size):
            some = np.arange(first, min(first + size, number))
            table = self._at(columns, np.repeat(some, steps), np.tile(self.times_, len(some)))
            none = np.maximum(self.mean_draws(table)[..., 0], np.finfo(float).tiny)
            none = none.reshape(*none.shape[:2], -1, steps)
            log_survival = np.zeros((*none.shape[:-1], steps + 1))
            np.cumsum(np.log(none), axis=-1, out=log_survival[..., 1:])
            place = np.clip(np.searchsorted(ends, wanted), 1, steps)
            share = np.clip((wanted - ends[place - 1]) / np.diff(ends)[place - 1], 0, 1)
            left, right = log_survival[..., place - 1], log_survival[..., place]
            found.append(np.exp(left + share * (right - left)))
        return np.concatenate(found, axis=2)

    def survival(self, X: Any, times: Any = None, level: float = 0.95) -> PosteriorSummary:
        """Return the posterior mean of survival curves, and their central intervals.

        Parameters
        ----------
        X, times
            As for `survival_draws`.
        level
            Probability of the intervals, in (0, 1).

        Returns
        -------
        PosteriorSummary
            Arrays, float64 [m, t].
        """
        require_level(level)
        return PosteriorSummary.of(self.survival_draws(X, times), level)

    def _matrix(self, X: Any) -> np.ndarray:
        columns = columns_of(X)
        if TIME not in columns:
            raise ValueError(
                f"Hazards need a column {TIME!r}, one of times_, in addition to those of X. "
                "Curves do not: see survival."
            )
        return super()._matrix(columns)

    def __sklearn_tags__(self):
        """Declare that targets are no labels, though hazards are those of a classifier."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = None
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Return a risk score of each row, float64 [m]: the mean cumulative hazard over ``times_``.

        The larger it is, the earlier the event.
        """
        survival = np.maximum(self.survival_draws(X), np.finfo(float).tiny)
        return -np.log(survival).mean(axis=(0, 1, 3))

    def score(self, X: Any, y: Any, sample_weight: None = None) -> float:
        """Return the concordance of risk scores and times (Harrell and others 1996).

        That is the share of pairs, whose order is known in spite of censoring, in which the row
        with the earlier event has the higher score; equal scores count half.

        Parameters
        ----------
        X
            Rows [m].
        y
            Events and times, as for `fit`.
        sample_weight
            Must be None.

        Raises
        ------
        ValueError
            If an argument does not fit, or no pair has a known order.
        """
        if sample_weight is not None:
            raise ValueError("The concordance has no sample_weight.")
        (event, time), risk = read_times(y), self.predict(X)
        if len(risk) != len(time):
            raise ValueError(f"X has {len(risk)} rows and y has {len(time)}.")
        is_earlier = event[:, None] & (time[:, None] < time)
        is_earlier |= (event[:, None] & ~event) & (time[:, None] == time)
        if not is_earlier.any():
            raise ValueError("The order of no two times is known: there is no concordance.")
        is_higher = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
        return float(is_higher[is_earlier].mean())


def read_times(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read events, bool [n], and times, float64 [n].

    Raises
    ------
    ValueError
        If they are not 0 or 1 and above 0.
    """
    y = np.asarray(y)
    if y.dtype.names is None and y.dtype.kind not in "biufO":
        raise ValueError("y must contain numbers: 1 or 0, and the time.")
    if y.dtype.names is not None and len(y.dtype.names) == 2:
        event, time = (np.asarray(y[name], float) for name in y.dtype.names)
    elif y.ndim == 2 and y.shape[1] == 2:
        event, time = y.astype(float).T
    else:
        raise ValueError(
            "y must have two columns or fields: whether the event happened (1 or 0), and the time."
        )
    if not np.isin(event, (0, 1)).all():
        raise ValueError("The first column of y must say whether the event happened: 1 or 0.")
    if not (np.isfinite(time) & (time > 0)).all():
        raise ValueError("The times of y must be finite numbers above 0.")
    return event == 1, time
