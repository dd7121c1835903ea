"""What a prior may rule out.

Constraints remove rules from a node before the prior weighs the ones that are left, so a prior that
normalises over available rules is renormalised by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Constraints"]


@dataclass(frozen=True)
class Constraints:
    """Limits on the trees of a model.

    Attributes
    ----------
    min_leaf
        Fewest rows in a leaf, repeated ones counted as often as they are.
    max_depth
        Most levels of splits, the root's split being the first; None for no limit.
    features
        Indices or names of the features that rules may use; None for all. Estimators take the name
        of a categorical column for all its 0/1 features (`Schema.features_of`).

    Examples
    --------
    >>> Constraints(min_leaf=5, max_depth=3).max_depth
    3
    """

    min_leaf: int = 1
    max_depth: int | None = None
    features: tuple[int | str, ...] | None = None

    def __post_init__(self):
        if not _is_count(self.min_leaf, 1):
            raise ValueError(f"min_leaf must be an integer of at least 1; got {self.min_leaf!r}.")
        if self.max_depth is not None and not _is_count(self.max_depth, 0):
            raise ValueError(
                f"max_depth must be None or an integer of at least 0; got {self.max_depth!r}."
            )
        if isinstance(self.features, str):
            raise TypeError(f"features must be a list of names; got the text {self.features!r}.")
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))

    def allows(self, names: Sequence[str]) -> np.ndarray:
        """Which of the named features rules may use, bool [d].

        Raises
        ------
        ValueError
            If a feature in `features` does not exist.
        """
        if self.features is None:
            return np.ones(len(names), bool)
        allowed = np.zeros(len(names), bool)
        for feature in self.features:
            if isinstance(feature, str) and feature in names:
                allowed[list(names).index(feature)] = True
            elif not isinstance(feature, str) and 0 <= feature < len(names):
                allowed[feature] = True
            else:
                raise ValueError(
                    f"features names {feature!r}, which is not one of {', '.join(names[:10])}."
                )
        return allowed


def _is_count(value, least: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(is_integer and value >= least)
