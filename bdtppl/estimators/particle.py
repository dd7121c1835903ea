"""Decision trees by particle filters, for classification and regression."""

import warnings
from typing import Any

import jax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning

from bdtppl.estimators.hard import ClassLeaves, RealLeaves, require_finite
from bdtppl.estimators.weighted import WeightedTrees
from bdtppl.inference.particle.sample import Growth, ProposalName, ResamplingName, sample
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Binning, Design
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import DepthDecay, TreePrior
from bdtppl.progress import waiting

__all__ = ["ParticleTreeClassifier", "ParticleTreeRegressor"]

_PARAMETERS = """

    Parameters
    ----------
    prior
        Tree prior (`bdtppl.models.priors`); default ``DepthDecay(0.95, 0.5)``, the paper's
        (which cuts by gap: ``cut_weights="gap"``).
    leaf
        Leaf family (`bdtppl.models.leaves`); the default is {leaf}.
    bins
        Most buckets per feature; None keeps a cut between any two neighbouring distinct values.
    binning
        "quantile" or "uniform" (equal width) buckets.
    grid
        Instead of bins: that many evenly spaced cuts over each feature's range.
    drop_first
        Give no 0/1 column to the first level of each category.
    max_depth
        Most levels of splits; None for no limit.
    min_leaf
        Fewest rows in a leaf.
    constraints
        Further `bdtppl.models.constraints.Constraints`.{classes}
    particles, runs
        Particles of each run, and the independent runs (the paper's islands).
    proposal
        How a node is settled: "prior"; "empirical", the prior with cuts uniform among the available
        ones of the feature; or "optimal", by the prior times the change in likelihood (the paper's
        one-step optimal proposal).
    growth
        Whether particles are weighed after each "node", breadth first, or each "layer".
    resampling
        "systematic", "multinomial" or "never".
    ess_threshold
        Particles are resampled where their effective number falls below this share.
    capacity
        Most nodes of a tree: larger trees have no weight. See ``num_overflows_``.
    random_state
        Seed of particles and predictive draws (scikit-learn's meaning).
    progress
        Whether to say what is done when fitting takes longer than a second.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        The particles with their weights, runs as chains.
    log_evidence_ : float
        Estimate of the log marginal likelihood, with its standard error ``log_evidence_se_`` from
        the spread of the runs (NaN for one run). What all runs have lost, such as trees whose first
        split pays only with those below it, the error does not know of. Absent where the prior is
        not normalised: only ``DepthDecay`` and ``Program`` are.
    log_partition_, log_partition_se_ : float
        Estimate of the log of the sum over trees of prior weight times likelihood; unbiased before
        the log is taken.
    log_partition_of_run_ : numpy.ndarray
        float64 [runs]; each run's own estimate.
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree found, with ``map_log_joint_``.
    effective_size_ : numpy.ndarray
        float64 [stages, runs]; effective number of particles after each stage of growth, NaN where
        a run had ended.
    num_resampled_, num_overflows_ : numpy.ndarray
        int [runs]; how often particles were resampled, and nodes that would have been open to
        splits but for the ``capacity``: the posterior is that of trees within it.
    schema_, design_
        How tables are read, and the coded training rows.
    prior_, leaf_, constraints_
        The model, defaults filled in.{fitted}
    n_features_in_ : int
        Columns seen at `fit`; ``feature_names_in_`` are their names if X was a frame.

    References
    ----------
    Lakshminarayanan, Roy and Teh 2013, Top-down particle filtering for Bayesian decision trees.

    Examples
    --------
    >>> from bdtppl import {name}
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, {targets} * 5
    >>> model = {name}(random_state=0).fit(X, y)
    >>> {prediction}
    {predicted}
"""


class _ParticleTree(WeightedTrees):
    """What classification and regression share."""

    draws_are = "runs"

    particles: int
    runs: int
    proposal: ProposalName
    growth: Growth
    resampling: ResamplingName
    ess_threshold: float
    capacity: int
    progress: bool
    _default_leaf: Any

    def _fit(self, X: Any, y: Any, sample_weight: Any):
        prior = self._read_prior(DepthDecay(0.95, 0.5))
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        leaf = self._default_leaf(y, weights)
        constraints = self._limits(schema)
        design = Design.from_matrix(
            matrix,
            weights=weights,
            bins=self.bins,
            binning=self.binning,
            grid=self.grid,
            names=schema.features,
            is_indicator=schema.is_indicator,
        )
        seed = self._draw_seed()
        with waiting("growing trees", shown=self.progress):
            found = sample(
                jax.random.key(seed),
                design,
                y,
                prior,
                leaf,
                constraints,
                particles=self.particles,
                runs=self.runs,
                proposal=self.proposal,
                growth=self.growth,
                resampling=self.resampling,
                ess_threshold=self.ess_threshold,
                capacity=self.capacity,
            )
        require_finite("The log evidence", found.log_partition)
        self.schema_ = schema
        self.design_ = design
        self.prior_ = found.posterior.prior
        self.leaf_ = leaf
        self.constraints_ = constraints
        self.log_partition_ = found.log_partition
        self.log_partition_se_ = found.log_partition_se
        self.log_partition_of_run_ = found.log_partition_of_run
        self.effective_size_ = found.effective_size
        self.num_resampled_ = found.num_resampled
        self.num_overflows_ = found.num_overflows
        self._restore(found.posterior, {"seed": seed})
        if self.posterior_.trees.num_nodes.max() == 1:
            self._warn_of_no_rule()
        if self.num_overflows_.any():
            warnings.warn(
                f"{self.num_overflows_.sum()} nodes that could have split stopped because their "
                f"trees had {self.capacity} nodes: the posterior is that of trees within the "
                f"capacity; raise capacity.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of `fit`
            )
        return self

    def summary(self) -> dict[str, Any]:
        """Sum the fit up in numbers and text, with JSON types alone."""
        return super().summary() | {
            "particles": int(self.particles),
            "runs": int(self.runs),
            "overflows": int(self.num_overflows_.sum()),
        }


class ParticleTreeClassifier(ClassLeaves, ClassifierMixin, _ParticleTree):
    """Classify by particle filters over decision trees (Lakshminarayanan et al. 2013)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None = None,
        binning: Binning = "quantile",
        grid: int | None = None,
        drop_first: bool = False,
        max_depth: int | None = None,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        classes: Any = None,
        particles: int = 100,
        runs: int = 10,
        proposal: ProposalName = "optimal",
        growth: Growth = "node",
        resampling: ResamplingName = "systematic",
        ess_threshold: float = 0.1,
        capacity: int = 127,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.prior = prior
        self.leaf = leaf
        self.bins = bins
        self.binning = binning
        self.grid = grid
        self.drop_first = drop_first
        self.max_depth = max_depth
        self.min_leaf = min_leaf
        self.constraints = constraints
        self.classes = classes
        self.particles = particles
        self.runs = runs
        self.proposal = proposal
        self.growth = growth
        self.resampling = resampling
        self.ess_threshold = ess_threshold
        self.capacity = capacity
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ParticleTreeClassifier":
        """Grow weighted trees.

        Parameters
        ----------
        X
            Table [n, columns]: array, pandas or polars frame; categories and missing values are
            read.
        y
            Labels [n].
        sample_weight
            Repeat counts [n], integers of at least 0. Default 1.

        Returns
        -------
        ParticleTreeClassifier
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used.

        Warns
        -----
        ConvergenceWarning
            If trees outgrew the capacity.
        """
        return self._fit(X, y, sample_weight)


class ParticleTreeRegressor(RealLeaves, RegressorMixin, _ParticleTree):
    """Regress by particle filters over decision trees (Lakshminarayanan et al. 2013)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None = None,
        binning: Binning = "quantile",
        grid: int | None = None,
        drop_first: bool = False,
        max_depth: int | None = None,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        particles: int = 100,
        runs: int = 10,
        proposal: ProposalName = "optimal",
        growth: Growth = "node",
        resampling: ResamplingName = "systematic",
        ess_threshold: float = 0.1,
        capacity: int = 127,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.prior = prior
        self.leaf = leaf
        self.bins = bins
        self.binning = binning
        self.grid = grid
        self.drop_first = drop_first
        self.max_depth = max_depth
        self.min_leaf = min_leaf
        self.constraints = constraints
        self.particles = particles
        self.runs = runs
        self.proposal = proposal
        self.growth = growth
        self.resampling = resampling
        self.ess_threshold = ess_threshold
        self.capacity = capacity
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ParticleTreeRegressor":
        """Grow weighted trees.

        Parameters
        ----------
        X
            Table [n, columns]: array, pandas or polars frame; categories and missing values are
            read.
        y
            Real targets [n].
        sample_weight
            Repeat counts [n], integers of at least 0. Default 1.

        Returns
        -------
        ParticleTreeRegressor
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used.

        Warns
        -----
        ConvergenceWarning
            If trees outgrew the capacity.
        """
        return self._fit(X, y, sample_weight)


ParticleTreeClassifier.__doc__ = f"{ParticleTreeClassifier.__doc__}{_PARAMETERS}".format(
    leaf="``DirichletCategorical`` with concentration 1 a class",
    classes="""
    classes
        All labels, where some may be absent from training.""",
    fitted="""
    classes_ : numpy.ndarray
        Labels, sorted.""",
    name="ParticleTreeClassifier",
    targets='["a", "a", "b", "b"]',
    prediction="model.predict([[1.0], [4.0]]).tolist()",
    predicted="['a', 'b']",
)
ParticleTreeRegressor.__doc__ = f"{ParticleTreeRegressor.__doc__}{_PARAMETERS}".format(
    leaf="``NormalInverseGamma.from_targets``",
    classes="",
    fitted="",
    name="ParticleTreeRegressor",
    targets="[0.0, 0.0, 9.0, 9.0]",
    prediction="model.predict([[1.0], [4.0]]).round(-1).tolist()",
    predicted="[0.0, 10.0]",
)
