"""The model of hard trees for all inferences over them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bdtppl.models.constraints import Constraints
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior, require_rules_apart
from bdtppl.models.priors import excluding


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A table, its targets, a tree prior, a leaf family and the limits of the trees.

    Attributes
    ----------
    design
        Training rows [n]: a `Design`, or a `SparseDesign` for greedy trees.
    y
        Targets [n].
    prior
        Tree prior.
    leaf
        Leaf family.
    constraints
        Limits of the trees. Rules that a function excludes or that have weight 0 are stored as
        `refused` (see `bdtppl.models.priors.excluding`).

    Raises
    ------
    ValueError
        If the targets do not fit the rows, or the prior does not fit the constraints.
    """

    design: Any
    y: np.ndarray
    prior: TreePrior
    leaf: Leaf
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self):
        object.__setattr__(self, "y", np.asarray(self.y))
        num_rows = self.design.num_rows
        if self.y.shape != (num_rows,):
            raise ValueError(
                f"y must have one entry per row, shape ({num_rows},); got {self.y.shape}."
            )
        limits = excluding(self.prior, self.constraints, self.design)
        object.__setattr__(self, "constraints", limits)
        require_rules_apart(self.prior, limits)
