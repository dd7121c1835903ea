"""Effects of columns on sums of trees: functional ANOVA of each draw, exact from its terms.

f(x) = mean + sum of main effects + sum of effects of pairs + ..., where each effect has mean 0 over
each of its columns, given that columns are independent and each has the distribution that it has in
reference rows (Hooker 2007, Generalized functional ANOVA diagnostics, with a product density). The
variance of f is the sum of those of the effects then (Sobol indices are shares of it). A column is
one feature, or all those that a category of the table became. The mean of a box over some columns
is the product of their probabilities, so a term stays a term when columns are averaged out.

Of several sums f is one of them less the mean of all: a softmax tells only their differences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from bdtppl.inference.additive.complete_trees import inlined, vectorised
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.terms import BoxTerms, Evaluation, bins_of

MOST_PAIRS = 50
"""Pairs of columns whose effects are compared."""


@dataclass(frozen=True, eq=False)
class SumEffects:
    """Effects of columns on f, one sum of each draw s of a posterior, less the mean of several.

    Attributes
    ----------
    posterior
        Draws of sums, without slopes of groups.
    which
        Number of the sum.
    column
        int [d]; of each feature, from 0 on.
    matrix, weights
        Reference rows [n, d], and their weights [n].
    """

    posterior: SumPosterior
    which: int
    column: np.ndarray
    matrix: np.ndarray
    weights: np.ndarray
    _terms: BoxTerms = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_terms", self.posterior.terms.added(self._share))

    @property
    def _share(self) -> np.ndarray:
        """Factors of the sums in f, float64 [sums]."""
        number = self.posterior.prior.num_sums
        return np.eye(number)[self.which] - (1 / number if number > 1 else 0)

    def at(self, matrix: np.ndarray) -> np.ndarray:
        """Compute f at rows [m, d], float64 [s, m]."""
        return (self._share @ self.posterior.sums(matrix)).reshape(-1, len(matrix))

    @cached_property
    def _bins(self) -> np.ndarray:
        return bins_of(self.posterior.design, self.matrix)

    @cached_property
    def _law(self) -> np.ndarray:
        return self.weights / self.weights.sum()

    @cached_property
    def _states(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Distinct bins of each column's features, uint8 [features, v], and their shares [v]."""
        found = []
        for own in range(int(self.column.max(initial=-1)) + 1):
            bins = self._bins[self.column == own]
            states, place = np.unique(bins, axis=1, return_inverse=True)
            found.append((states, np.bincount(place.ravel(), self._law)))
        return found

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same in arrays: bins by feature, uint8 [d, most], and shares [columns, most].

        And shares below each bin of columns of one feature, [columns, 257], 0 of others.
        """
        most = max((len(share) for _, share in self._states), default=0)
        bins = np.zeros((len(self.column), most), np.uint8)
        shares, below = np.zeros((len(self._states), most)), np.zeros((len(self._states), 257))
        for own, (states, share) in enumerate(self._states):
            bins[self.column == own, : len(share)] = states
            shares[own, : len(share)] = share
            if len(states) == 1:
                below[own, 1:] = np.bincount(states[0], share, 256).cumsum()
        return bins, shares, below

    @cached_property
    def _column_of(self) -> np.ndarray:
        """Column of each feature of a term, int [t, most]; -1 of none."""
        return np.append(self.column, -1)[self._terms.feature]

    @cached_property
    def _probability(self) -> np.ndarray:
        """Probability that a row is in a box, by the column of each of its features, [t, most].

        1 where a feature before has the same column, and of no feature.
        """
        found = np.ones(self._terms.feature.shape)
        _find_probabilities(self._terms, self._column_of, *self._tables, found)
        return found

    @property
    def mean(self) -> np.ndarray:
        """Mean of f, float64 [s]."""
        terms, number = self._terms, len(self._terms.constant)
        value = terms.value * self._probability.prod(axis=1)
        trees = terms.constant + np.bincount(terms.which, value, number)
        linear = self._coefficients @ (self._law @ self._linear_columns(self.matrix))
        return trees + linear + self._share @ self.posterior.prior.offsets

    @property
    def variance(self) -> np.ndarray:
        """Variance of f, float64 [s]: that of main effects, and of all others together."""
        terms, column, probability = self._terms, self._column_of, self._probability
        several = ((column != column[:, :1]) & (column >= 0)).any(axis=1)
        terms = BoxTerms(terms.constant, *(each[several] for each in terms[1:]))
        first = np.searchsorted(terms.which, np.arange(len(terms.constant) + 1))
        total = np.zeros(len(terms.constant))
        _add_interactions(terms, first, column[several], probability[several], *self._tables, total)
        return total + sum(variance for _, variance in self.moments.values())

    def mains(self, matrix: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Compute the main effects of columns at rows [m, d]: columns, and float64 [s, m] of each.

        The effect of a column depends on its own values alone.
        """
        for own, found in self._added(bins_of(self.posterior.design, matrix), matrix):
            yield own, found - self.moments[own][0][:, None]

    @cached_property
    def moments(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By column, mean and variance of what it adds at the reference rows, float64 [s] each."""
        moments = {}
        for own, found in self._added(self._bins, self.matrix):
            mean = found @ self._law
            moments[own] = mean, (found - mean[:, None]) ** 2 @ self._law
        return moments

    def _added(self, bins: np.ndarray, matrix: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Compute what each column adds at rows, float64 [s, m]."""
        columns = self._linear_columns(matrix)
        for own in self.used:
            yield own, self._given([own])(bins) + self._linear(own, columns)

    def pair(
        self,
        own: tuple[int, int],
        first: np.ndarray,
        second: np.ndarray,
        *,
        of_mean: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Effect of a pair of columns beside their main effects, and its variance.

        Parameters
        ----------
        own
            The two columns.
        first, second
            Rows [m, d] and [k, d]; values of the one column and of the other.
        of_mean
            Whether for the mean of the draws alone.

        Returns
        -------
        tuple
            float64 [s, m, k], and [s].
        """
        (states, law), (others, other_law) = (self._states[each] for each in own)
        rows = np.hstack([states, bins_of(self.posterior.design, first)[self.column == own[0]]])
        columns = np.hstack([others, bins_of(self.posterior.design, second)[self.column == own[1]]])
        size = rows.shape[1], columns.shape[1]
        bins = np.zeros((len(self.column), size[0] * size[1]), np.uint8)
        bins[self.column == own[0]] = np.repeat(rows, size[1], axis=1)
        bins[self.column == own[1]] = np.tile(columns, size[0])
        effect = self._given(own, of_mean=of_mean)(bins).reshape(-1, *size)
        m, k = len(law), len(other_law)
        effect = effect - np.einsum("a,sab->sb", law, effect[:, :m])[:, None]
        effect = effect - np.einsum("sab,b->sa", effect[:, :, :k], other_law)[..., None]
        variance = np.einsum("sab,a,b->s", effect[:, :m, :k] ** 2, law, other_law)
        return effect[:, m:, k:], variance

    def strongest_pairs(self, number: int) -> list[tuple[int, int]]:
        """Find pairs of columns whose effects in the mean of the draws vary most."""
        terms, size, column = self._terms, len(self._states), self._column_of
        spread = np.sqrt(self._probability * (1 - self._probability))
        scores = np.zeros(size * size)
        for a, b in combinations(range(terms.feature.shape[1]), 2):
            has = (column[:, a] >= 0) & (column[:, b] >= 0) & (column[:, a] != column[:, b])
            pair = np.sort(column[has][:, [a, b]], axis=1) @ [size, 1]
            score = np.abs(terms.value[has]) * spread[has, a] * spread[has, b]
            scores += np.bincount(pair, score, size * size)
        likely = np.argsort(-scores, kind="stable")[:MOST_PAIRS]
        pairs = [divmod(int(pair), size) for pair in likely if scores[pair] > 0]
        none = self.matrix[:0]
        variance = [self.pair(pair, none, none, of_mean=True)[1][0] for pair in pairs]
        return [pairs[place] for place in np.argsort(variance)[::-1][:number]]

    def fewest_columns(self, number: int) -> list[tuple[int, float]]:
        """Find the columns that keep most of the mean of the draws, one after the other.

        The mean is projected, by least squares over the reference rows, on the main effects of the
        columns chosen and the effects of their pairs (as Piironen, Paasiniemi and Vehtari 2020,
        Projective inference in high-dimensional problems, project a posterior).

        Returns
        -------
        list
            Columns, each with the share of the variance that it and those before it keep.
        """
        effects: dict[tuple[int, ...], np.ndarray] = {
            (own,): each.mean(axis=0) for own, each in self.mains(self.matrix)
        }
        for pair in self.strongest_pairs(MOST_PAIRS):
            effects[pair] = self._given(pair, of_mean=True)(self._bins)[0]
        target = self.at(self.matrix).mean(axis=0)
        root = np.sqrt(self._law)
        target = root * (target - self._law @ target)
        scaled = {key: root * (each - self._law @ each) for key, each in effects.items()}
        chosen: list[tuple[int, float]] = []
        for _ in range(min(number, len(self.used))):
            kept = {}
            for own in self.used:
                columns = {own, *(before for before, _ in chosen)}
                if len(columns) > len(chosen):
                    basis = [each for key, each in scaled.items() if columns.issuperset(key)]
                    fitted = np.transpose(basis) @ np.linalg.lstsq(np.transpose(basis), target)[0]
                    kept[own] = 1 - np.sum((target - fitted) ** 2) / np.sum(target**2)
            best = max(kept, key=lambda own: kept[own])
            chosen.append((best, float(kept[best])))
        return chosen

    def shapley(self, matrix: np.ndarray, background: np.ndarray) -> np.ndarray:
        """Interventional Shapley values of f at rows, float64 [s, m, columns].

        Columns that are not known have the values of a background row, and the values are means
        over these rows (Lundberg and others 2020, From local explanations to global understanding
        with explainable AI for trees). A term with k columns takes 2^k steps.

        Parameters
        ----------
        matrix, background
            Rows [m, d] and [b, d].
        """
        terms, design = self._terms, self.posterior.design
        found = np.zeros((len(terms.constant), len(matrix), len(self._states)))
        bins, others = bins_of(design, matrix), bins_of(design, background)
        _add_shapley(terms, self._column_of, bins, others, found)
        columns = self._linear_columns(matrix) - self._linear_columns(background).mean(axis=0)
        for own in self.used:
            found[..., own] += self._linear(own, columns)
        return found

    def alike(self, own: int, rows: np.ndarray) -> np.ndarray:
        """Find, for each reference row, the first of rows [m, d] with its bins of a column."""
        bins = bins_of(self.posterior.design, rows)[self.column == own]
        return (bins[:, None] == self._bins[self.column == own][:, :, None]).all(axis=0).argmax(1)

    def slope(self, feature: int) -> tuple[float, float | None, float | None]:
        """Find the slope of the linear term in a feature, and where it begins and ends, if it does.

        The slope is that of the mean of the draws.
        """
        prior = self.posterior.prior
        if feature == prior.offset_feature:
            return float(prior.offset_factor), None, None
        columns = self.posterior.linear_columns
        if feature not in columns.feature:
            return 0.0, None, None
        mean = self._coefficients[:, np.flatnonzero(columns.feature == feature)].mean(axis=0).sum()
        return float(mean / columns.deviation[feature]), *columns.ends(feature)

    @cached_property
    def used(self) -> list[int]:
        """Columns with an effect."""
        return sorted({*self._column_of.ravel().tolist(), *self._linear_column.tolist()} - {-1})

    @cached_property
    def _linear_column(self) -> np.ndarray:
        """Column of each coefficient of the linear terms, and offset, int [p]; -1 of none."""
        features, posterior = [], self.posterior
        if posterior.linear is not None:
            columns = posterior.linear_columns
            features = [*columns.feature, *[columns.group] * len(columns.levels)]
            features += [columns.group] * len(list(columns.blocks))  # of new groups
        if posterior.prior.offset_feature is not None:
            features.append(posterior.prior.offset_feature)
        return np.append(self.column, -1)[np.array(features, int)]

    @cached_property
    def _coefficients(self) -> np.ndarray:
        """The same coefficients in each draw, float64 [s, p]."""
        found = np.ones((len(self._terms.constant), len(self._linear_column)))
        if self.posterior.linear is not None:
            every = [self.posterior.linear, self.posterior.new_effects]
            linear = (self._share @ np.concatenate(every, axis=-1)).reshape(len(found), -1)
            found[:, : linear.shape[1]] = linear
        return found

    def _linear_columns(self, matrix: np.ndarray) -> np.ndarray:
        """Compute what they are multiplied by at rows [m, d], float64 [m, p]."""
        posterior = self.posterior
        parts: list[Any] = [np.zeros((len(matrix), 0))]
        if posterior.linear is not None:
            columns = posterior.linear_columns
            parts += [columns(matrix), columns.of_new_groups(matrix)]
        if (feature := posterior.prior.offset_feature) is not None:
            parts.append(posterior.prior.offset_factor * matrix[:, [feature]])
        return np.hstack(parts)

    def _linear(self, own: int, columns: np.ndarray) -> np.ndarray:
        """Compute what the linear columns [m, p] of one column add, float64 [s, m]."""
        chosen = self._linear_column == own
        return np.einsum("sp,mp->sm", self._coefficients[:, chosen], columns[:, chosen])

    def _given(self, kept: Sequence[int], *, of_mean: bool = False) -> Evaluation:
        """Average the terms that have all of some columns over all other columns."""
        column = self._column_of
        has_all = np.all([(column == own).any(axis=1) for own in kept], axis=0)
        terms = self._terms
        terms = BoxTerms(np.zeros_like(terms.constant), *(each[has_all] for each in terms[1:]))
        is_kept = np.isin(column[has_all], kept)
        terms = terms.restricted(is_kept, np.where(is_kept, 1.0, self._probability[has_all]))
        return Evaluation(terms.mean() if of_mean else terms, self.posterior.design.num_codes)


@inlined
def _inside(terms, column, t, own, bins, place):
    """Whether a row is in the box of a term by the features of one column."""
    inside = True
    for c in range(terms.order[t]):
        if column[t, c] == own:
            bin = bins[terms.feature[t, c], place]
            inside &= (terms.low[t, c] <= bin) & (bin <= terms.high[t, c])
    return inside


@inlined
def _joint(terms, column, t, c, u, e, bins, law, below):
    """Probability that a row is in the boxes of two terms by the features of one column."""
    own, joint = column[t, c], 0.0
    if below[own, -1] > 0:
        low, high = max(terms.low[t, c], terms.low[u, e]), min(terms.high[t, c], terms.high[u, e])
        joint = max(below[own, high + 1] - below[own, low], 0.0)
    for v in range(law.shape[1] if below[own, -1] == 0 else 0):
        is_in = law[own, v] > 0 and _inside(terms, column, t, own, bins, v)
        if is_in and _inside(terms, column, u, own, bins, v):
            joint += law[own, v]
    return joint


@inlined
def _is_first(column, t, c):
    """Whether no feature before has the same column."""
    is_first = True
    for before in range(c):
        is_first &= column[t, before] != column[t, c]
    return is_first


@vectorised
def _find_probabilities(terms, column, bins, law, below, found):
    """Find the probability of each column of each term, at the first of its features."""
    for t in range(len(found)):
        for c in range(terms.order[t]):
            if _is_first(column, t, c):
                found[t, c] = _joint(terms, column, t, c, t, c, bins, law, below)


@inlined
def _rest(probability, t, left_out):
    """Multiply the probabilities of a term by all columns but one."""
    product = 1.0
    for c in range(probability.shape[1]):
        if c != left_out:
            product *= probability[t, c]
    return product


@vectorised
def _add_interactions(terms, first, column, probability, bins, law, below, found):
    """Add the covariances of all terms of each sum up, less those of their main effects."""
    for s in range(len(found)):
        for t in range(first[s], first[s + 1]):
            for u in range(first[s], t + 1):
                both = apart = 1.0
                mains = 0.0
                for c in range(terms.order[t]):
                    if not _is_first(column, t, c):
                        continue
                    place = -1
                    for e in range(terms.order[u]):
                        if column[u, e] == column[t, c] and place < 0:
                            place = e
                    if place < 0:
                        both *= probability[t, c]
                        apart *= probability[t, c]
                        continue
                    joint = _joint(terms, column, t, c, u, place, bins, law, below)
                    product = probability[t, c] * probability[u, place]
                    both *= joint
                    apart *= product
                    rest = _rest(probability, t, c) * _rest(probability, u, place)
                    mains += (joint - product) * rest
                for e in range(terms.order[u]):
                    is_shared = False
                    for c in range(terms.order[t]):
                        is_shared |= column[u, e] == column[t, c]
                    if not is_shared:
                        both *= probability[u, e]
                        apart *= probability[u, e]
                value = terms.value[t] * terms.value[u] * (1.0 if t == u else 2.0)
                found[s] += value * (both - apart - mains)


@inlined
def _pattern(terms, column, t, own, count, bins, place):
    """Which of a term's columns have a row in the box, as bits."""
    pattern = 0
    for k in range(count):
        pattern |= _inside(terms, column, t, own[k], bins, place) << k
    return pattern


@vectorised
def _add_shapley(terms, column, bins, others, found):
    """Add the Shapley values of all terms; ``found`` [s, m, columns] is changed."""
    levels = terms.feature.shape[1]
    own = np.empty(levels, np.int64)
    factorial = np.ones(levels + 1)
    for k in range(1, levels + 1):
        factorial[k] = k * factorial[k - 1]
    share = np.empty(1 << levels)
    value = np.empty((1 << levels, levels))
    for t in range(len(terms.value)):
        count = 0
        for c in range(terms.order[t]):
            if _is_first(column, t, c):
                own[count] = column[t, c]
                count += 1
        every = 1 << count
        share[:every] = 0.0
        for i in range(others.shape[1]):
            share[_pattern(terms, column, t, own, count, others, i)] += 1 / others.shape[1]
        for row in range(every):
            value[row] = 0.0
            for other in range(every):
                if row | other != every - 1 or share[other] == 0:
                    continue
                # The box holds once all columns of the row that it needs are known, and none of
                # those that keep the row out.
                needed = kept_out = 0
                for k in range(count):
                    needed += (row & ~other) >> k & 1
                    kept_out += (other & ~row) >> k & 1
                orders = factorial[needed + kept_out]
                for k in range(count):
                    if (row & ~other) >> k & 1:
                        chance = factorial[needed - 1] * factorial[kept_out] / orders
                        value[row, k] += terms.value[t] * share[other] * chance
                    elif (other & ~row) >> k & 1:
                        chance = factorial[needed] * factorial[kept_out - 1] / orders
                        value[row, k] -= terms.value[t] * share[other] * chance
        for i in range(bins.shape[1]):
            row = _pattern(terms, column, t, own, count, bins, i)
            for k in range(count):
                found[terms.which[t], i, own[k]] += value[row, k]
