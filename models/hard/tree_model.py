"""What every inference over hard trees takes: a table, targets, a prior, a leaf family, limits."""

from typing import Any, NamedTuple

import numpy as np

from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import Leaf

__all__ = ["TreeModel"]


class TreeModel(NamedTuple):
    """The model of hard trees of one table, made once by an estimator.

    Its members stand in the order in which inferences take them: ``sample(rng_key, *model)``.

    Attributes
    ----------
    design
        Training rows [n].
    y
        Targets [n].
    prior
        Tree prior.
    leaf
        Leaf family.
    constraints
        Limits of the trees.
    """

    design: Design
    y: np.ndarray
    prior: Any
    leaf: Leaf
    constraints: Constraints
