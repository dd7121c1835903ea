"""Constraints on trees.

Constraints remove rules from a node before the prior weights the others, so a prior that normalises
over available rules stays normalised.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 2 and Figure 1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from bdtppl.models.arguments import require_integer
from bdtppl.models.hard.path_memory import MOST_BITS, PathMemory

FUNCTIONS = ("allows_rule", "allows_path", "allows_tree")  # constraints that are functions

Feature = int | str


@dataclass(frozen=True)
class KeepTogether:
    """A box that must be inside one leaf: no split may cut it (the paper's Figure 1).

    A split at v of a feature on which the box spans [low, high] cuts it if low < v <= high and the
    node contains the whole box. The threshold in a gap between neighbouring values is chosen to
    spare every such box; it is the gap's middle if possible.

    Attributes
    ----------
    intervals
        Closed intervals by feature, index or name, as ``{feature: (low, high)}``; None or an
        infinite number is an open end. The box is unbounded in unnamed features, so no node that
        contains it may split on them. Stored as (feature, low, high) triples.

    Examples
    --------
    >>> KeepTogether({"x2": (None, 127), "x8": (None, 28)}).intervals
    (('x2', -inf, 127.0), ('x8', -inf, 28.0))
    """

    intervals: Any

    def __post_init__(self):
        if isinstance(self.intervals, Mapping):
            try:
                triples = tuple((name, *ends) for name, ends in self.intervals.items())
            except TypeError:
                triples = ()
        else:
            triples = tuple(self.intervals)
        if not triples or any(len(triple) != 3 for triple in triples):
            raise ValueError(
                f"A box needs intervals {{feature: (low, high)}}; got {self.intervals!r}."
            )
        object.__setattr__(self, "intervals", tuple(_interval(*triple) for triple in triples))


def _interval(feature: Feature, low: Any, high: Any) -> tuple[Feature, float, float]:
    ends = []
    for end, open_end in ((low, -np.inf), (high, np.inf)):
        if isinstance(end, bool) or not isinstance(end, int | float | np.number | None):
            raise ValueError(f"The box's ends on {feature!r} must be numbers; got {end!r}.")
        ends.append(open_end if end is None else float(end))
    if not ends[0] <= ends[1]:
        raise ValueError(f"The box on {feature!r} must span low <= high; got {ends}.")
    return feature, *ends


@dataclass(frozen=True)
class Constraints:
    """Limits on the trees of a model.

    Boxes, features at depths and orders depend on the path from the root. Mappings and lists are
    stored as tuples.

    Attributes
    ----------
    min_leaf
        Fewest rows in a leaf; a row counts once, whatever its weight.
    max_depth
        Most levels of splits, the root's split being the first; None for no limit.
    features
        Indices or names of the features that rules may use; None for all. Estimators take the name
        of a categorical column for all its 0/1 features (`Schema.features_of`).
    keep_together
        Boxes that no split may cut, `KeepTogether` each.
    features_at_depth
        Features that rules at a depth may use, ``{0: ("age",)}``, the root's depth being 0; other
        depths have no such limit.
    before
        Pairs of features, ``(("age", "start"),)``: rules on the second one are allowed only below a
        split on the first.
    monotone
        Directions by feature, ``{"dose": 1}``: 1 if posterior means of leaves (of class indices in
        classification) must not fall along the feature, -1 if they must not rise (see
        `is_monotone`). They depend on the leaves, so only Metropolis supports them.
    refused
        Pairs of a feature and a threshold, ``(("age", 27.5),)``: cuts of the table that no rule may
        use. They need a prior with ``rules="cuts"``.
    allows_rule
        Python function of a feature's name and a threshold: whether the rule is allowed. It is
        called once for every cut of the table, and excluded cuts are stored as ``refused``.
    allows_path
        Function of a `bdtppl.models.hard.asked_trees.Path`, in `jax.numpy`: whether a node below
        these splits is allowed. The prior is restricted to trees with allowed nodes only. Only
        Metropolis supports it, and a fit with it cannot be saved.
    allows_tree
        Function of a `bdtppl.models.prior_kinds.TreeShape`, likewise: whether a tree is allowed.

    Examples
    --------
    >>> Constraints(min_leaf=5, max_depth=3).max_depth
    3
    >>> Constraints(keep_together=[KeepTogether({"age": (18, None)})]).looks_at_path
    True
    >>> few = Constraints(allows_tree=lambda tree: (tree.is_split & (tree.feature == 0)).sum() < 2)
    >>> whole = Constraints(allows_rule=lambda name, threshold: name != "age" or threshold > 18)
    """

    min_leaf: int = 1
    max_depth: int | None = None
    features: tuple[Feature, ...] | None = None
    keep_together: Any = ()
    features_at_depth: Any = ()
    before: Any = ()
    monotone: Any = ()
    refused: Any = ()
    allows_rule: Callable[[str, float], Any] | None = None
    allows_path: Callable[[Any], Any] | None = None
    allows_tree: Callable[[Any], Any] | None = None

    def __post_init__(self):
        for name in FUNCTIONS:
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be a function; got {given!r}.")
        try:
            cuts = tuple((feature, float(threshold)) for feature, threshold in self.refused)
        except (TypeError, ValueError):
            raise ValueError(
                f"refused must list pairs of a feature and a threshold; got {self.refused!r}."
            ) from None
        object.__setattr__(self, "refused", cuts)
        require_integer("min_leaf", self.min_leaf)
        if self.max_depth is not None and not _is_count(self.max_depth, 0):
            raise ValueError(
                f"max_depth must be None or an integer of at least 0; got {self.max_depth!r}."
            )
        if isinstance(self.features, str):
            raise TypeError(f"features must be a list of names; got the text {self.features!r}.")
        if self.features is not None:
            object.__setattr__(self, "features", _read_features(self.features, "features"))
        boxes = self.keep_together
        boxes = (boxes,) if isinstance(boxes, KeepTogether) else tuple(boxes)
        if not all(isinstance(box, KeepTogether) for box in boxes):
            raise ValueError(f"keep_together must contain KeepTogether boxes; got {boxes!r}.")
        object.__setattr__(self, "keep_together", boxes)
        object.__setattr__(self, "features_at_depth", _levels(self.features_at_depth))
        pairs = _read_features(self.before, "before")
        if any(isinstance(pair, str) for pair in pairs):
            raise ValueError(f"before must list pairs of features; got {self.before!r}.")
        pairs = tuple(_read_features(pair, "before") for pair in pairs)
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"before must contain pairs of features; got {self.before!r}.")
        _require_order(pairs)
        object.__setattr__(self, "before", pairs)
        directions = self.monotone
        directions = directions.items() if isinstance(directions, Mapping) else directions
        try:
            directions = tuple((feature, direction) for feature, direction in directions)
        except (TypeError, ValueError):
            raise ValueError(
                f"monotone must map features to 1 or -1, as {{'dose': 1}}; got {self.monotone!r}."
            ) from None
        if any(isinstance(d, bool) or d not in (-1, 1) for _, d in directions):
            raise ValueError(f"monotone must give features 1 or -1; got {self.monotone!r}.")
        object.__setattr__(self, "monotone", directions)

    @property
    def looks_at_path(self) -> bool:
        """Return whether the rules of a node depend on more of its path than its rows and depth."""
        return bool(self.keep_together or self.features_at_depth or self.before)

    @property
    def judges_cuts(self) -> bool:
        """Return whether some cuts of a feature may be excluded and others not."""
        return bool(self.refused or self.allows_rule)

    def judged(self, design: Any) -> "Constraints":
        """Call ``allows_rule`` for each cut of a design; add excluded cuts to ``refused``."""
        if self.allows_rule is None:
            return self
        feature = np.repeat(np.arange(len(design.num_codes)), design.num_codes)
        is_cut = np.diff(feature, prepend=-1) == 0
        pairs = zip(
            np.array(design.names, object)[feature[is_cut]],
            design.cut_threshold[is_cut].tolist(),
            strict=True,
        )
        refused = [pair for pair in pairs if not self.allows_rule(*pair)]
        return replace(self, refused=(*self.refused, *refused), allows_rule=None)

    def unmet(self, design: Any) -> Iterator[tuple[str, float, list[float]]]:
        """Yield excluded cuts that a design lacks: feature, threshold and nearest cuts."""
        ends = np.cumsum(design.num_codes)
        for feature, threshold in self.refused:
            (place,) = _feature_places([feature], design.names, "refused")
            cuts = design.cut_threshold[ends[place] - design.num_codes[place] + 1 : ends[place]]
            if threshold not in cuts:
                at = int(np.searchsorted(cuts, threshold))
                yield str(design.names[place]), threshold, cuts[max(at - 1, 0) : at + 1].tolist()

    def refused_cuts(self, design: Any) -> np.ndarray:
        """Return for each flat code of a design whether the cut below it is excluded, bool [V].

        Raises
        ------
        ValueError
            If a feature does not exist.
        """
        is_refused = np.zeros(len(design.cut_threshold), bool)
        ends = np.cumsum(design.num_codes)
        for feature, threshold in self.refused:
            (place,) = _feature_places([feature], design.names, "refused")
            own = slice(ends[place] - design.num_codes[place], ends[place])
            is_refused[own] |= design.cut_threshold[own] == threshold
        return is_refused

    def allows(self, names: Sequence[str]) -> np.ndarray:
        """Return which of the named features rules may use anywhere, bool [d].

        Raises
        ------
        ValueError
            If a feature that any of the constraints names does not exist.
        """
        self.path_memory(names)
        self.directions(names)
        if self.features is None:
            return np.ones(len(names), bool)
        allowed = np.zeros(len(names), bool)
        allowed[_feature_places(self.features, names, "features")] = True
        return allowed

    def directions(self, names: Sequence[str]) -> np.ndarray | None:
        """Return directions along these features, int [d] of -1, 0 or 1; None if none.

        Raises
        ------
        ValueError
            If a feature does not exist.
        """
        if not self.monotone:
            return None
        direction = np.zeros(len(names), int)
        features, directions = zip(*self.monotone, strict=True)
        direction[_feature_places(features, names, "monotone")] = directions
        return direction

    def require_free_leaves(self, inference: str) -> None:
        """Reject constraints on whole trees for an inference that scores nodes one by one.

        Raises
        ------
        ValueError
            If any feature is monotone, or there is a function of paths or trees.
        """
        for name in ("allows_path", "allows_tree"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{inference} cannot use {name}, which depends on more than single "
                    "nodes: use a Metropolis tree."
                )
        if self.monotone:
            raise ValueError(
                f"{inference} cannot use monotone features, which couple the leaves of a "
                "tree: use a Metropolis tree."
            )

    def path_memory(self, names: Sequence[str]) -> PathMemory | None:
        """Tabulate the path constraints, for features of these names; None if there are none.

        Raises
        ------
        ValueError
            If a feature does not exist, or the constraints exceed the bits of a memory.
        """
        if not self.looks_at_path:
            return None
        num_features = len(names)
        low = np.full((len(self.keep_together), num_features), -np.inf)
        high = np.full((len(self.keep_together), num_features), np.inf)
        for place, box in enumerate(self.keep_together):
            where = _feature_places(
                [feature for feature, _, _ in box.intervals], names, "keep_together"
            )
            low[place, where] = [end for _, end, _ in box.intervals]
            high[place, where] = [end for _, _, end in box.intervals]
        pairs = [_feature_places(pair, names, "before") for pair in self.before]
        firsts = sorted({first for first, _ in pairs})
        num_levels = 1 + max((depth for depth, _ in self.features_at_depth), default=-1)
        first_level = len(low) + len(firsts)
        if first_level + num_levels > MOST_BITS:
            raise ValueError(
                f"A node can remember {MOST_BITS} things of its path, but {len(low)} boxes "
                f"(keep_together), {len(firsts)} features (before) and {num_levels} levels "
                f"(features_at_depth) are {first_level + num_levels}."
            )
        bit = [np.uint64(1 << place) for place in range(MOST_BITS)]
        forbids, clears = np.zeros((2, num_features), np.uint64)
        for place, first in enumerate(firsts, start=len(low)):
            clears[first] |= bit[place]
            forbids[[then for each, then in pairs if each == first]] |= bit[place]
        for depth, allowed in self.features_at_depth:
            is_allowed = np.zeros(num_features, bool)
            is_allowed[_feature_places(allowed, names, "features_at_depth")] = True
            forbids[~is_allowed] |= bit[first_level + depth]
        levels = sum(1 << place for place in range(first_level, first_level + num_levels))
        start = (1 << first_level) - 1 + ((1 << first_level) if num_levels else 0)
        by_low, by_high = np.argsort(low, axis=0), np.argsort(-high, axis=0)
        return PathMemory(
            low, high, forbids, clears, np.uint64(levels), np.uint64(start), by_low, by_high
        )


def _is_count(value, least: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(is_integer and value >= least)


def _read_features(given: Any, what: str) -> tuple[Feature, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray | set | frozenset):
        raise ValueError(f"{what} must list features; got {given!r}.")
    return tuple(given)


def _require_order(pairs: Sequence[Sequence[Feature]]) -> None:
    """Reject pairs that would require a feature to be below itself."""
    order = TopologicalSorter()
    for first, then in pairs:
        order.add(then, first)
    try:
        order.prepare()
    except CycleError as error:
        circle = " before ".join(repr(feature) for feature in error.args[1])
        raise ValueError(f"before must not have a cycle; got {circle}.") from None


def _levels(given: Any) -> tuple[tuple[int, tuple[Feature, ...]], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    if not isinstance(given, Mapping | tuple | list):
        raise ValueError(f"features_at_depth must map depths to features; got {given!r}.")
    levels = tuple(
        sorted((depth, _read_features(some, "features_at_depth")) for depth, some in pairs)
    )
    for depth, _ in levels:
        if not _is_count(depth, 0):
            raise ValueError(
                f"features_at_depth must name depths of at least 0, the root's; got {depth!r}."
            )
    return levels


def _feature_places(features: Sequence[Feature], names: Sequence[str], what: str) -> list[int]:
    """Return the places of features, given by index or name, among the names."""
    places = []
    for feature in features:
        if isinstance(feature, str) and feature in names:
            places.append(list(names).index(feature))
        elif isinstance(feature, int | np.integer) and 0 <= feature < len(names):
            places.append(int(feature))
        else:
            raise ValueError(
                f"{what} names {feature!r}, which is not one of {', '.join(names[:10])}."
            )
    return places
