"""What the compiled sweep reads: rows as bins, rules, and the prior's weights."""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior
from bdtppl.models.hard.leaf_scores import MOST_TABLED

MOST_BINS = 256  # a bin of a feature is one byte
USUAL_BINS = 100  # of a feature, at most
MOST_TREE_LEVELS = 6  # leaves of a tree are numbered by a byte


class RowTables(NamedTuple):
    """Rows and rules; n rows, d features in g groups, V bins and R rules of all groups together.

    A *group* is a feature, or the 0/1 features of one column of the design, such as the sets of
    levels of a category: its bins are the levels then, and a row is counted once for all sets.

    Attributes
    ----------
    bins
        uint8 [d, n]; the code of each value, or the last bin of the feature where it is missing.
        One feature after the other, for rules are followed by all rows at once.
    group_bins
        uint8 [g, n]; bins of groups, each of at most 256.
    offset
        int64 [g + 1]; first of the group's bins among all V.
    weights
        float64 [n]; the power of each row's likelihood.
    feature, last, missing
        int64 [R]; rule: a row goes left if its bin of the feature is at most ``last``, or is
        ``missing`` (-1 where the missing ones go right).
    run_rule, run_length, run_bin, run_missing
        int64 [runs]; runs of rules of one feature whose ``last`` is 0, 1, ...: the first rule,
        their number, and the positions among all V of the feature's first bin and of the missing
        values that go left (-1 for none). Groups of several features have none.
    group, first_rule
        int64 [R] and [g + 1]; group of each rule, and the first rule of each group.
    set_rule, goes_left
        int64 [S] and float64 [S, most]; rules of groups of several features, and 1 for each bin of
        the group that goes left. A rule of -1 is none.
    """

    bins: np.ndarray
    group_bins: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    feature: np.ndarray
    last: np.ndarray
    missing: np.ndarray
    run_rule: np.ndarray
    run_length: np.ndarray
    run_bin: np.ndarray
    run_missing: np.ndarray
    group: np.ndarray
    first_rule: np.ndarray
    set_rule: np.ndarray
    goes_left: np.ndarray

    @property
    def num_bins(self) -> int:
        """Number V of bins."""
        return int(self.offset[-1])


class SumPriorTables(NamedTuple):
    """The prior's weights.

    Attributes
    ----------
    log_stop, log_split
        float64 [levels + 1]; log probability of a leaf and of a split, by depth.
    rule
        float64 [R]; probability of each rule of a split.
    precision
        Of a leaf's value: 1 over its prior variance.
    min_leaf
        Fewest rows of a leaf.
    degrees, rate
        Of a leaf's value in a product of variances: degrees of freedom, and these times the scale;
        0 in a sum.
    log_gamma
        float64 [N + 1]; log Gamma((degrees + N) / 2) for rows of weight N; empty in a sum, and
        where weights are not whole or very large.
    """

    log_stop: np.ndarray
    log_split: np.ndarray
    rule: np.ndarray
    precision: float
    min_leaf: float
    degrees: float
    rate: float
    log_gamma: np.ndarray


def _bins_of(design: Design) -> np.ndarray:
    """Turn the codes of a design, -1 where missing, into bins, uint8 [n, d].

    Raises
    ------
    ValueError
        If a feature has more bins than a byte can tell apart.
    """
    if design.num_codes.max(initial=0) >= MOST_BINS:
        feature = int(design.num_codes.argmax())
        raise ValueError(
            f"Feature {design.names[feature]!r} has {design.num_codes[feature]} buckets, and sums "
            f"of trees read at most {MOST_BINS - 1}: lower bins."
        )
    return np.where(design.codes < 0, design.num_codes, design.codes).astype(np.uint8)


def row_tables(design: Design) -> RowTables:
    """Write a design out for the sweep."""
    cuts = design.num_codes.astype(np.int64) - 1
    runs = [
        (j, bool(to_left))
        for j in np.flatnonzero(cuts)
        for to_left in range(1 + int(design.has_missing[j]))
    ]
    of_run = np.array([j for j, _ in runs], np.int64)
    to_left = np.array([left for _, left in runs], bool)
    length = cuts[of_run]
    missing = np.where(to_left, cuts[of_run] + 1, -1)
    first = np.cumsum(length) - length
    feature, last = np.repeat(of_run, length), np.arange(length.sum()) - np.repeat(first, length)
    bins = np.ascontiguousarray(_bins_of(design).T)
    group, is_set = np.empty((2, design.num_features), np.int64)
    positions, sizes, set_rules, sides = [], [], [np.array([-1])], [np.zeros((1, 1))]
    for column in np.split(np.arange(design.num_features), design.first_of_column[1:]):
        is_set[column] = False
        if len(column) > 1 and cuts[column].max() == 1:
            patterns, of_row = np.unique(bins[column], axis=1, return_inverse=True)
            is_set[column] = patterns.shape[1] <= MOST_BINS
        if is_set[column[0]]:
            rule = np.flatnonzero(np.isin(feature, column))
            bin = patterns[feature[rule] - column[0]].astype(np.int64)
            left = bin == np.repeat(missing, length)[rule, None]
            set_rules.append(rule)
            sides.append(left | (bin <= last[rule, None]))
            group[column] = len(sizes)
            positions.append(of_row.ravel())
            sizes.append(patterns.shape[1])
            continue
        group[column] = len(sizes) + np.arange(len(column))
        positions.extend(bins[column])
        sizes.extend(cuts[column] + 1 + design.has_missing[column])
    offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    most = max(side.shape[1] for side in sides)
    in_run = is_set[of_run] == 0
    start = offset[group[of_run]]
    return RowTables(
        bins=bins,
        group_bins=np.array(positions, np.uint8) if is_set.any() else bins,
        offset=offset,
        weights=design.weights.astype(np.float64),
        feature=feature,
        last=last,
        missing=np.repeat(missing, length),
        run_rule=first[in_run],
        run_length=length[in_run],
        run_bin=start[in_run],
        run_missing=np.where(to_left, start + missing, -1)[in_run],
        group=group[feature],
        first_rule=np.searchsorted(group[feature], np.arange(len(sizes) + 1)),
        set_rule=np.concatenate(set_rules),
        goes_left=np.concatenate(
            [np.pad(side.astype(float), ((0, 0), (0, most - side.shape[1]))) for side in sides]
        ),
    )


def prior_tables(
    prior: AdditivePrior, rows: RowTables, feature_weight: np.ndarray
) -> SumPriorTables:
    """Write the prior out for the sweep, given the weights of features [d]."""
    split = np.asarray(prior.split_probability, np.float64)
    with np.errstate(divide="ignore"):
        log_split = np.log(split)
    return SumPriorTables(
        log_stop=np.log1p(-split),
        log_split=log_split,
        rule=chances_of_rules(rows, feature_weight),
        precision=float(prior.leaf_scale) ** -2,
        min_leaf=float(prior.min_leaf),
        degrees=0.0,
        rate=0.0,
        log_gamma=np.zeros(0),
    )


def chances_of_rules(rows: RowTables, feature_weight: np.ndarray) -> np.ndarray:
    """Share the weights of features [d] among their rules, float64 [R]."""
    num_rules = np.bincount(rows.feature, minlength=len(feature_weight))
    return (feature_weight / np.maximum(num_rules, 1))[rows.feature]


def noise_tables(prior: AdditivePrior, rows: RowTables, of_sum: SumPriorTables) -> SumPriorTables:
    """Write the prior of the product of variances out, given that of the sum."""
    degrees, scale = map(float, prior.noise_leaf)
    total, most = rows.weights.sum(), max(MOST_TABLED, len(rows.weights))
    is_tabled = total <= most and (rows.weights == np.rint(rows.weights)).all()
    counts = np.arange(int(total) + 1 if is_tabled else 0)
    return of_sum._replace(
        degrees=degrees, rate=degrees * scale, log_gamma=gammaln((degrees + counts) / 2)
    )
