"""Columns of the linear terms in sums of trees."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bdtppl.models.data.design import Design

_MOST_DEVIATIONS = 4.0  # new rows beyond this are clipped to it


class LinearColumns(NamedTuple):
    """The p columns of the linear terms, in blocks whose coefficients share a deviation.

    The first block has features with a cut, of mean 0 and variance 1; missing values are replaced
    by the mean, and values are clipped to four standard deviations from it. With groups of rows the
    next block has a column for each group, which is 1 in its rows, and each further block has one
    feature in these rows.

    Attributes
    ----------
    is_linear, feature
        Whether the first block exists, and int64 [f]; its features.
    slopes
        int64 [s]; features of the last blocks.
    mean, deviation
        float64 [d]; moments of the training rows, by feature.
    group
        Feature of the groups; -1 without groups.
    levels
        float64 [g]; its values.
    """

    is_linear: bool
    feature: np.ndarray
    slopes: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    group: int
    levels: np.ndarray

    @classmethod
    def of(
        cls, design: Design, is_linear: bool = True, groups: Sequence[int] = ()
    ) -> "LinearColumns":
        """Select the columns of a design.

        Parameters
        ----------
        design
            Training rows.
        is_linear
            Whether the first block exists.
        groups
            The feature of the groups, and then those whose slope each group has; empty without
            groups.

        Examples
        --------
        >>> design = Design.from_matrix(np.array([[1.0, 5.0], [3.0, 5.0], [np.nan, 5.0]]))
        >>> LinearColumns.of(design)(design.matrix).tolist()
        [[-1.0], [1.0], [0.0]]
        """
        columns = np.ma.masked_invalid(design.matrix)
        mean = np.ma.average(columns, axis=0, weights=design.weights)
        variance = np.ma.average((columns - mean) ** 2, axis=0, weights=design.weights)
        feature = np.flatnonzero(design.has_cut & is_linear)
        levels = np.unique(design.matrix[:, groups[0]]) if groups else np.zeros(0)
        moments = np.ma.filled(mean, 0.0), np.ma.filled(np.sqrt(variance), 0.0)
        group = groups[0] if groups else -1
        return cls(is_linear, feature, np.array(groups[1:], int), *moments, group, levels)

    @property
    def blocks(self) -> Iterator[slice]:
        """Columns of each block."""
        sizes = [len(self.feature)] * self.is_linear
        sizes += [len(self.levels)] * (self.group >= 0) * (1 + len(self.slopes))
        ends = np.cumsum([0, *sizes]).tolist()
        return map(slice, ends[:-1], ends[1:])

    def each(self, of_blocks: np.ndarray) -> np.ndarray:
        """Repeat numbers of blocks [..., b] for each of their columns, [..., p]."""
        sizes = [block.stop - block.start for block in self.blocks]
        return np.repeat(of_blocks, sizes, axis=-1)

    def signs(self, direction: Sequence[int]) -> np.ndarray:
        """Return the required signs of coefficients, int [p], from directions or none."""
        signs = np.zeros(max([0, *(block.stop for block in self.blocks)]), int)
        if len(direction):
            signs[: len(self.feature)] = np.asarray(direction)[self.feature]
        return signs

    def names(self, features: tuple[str, ...]) -> list[str]:
        """Name the columns by the features and the values of groups."""
        groups = [f"{features[self.group]}={level:g}" for level in self.levels.tolist()]
        slopes = [f"{group}, {features[j]}" for j in self.slopes.tolist() for group in groups]
        return [*(features[j] for j in self.feature.tolist()), *groups, *slopes]

    def __call__(self, matrix: Any) -> np.ndarray:
        """Compute the columns of rows [m, d], float64 [m, p]."""
        matrix = np.asarray(matrix, np.float64)
        parts = [self._standardised(matrix, self.feature)]
        if self.group >= 0:
            is_in = matrix[:, self.group, None] == self.levels
            parts += [is_in * factor[:, None] for factor in self._factors(matrix)]
        return np.concatenate(parts, axis=1)

    def of_new_groups(self, matrix: Any) -> np.ndarray:
        """Return each coefficient's factor at rows [m, d] of new groups, float64 [m, b].

        It is 0 in other rows.
        """
        matrix = np.asarray(matrix, np.float64)
        found = np.zeros((len(matrix), len(list(self.blocks))))
        if self.group >= 0:
            is_new = ~np.isin(matrix[:, self.group], self.levels)
            factors = self._factors(matrix)
            found[:, -len(factors) :] = np.transpose(factors) * is_new[:, None]
        return found

    def ends(self, feature: int) -> tuple[float, float]:
        """Values of a feature beyond which a column does not change."""
        mean, most = float(self.mean[feature]), _MOST_DEVIATIONS * float(self.deviation[feature])
        return mean - most, mean + most

    def _factors(self, matrix: np.ndarray) -> np.ndarray:
        """Return the factors of a group's effects, float64 [1 + s, m]: 1, and its features."""
        slopes = self._standardised(matrix, self.slopes)
        return np.vstack([np.ones(len(matrix)), slopes.T])

    def _standardised(self, matrix: np.ndarray, feature: np.ndarray) -> np.ndarray:
        columns = (matrix[:, feature] - self.mean[feature]) / self.deviation[feature]
        return np.clip(np.nan_to_num(columns), -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
