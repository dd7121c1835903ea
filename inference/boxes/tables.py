"""Input tables of the compiled recursion over boxes, and room for its output."""

from typing import NamedTuple

import numpy as np


class GroupTables(NamedTuple):
    """One group of boxes of a level; k features are cut, d can be cut.

    Attributes
    ----------
    values, keys
        Prefix sums [cells, d, width, s] and [cells, d, width, 1] (`BoxHistograms.prefix_sums`).
    own
        int64 [k]; the cut features.
    side_low, side_high, side_missing
        int64 [k, most sides]; the sides of each.
    shape
        int64 [k]; number of sides.
    lengths
        int64 [k]; entries of the prefix sums along each.
    offset
        Number of the group's first box in its level.
    is_last
        Whether children are leaves.
    child_offset, child_step
        int64 [d, 3]; first box of the child group by the rule's feature and the kind of the child's
        side, and step of that side; unused on the last level.
    child_stride
        int64 [d, 3, k]; steps of the sides of the k features in the child group.
    allowed
        bool [d]; features that rules may use.
    column, num_codes, has_missing
        [d].
    side_place
        int64 [d, 2, width, width]; place of each side among those of its kind.
    middle
        int64 [d, width, width]; cut nearest to the middle of the gap between two codes.
    gap_width
        float64 [d, width, width]; width of the gap between two codes.
    min_leaf
        Fewest rows in a leaf.
    each_cut
        Whether all cuts of a gap are rules.
    """

    values: np.ndarray
    keys: np.ndarray
    own: np.ndarray
    side_low: np.ndarray
    side_high: np.ndarray
    side_missing: np.ndarray
    shape: np.ndarray
    lengths: np.ndarray
    offset: int
    is_last: bool
    child_offset: np.ndarray
    child_step: np.ndarray
    child_stride: np.ndarray
    allowed: np.ndarray
    column: np.ndarray
    num_codes: np.ndarray
    has_missing: np.ndarray
    side_place: np.ndarray
    middle: np.ndarray
    gap_width: np.ndarray
    min_leaf: float
    each_cut: bool


class PriorTables(NamedTuple):
    """A prior's weights on one level, by the counts it uses (`bdtppl.inference.boxes.weights`).

    Attributes
    ----------
    split
        float64, flat; log weight of all rules that an entry represents.
    rule
        The same for one of them, as the prior counts trees.
    stop
        float64 [d + 1]; log weight of stopping by the number of features with a rule.
    stop_below
        Log weight of stopping below the last level.
    strides
        int64 [5]; steps by feature, number of features with a rule, cuts of the gap, cuts of the
        feature, and rules that make the same partition.
    reads_width
        Whether the log of the gap's share of its feature's width is added.
    reads_partitions
        Whether equal partitions are counted.
    feature_weight
        float64 [d]; added to the log weight of the feature's rules.
    """

    split: np.ndarray
    rule: np.ndarray
    stop: np.ndarray
    stop_below: float
    strides: np.ndarray
    reads_width: bool
    reads_partitions: bool
    feature_weight: np.ndarray


class LeafTables(NamedTuple):
    """A leaf family's scores (`bdtppl.inference.boxes.weights`).

    Attributes
    ----------
    address, tables, numbers
        `bdtppl.models.leaf_kernels.LeafKernel`. If the address is 0, scores are given.
    skipped
        1 if the statistics are a row count followed by those of the family, else 0.
    sums_to_rows
        Whether the statistics are counts whose sum is the number of rows.
    is_silent
        Whether all scores are 0, as for sums over the prior alone.
    first
        Box of the group at which the given scores start.
    own
        float64 [boxes]; given scores of the boxes.
    left, right
        float64 [boxes, d, 2, width]; given scores of both sides of rules, by whether missing values
        go left, and by the number of codes on the left.
    """

    address: int
    tables: np.ndarray
    numbers: np.ndarray
    skipped: int
    sums_to_rows: bool
    is_silent: bool
    first: int
    own: np.ndarray
    left: np.ndarray
    right: np.ndarray


class BoxRules(NamedTuple):
    """Room for the rules of one box, r entries.

    Attributes
    ----------
    feature, low, high, missing_left
        int64 [r]; codes on both sides of the entry's gap, and where missing values go.
    num_cuts
        int64 [r]; number of rules that the entry represents.
    key
        uint64 [r]; key of the partition.
    split, rule
        float64 [r]; log weights of the entry and of one of its rules.
    below
        float64 [r]; log Q of both children.
    left, right
        int64 [r]; numbers of the children in the next level, for the cut in the middle.
    """

    feature: np.ndarray
    low: np.ndarray
    high: np.ndarray
    missing_left: np.ndarray
    num_cuts: np.ndarray
    key: np.ndarray
    split: np.ndarray
    rule: np.ndarray
    below: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def empty(cls, size: int) -> "BoxRules":
        """Make room for a number of rules."""
        types = ("i8",) * 5 + ("u8",) + ("f8",) * 3 + ("i8",) * 2
        return cls(*(np.zeros(size, each) for each in types))


class BoxUsage(NamedTuple):
    """Expectations under the posterior, summed by the outside pass.

    Attributes
    ----------
    split
        float64, as `PriorTables.split`; expected uses of each weight.
    stop
        float64 [d + 1]; expected leaves by the number of features with a rule.
    cuts
        float64 [d, width]; expected splits by feature and cut.
    entropy
        float64 [1]; entropy of the choices so far, in nats.
    """

    split: np.ndarray
    stop: np.ndarray
    cuts: np.ndarray
    entropy: np.ndarray

    @classmethod
    def empty(cls, num_weights: int, num_features: int, width: int) -> "BoxUsage":
        """Start with zeros."""
        return cls(
            np.zeros(num_weights),
            np.zeros(num_features + 1),
            np.zeros((num_features, width)),
            np.zeros(1),
        )


class LeafEvents(NamedTuple):
    """Room for leaves found by the outside pass.

    Attributes
    ----------
    box
        int64 [e]; box of the group that stops, or whose rule makes the leaf on the last level.
    feature, cut, missing_left
        int64 [e]; the rule, with feature -1 if the box itself stops.
    is_right
        int64 [e]; side of the rule.
    weight
        float64 [e]; expected number of such leaves in a tree.
    statistics
        float64 [e, s].
    """

    box: np.ndarray
    feature: np.ndarray
    cut: np.ndarray
    missing_left: np.ndarray
    is_right: np.ndarray
    weight: np.ndarray
    statistics: np.ndarray

    @classmethod
    def empty(cls, size: int, num_values: int) -> "LeafEvents":
        """Make room for a number of leaves."""
        box, feature, cut, missing_left, is_right = np.zeros((5, size), np.int64)
        weight, statistics = np.zeros(size), np.zeros((size, num_values))
        return cls(box, feature, cut, missing_left, is_right, weight, statistics)
