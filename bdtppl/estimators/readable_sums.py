"""What columns do in sums of trees: their effects, and how few of them are enough."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.parameters import require_level
from bdtppl.inference.additive.effects import SumEffects
from bdtppl.models.arguments import require_integer
from bdtppl.models.data.tables import is_missing

_LINE_POINTS = 60
_PAIR_POINTS = 30  # along each of two columns
_ROWS_READ = 1000  # that tell how columns are distributed


class Effect(NamedTuple):
    """Effect of a column on a sum of trees, or of a pair of columns beside their own effects.

    Attributes
    ----------
    columns
        Names of the one or two columns.
    values
        Values of each, [m] and [k]: of numbers a grid over the training rows, of a category its
        levels. Where training rows have gaps, the last one is missing: NaN, or None of a category.
    mean, low, high
        float64 [m] or [m, k]; posterior mean of the effect there, and its central interval.
    share, share_low, share_high
        Posterior mean of the share of the variance of the sum that is the effect's (a Sobol index),
        and its central interval.
    """

    columns: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    share: float
    share_low: float
    share_high: float


class ReadableSums:
    """Effects of columns on sums of trees, exact for each draw."""

    posterior_: Any
    schema_: Any
    prior_: Any
    is_classifier: Any
    classes_: np.ndarray
    _matrix: Any
    _training_rows: Any

    def effects(self, *, level: float = 0.9, pairs: int = 5, label: Any = None) -> list[Effect]:
        """Find the effects of the columns, and of the strongest pairs of columns.

        A sum is its mean, plus an effect of each column, plus one of each pair beside these, and so
        on; each has mean 0 over each of its columns. They are those of the functional ANOVA of
        every draw where columns are independent and distributed as in the training rows, of up to
        1,000: where columns go together, effects also tell of rows that do not occur. They are on
        the scale of the sum: of two classes log odds (or probits), of numbers ``target_scale_``.
        More classes have a sum each; effects are on that of one less the mean of all, a centred
        log probability, for only differences between the sums matter.

        Parameters
        ----------
        level
            Probability of the intervals, in (0, 1).
        pairs
            Most pairs of columns.
        label
            Of more than two classes that whose sum it is.

        Returns
        -------
        list of Effect
            Those of the largest shares first.

        Raises
        ------
        ValueError
            If an argument does not fit the model, or ``groups`` have slopes.

        Examples
        --------
        >>> import numpy as np
        >>> from bdtppl import BARTRegressor
        >>> X = np.random.default_rng(0).random((80, 2))
        >>> y = 3 * X[:, 0] + np.sin(6 * X[:, 1])
        >>> model = BARTRegressor(target_scale="identity", random_state=0).fit(X, y)
        >>> [effect.columns for effect in model.effects(pairs=0)]
        [('x0',), ('x1',)]
        """
        from bdtppl.plotting.rows import Rows

        require_level(level)
        require_integer("pairs", pairs, 0)
        found, rows = self._sum_effects(label), Rows.of(self)
        total = found.variance
        ends = [(1 - level) / 2, (1 + level) / 2]

        def effect(own: tuple[int, ...], values: Any, draws: np.ndarray, variance: Any) -> Effect:
            shares = variance / np.where(total > 0, total, 1.0)
            of_share = (shares.mean(), *np.quantile(shares, ends))
            low, high = np.quantile(draws, ends, axis=0)
            columns = tuple(rows.names[each] for each in own)
            return Effect(columns, values, draws.mean(axis=0), low, high, *map(float, of_share))

        values, matrix = self._along(rows, _LINE_POINTS)
        effects = [
            effect((own,), (values[own],), draws[:, : len(values[own])], found.moments[own][1])
            for own, draws in found.mains(matrix)
        ]
        values, matrix = self._along(rows, _PAIR_POINTS)
        for own in found.strongest_pairs(pairs):
            of_pair = tuple(values[each] for each in own)
            places = (matrix[: len(each)] for each in of_pair)
            effects.append(effect(own, of_pair, *found.pair(own, *places)))
        return sorted(effects, key=lambda each: -each.share)

    def fewest_columns(self, k: int, *, label: Any = None) -> dict[str, float]:
        """Find the columns that keep most of the predictions, one after the other.

        The posterior mean of the sum is projected on the effects of the columns chosen and of their
        pairs. Of columns that go together the first takes what they share.

        Parameters
        ----------
        k
            Number of columns.
        label
            Of more than two classes that whose sum it is.

        Returns
        -------
        dict
            By column, in the order in which they are chosen, the share of the variance of the
            posterior mean over the training rows that it and those before it keep.

        Raises
        ------
        ValueError
            If an argument does not fit the model, or ``groups`` have slopes.
        """
        require_integer("k", k, 1)
        names = [column.name for column in self.schema_.columns]
        return {names[own]: share for own, share in self._sum_effects(label).fewest_columns(k)}

    def _sum_effects(self, label: Any) -> SumEffects:
        """Effects on the sum of a class, or on the only sum, by the columns of the table."""
        from bdtppl.plotting.rows import class_index

        check_is_fitted(self)
        if len(self.prior_.groups) > 1:
            raise ValueError("Effects of columns are not found where groups have slopes.")
        which = 0
        if self.prior_.num_sums > 1:
            which = class_index(self, label, "label")
        elif label is not None:
            raise ValueError(f"label names one of several sums, and there is one; got {label!r}.")
        matrix, weights = self._training_rows()
        some = np.unique(np.linspace(0, len(matrix) - 1, _ROWS_READ).astype(int))
        column = np.array([source[0] for source in self.schema_.sources])
        return SumEffects(self.posterior_, which, column, matrix[some], weights[some])

    def _along(self, rows: Any, num_points: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Values along each column, and rows [m, d] whose first ones have these, of all columns."""
        from bdtppl.plotting.bands import Places

        groups = [self.schema_.sources[feature][0] for feature in self.prior_.groups]
        values: list[Any] = [
            np.unique(column)
            if own in groups
            else Places.along(self, rows, own, num_points, of_draws=True).values
            for own, column in enumerate(rows.columns)
        ]
        for own, column in enumerate(rows.columns):
            gap: Any = None if rows.names[own] in rows.levels else np.nan
            if any(map(is_missing, column)):
                values[own] = np.append(values[own], gap)
        return values, self._rows_of(rows.names, values)

    def _rows_of(self, names: Any, values: list[Any]) -> np.ndarray:
        """Make rows [m, d] whose first ones have the values of each column."""
        most = max(map(len, values))
        columns = [each[np.minimum(np.arange(most), len(each) - 1)] for each in values]
        return self._matrix(dict(zip(names, columns, strict=True)))
