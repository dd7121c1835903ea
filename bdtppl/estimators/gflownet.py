"""Decision trees drawn by a policy that was trained to: generative flow networks."""

from dataclasses import replace
from typing import Any, Literal, get_args

import jax
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from bdtppl.estimators.base import ClassLeaves, RealLeaves
from bdtppl.estimators.tables import require_positive_integer
from bdtppl.estimators.weighted import WeightedTrees
from bdtppl.inference.gflownet import grammar_training, training
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.ensembles import Ensemble, reweighted
from bdtppl.inference.gflownet.grammar import pose_problem
from bdtppl.inference.gflownet.grammar_posterior import sample as sample_flow
from bdtppl.inference.gflownet.policy import PathPolicy
from bdtppl.inference.gflownet.sample import sample as sample_policy
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Binning, Design
from bdtppl.models.leaves import DirichletCategorical, Leaf
from bdtppl.models.priors import DescriptionLength, TreePrior
from bdtppl.progress import counting

__all__ = ["GFlowNetTreeClassifier", "GFlowNetTreeRegressor"]

Method = Literal["grammar", "trajectory", "detailed", "sub-trajectory"]

_STEPS = {"grammar": 300, "trajectory": 2000, "detailed": 2000, "sub-trajectory": 2000}
_CONCENTRATION = 0.1  # of each class: the paper's

_PARAMETERS = """

    Parameters
    ----------
    prior
        Tree prior (`bdtppl.models.priors`); default ``DescriptionLength()``.
    leaf
        Leaf family (`bdtppl.models.leaves`); the default is {leaf}.
    bins
        Instead of ``grid``: most buckets per feature.
    binning
        "quantile" or "uniform" (equal width) buckets.
    grid
        That many evenly spaced cuts over each feature's range; None for a cut between any two
        neighbouring distinct values.
    drop_first
        Give no 0/1 column to the first level of each category.
    max_depth
        Most levels of splits. (The paper counts levels of nodes, one more.)
    min_leaf
        Fewest rows in a leaf.
    constraints
        Further `bdtppl.models.constraints.Constraints`.{classes}
    method
        "grammar" learns the flow through each subproblem, a set of rows at a depth, by local
        balance; the others learn a policy that builds trees split by split (DT-GFN), by
        "trajectory", "detailed" or "sub-trajectory" balance.
    steps
        Steps of training; default 300 for the grammar and 2,000 for the others.
    settings
        All other settings of training: `bdtppl.inference.gflownet.grammar_training.Settings` or
        `bdtppl.inference.gflownet.training.Settings`.
    ensemble
        How draws are weighed in predictions: "importance" by their importance weights, "mean"
        equally, "distinct" each distinct tree by its posterior probability, or "algorithm-1" each
        draw by its posterior probability, the paper's Algorithm 1 to the letter (which counts the
        posterior twice).
    chains, draws
        Trees that are drawn after training, and how they are laid out.
    random_state
        Seed of training and draws (scikit-learn's meaning).
    progress
        Whether to show progress when training takes longer than a second.

    Attributes
    ----------
    posterior_ : bdtppl.inference.posterior.Posterior
        Independent draws from the policy with the weights of the ensemble, [chains, draws].
    log_partition_, log_partition_se_ : float
        Estimate of the log of the sum over trees of prior weight times likelihood, by importance
        sampling, and its standard error.
    lower_bound_ : float
        Mean log importance weight (ELBO), at most log_partition_ on average.
    learned_log_partition_ : float
        The same number as the network has learned it.
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood; absent where the prior is not normalised.
    effective_size_ : float
        Effective sample size of the importance weights, of chains times draws.
    history_ : dict
        What training reported, by name: float64 [steps] each.
    map_tree_ : bdtppl.models.tree.Tree
        Most probable tree drawn, with ``map_log_joint_``.
    schema_, design_
        How tables are read, and the coded training rows.
    prior_, leaf_, constraints_
        The model, defaults filled in.{fitted}
    n_features_in_ : int
        Columns seen at `fit`; ``feature_names_in_`` are their names if X was a frame.

    References
    ----------
    Learning Decision Trees as Amortized Structure Inference (DT-GFN), 2025; Sullivan et al. 2023,
    section 7, for the grammar.

    Examples
    --------
    >>> from bdtppl import {name}
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, {targets} * 5
    >>> model = {name}(grid=3, max_depth=1, steps=5, random_state=0).fit(X, y)
    >>> model.map_tree_.num_leaves.item()
    2
"""


class _GFlowNetTree(WeightedTrees):
    """What classification and regression share."""

    max_depth: int
    method: Method
    steps: int | None
    settings: Any
    ensemble: Ensemble
    chains: int
    draws: int
    progress: bool
    _default_leaf: Any

    def _fit(self, X: Any, y: Any, sample_weight: Any):
        self._check()
        prior = self._read_prior(DescriptionLength())
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
        self.schema_, self.design_ = schema, design
        self.prior_, self.leaf_, self.constraints_ = prior.resolve(design), leaf, constraints
        seed = self._draw_seed()
        keys = jax.random.split(jax.random.key(seed), 3)
        run = self._by_grammar if self.method == "grammar" else self._by_construction
        found, history, learned = run(keys, y)
        self.history_ = {name: np.asarray(a, float) for name, a in history._asdict().items()}
        self.learned_log_partition_ = learned
        self.log_partition_ = found.log_partition
        self.log_partition_se_ = found.log_partition_se
        self.lower_bound_ = found.lower_bound
        self.effective_size_ = found.effective_size
        self._restore(reweighted(found.posterior, self.ensemble), {"seed": seed})
        return self

    def _check(self) -> None:
        """Refuse parameters that the inference does not check."""
        if self.method not in get_args(Method):
            known = ", ".join(get_args(Method))
            raise ValueError(f"method must be one of {known}; got {self.method!r}.")
        if self.ensemble not in get_args(Ensemble):
            known = ", ".join(get_args(Ensemble))
            raise ValueError(f"ensemble must be one of {known}; got {self.ensemble!r}.")
        kind = grammar_training.Settings if self.method == "grammar" else training.Settings
        if self.settings is not None and not isinstance(self.settings, kind):
            raise TypeError(
                f"settings must be a {kind.__module__}.Settings for method={self.method!r}; got "
                f"{type(self.settings).__name__}."
            )
        for name in ("chains", "draws"):
            require_positive_integer(name, getattr(self, name))
        if self.steps is not None:
            require_positive_integer("steps", self.steps)

    @property
    def _num_steps(self) -> int:
        return _STEPS[self.method] if self.steps is None else int(self.steps)

    def _by_grammar(self, keys: jax.Array, y: np.ndarray):
        """Train flows of subproblems and draw; also what training reported, and its log Z."""
        model = self.design_, y, self.prior_, self.leaf_, self.constraints_
        problem = pose_problem(*model)
        settings = self.settings
        if settings is None:
            settings = grammar_training.Settings(decay_steps=self._num_steps)
        state = grammar_training.initial(keys[0], problem, settings)
        with counting("steps", shown=self.progress) as report:
            state, history = grammar_training.train(
                keys[1],
                problem,
                state,
                settings,
                self._num_steps,
                lambda step, metrics: report(step) if report else None,
            )
        found = sample_flow(
            keys[2], problem, state.flow, *model, chains=self.chains, draws=self.draws
        )
        return found, history, float(found.log_flow)

    def _by_construction(self, keys: jax.Array, y: np.ndarray):
        """Train a policy that builds trees and draw; also what training reported, and its log Z."""
        model = self.design_, y, self.prior_, self.leaf_
        construction = Construction.of(*model, self.constraints_)
        settings = training.Settings() if self.settings is None else self.settings
        settings = replace(settings, num_steps=self._num_steps, balance=self.method)
        key_policy, key_begin = jax.random.split(keys[0])
        policy = PathPolicy(key_policy, construction.num_features, construction.num_cuts)
        learner = training.begin(key_begin, construction, policy, settings)
        with counting("steps", shown=self.progress) as report:
            learner, history = training.train(
                keys[1],
                construction,
                learner,
                settings,
                tell=lambda learner, info: report(int(learner.step)) if report else None,
            )
        found = sample_policy(
            keys[2], construction, learner.policy, *model, chains=self.chains, draws=self.draws
        )
        return found, history, float(learner.log_z)

    def summary(self) -> dict[str, Any]:
        """Sum the fit up in numbers and text, with JSON types alone."""
        return super().summary() | {
            "method": self.method,
            "steps": len(next(iter(self.history_.values()))),
            "effective_size": self.effective_size_,
            "learned_log_partition": self.learned_log_partition_,
            "lower_bound": self.lower_bound_,
        }


class GFlowNetTreeClassifier(ClassLeaves, ClassifierMixin, _GFlowNetTree):
    """Classify by decision trees that a trained policy draws (DT-GFN, and the grammar's flows)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None = None,
        binning: Binning = "quantile",
        grid: int | None = 99,
        drop_first: bool = False,
        max_depth: int = 4,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        classes: Any = None,
        method: Method = "grammar",
        steps: int | None = None,
        settings: Any = None,
        ensemble: Ensemble = "importance",
        chains: int = 4,
        draws: int = 250,
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
        self.method = method
        self.steps = steps
        self.settings = settings
        self.ensemble = ensemble
        self.chains = chains
        self.draws = draws
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GFlowNetTreeClassifier":
        """Train a policy and draw trees from it.

        Parameters
        ----------
        X
            Table [n, columns]: array, frame, or mapping of names to columns.
        y
            Class labels [n].
        sample_weight
            How often each row is repeated, integers [n].

        Raises
        ------
        ValueError
            If the input or a parameter is unfit; the message names the column, row or parameter.
        """
        return self._fit(X, y, sample_weight)

    def _default_leaf(self, y: np.ndarray, weights: np.ndarray) -> Leaf:
        if self.leaf is None:
            return DirichletCategorical.symmetric(len(self.classes_), _CONCENTRATION)
        return super()._default_leaf(y, weights)


class GFlowNetTreeRegressor(RealLeaves, RegressorMixin, _GFlowNetTree):
    """Regress by decision trees that a trained policy draws (DT-GFN, and the grammar's flows)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None = None,
        binning: Binning = "quantile",
        grid: int | None = 99,
        drop_first: bool = False,
        max_depth: int = 4,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        method: Method = "grammar",
        steps: int | None = None,
        settings: Any = None,
        ensemble: Ensemble = "importance",
        chains: int = 4,
        draws: int = 250,
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
        self.method = method
        self.steps = steps
        self.settings = settings
        self.ensemble = ensemble
        self.chains = chains
        self.draws = draws
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GFlowNetTreeRegressor":
        """Train a policy and draw trees from it.

        Parameters
        ----------
        X
            Table [n, columns]: array, frame, or mapping of names to columns.
        y
            Targets [n].
        sample_weight
            How often each row is repeated, integers [n].

        Raises
        ------
        ValueError
            If the input or a parameter is unfit; the message names the column, row or parameter.
        """
        return self._fit(X, y, sample_weight)


GFlowNetTreeClassifier.__doc__ = f"{GFlowNetTreeClassifier.__doc__}{_PARAMETERS}".format(
    leaf="``DirichletCategorical`` with concentration .1 a class",
    classes="""
    classes
        All labels, where some may be absent from training.""",
    fitted="""
    classes_ : numpy.ndarray
        Labels, sorted.""",
    name="GFlowNetTreeClassifier",
    targets='["a", "a", "b", "b"]',
)
GFlowNetTreeRegressor.__doc__ = f"{GFlowNetTreeRegressor.__doc__}{_PARAMETERS}".format(
    leaf="``NormalInverseGamma.from_targets``",
    classes="",
    fitted="",
    name="GFlowNetTreeRegressor",
    targets="[0.0, 0.0, 9.0, 9.0]",
)
