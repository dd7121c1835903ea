"""The exact posterior over trees of few levels, at any number of rows.

`BoxPosterior` answers what `bdtppl.inference.pcfg.exact.ExactPosterior` answers, for trees of at
most some levels. Its cost in rows is one pass that fills histograms; the chart's is much larger,
but there trees may have any depth.

A rule in a gap between two values of a node cuts at the design's cut nearest the middle of the gap,
so that every leaf is a box of codes; a chart cuts in the middle itself. The two differ for new
values that lie where the node has no rows.

References
----------
Sullivan et al. 2023 (BCART-PCFG), section 5, for the recursion.
"""

from functools import cached_property

import jax
import numpy as np

from bdtppl.inference.boxes.histograms import BoxHistograms, row_keys
from bdtppl.inference.boxes.recursion import Expansion, Recursion
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.weights import PriorGrid, add_row_count, has_own_score
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior, require_rules_apart, require_weighs
from bdtppl.models.row_statistics import row_statistics

__all__ = ["BoxPosterior"]

_LEAST_VISITS = 1e-17


class BoxPosterior:
    """Exact posterior of hard trees of at most some levels.

    Parameters
    ----------
    design
        Coded rows; only cut points matter where histograms are given.
    prior
        Tree prior, node-wise; its weights may read counts of rules and the depth.
    leaf
        Leaf family.
    y
        Targets [n]; class indices for classification.
    max_depth
        Most levels of splits, at least 1.
    constraints
        Further limits.
    histograms
        Histograms of the rows, where they have been filled elsewhere.

    Raises
    ------
    ValueError
        If the prior reads more than counts, or constraints cannot be answered by boxes.
    """

    def __init__(
        self,
        design: Design,
        prior: TreePrior,
        leaf: Leaf,
        y: np.ndarray,
        *,
        max_depth: int,
        constraints: Constraints | None = None,
        histograms: BoxHistograms | None = None,
    ):
        constraints = Constraints() if constraints is None else constraints
        require_weighs(prior, "BoxPosterior", "nodes")
        require_rules_apart(prior, constraints)
        self.design, self.leaf, self.y = design, leaf, np.asarray(y)
        self.constraints, self.prior = constraints, prior.resolve(design)
        self.space = BoxSpace.of(design, constraints, max_depth)
        self._grid = PriorGrid(self.space, self.prior)
        if histograms is None:
            rows = row_statistics(leaf, self.y, design.weights)
            values = add_row_count(leaf, rows, design.weights)
            with_keys = self._grid.reads_counts_of_partitions
            histograms = BoxHistograms(self.space, values.shape[1], with_keys=with_keys)
            codes = design.codes
            histograms.add(codes, values, row_keys(codes) if with_keys else None)
        self.histograms = histograms
        total = histograms.total
        is_counted = has_own_score(leaf) and leaf.task == "classification"
        num_rows = int(round(total.sum() if is_counted else total[0]))
        self.recursion = Recursion(
            design, self.space, histograms, constraints.min_leaf, self._grid, leaf, num_rows
        )

    # Evidence.

    @cached_property
    def _log_q(self) -> list[np.ndarray]:
        return self.recursion.inside(self.prior, self.leaf)

    @cached_property
    def log_partition(self) -> float:
        """Log of the sum over trees of prior weight times likelihood."""
        return float(self._log_q[0][0])

    @cached_property
    def log_prior_normaliser(self) -> float:
        """Log of the sum over trees of the prior weight alone."""
        if self.prior.is_normalised:
            return 0.0
        return float(self.recursion.inside(self.prior, None)[0][0])

    @property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets under the normalised prior."""
        return self.log_partition - self.log_prior_normaliser
