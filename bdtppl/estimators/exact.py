"""Decision trees with their exact posterior, for classification and regression."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import ChoiceWarning, estimator
from bdtppl.estimators.hard import (
    ClassLeaves,
    RealLeaves,
    TreeEstimator,
    list_trees,
    require_finite,
    with_weights_of_marks,
)
from bdtppl.estimators.long_fits import HasCheckpoint, ShowsProgress
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.searching import run_search
from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.boxes.histograms import BoxHistograms
from bdtppl.inference.boxes.parts import Labels, Parts, TargetMoments
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.weights import counts_apart
from bdtppl.inference.exact_choice import Setting, choose_by_evidence, fit_numbers
from bdtppl.inference.exact_cost import (
    Budget,
    ExactMethod,
    box_cost,
    exact_of,
    exact_within_budget,
    suggest,
)
from bdtppl.inference.hard.partitions import group_by_rows
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.pcfg.compiler import TooManySubproblems
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.search.search import TreeSearch
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import check_cuts
from bdtppl.models.data.schema import Schema
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import WholeTreePrior, require_rules_apart
from bdtppl.models.priors import LeafPenalty
from bdtppl.models.wording import number
from bdtppl.parted import Reader, fill, parts_of, survey
from bdtppl.progress import counting, waiting
from bdtppl.summary import interval_in_words, summarised


@dataclass
class _Fit:
    """Inputs to rebuild the exact posterior, and cached results."""

    model: TreeModel
    method: str
    max_subproblems: int
    seed: int
    chains: int
    draws: int
    histograms: BoxHistograms | None = None  # for rows that were not stored
    drawn: Posterior | None = None  # from a search, which is not stored
    found: RankedTrees | None = None  # from a search: the best tree

    @cached_property
    def exact(self) -> Any:
        """An `ExactPosterior` or a `BoxPosterior`; None after a search."""
        if self.method == "search":
            return None
        return exact_of(self.model, self.method, self.max_subproblems, self.histograms)

    @cached_property
    def posterior(self) -> Posterior:
        if self.drawn is not None:
            return self.drawn
        key = jax.random.key(self.seed)
        return self.exact.sample(key, chains=self.chains, draws=self.draws)

    @cached_property
    def best(self) -> RankedTrees:
        return self.most_probable(1)

    @cached_property
    def listed(self) -> RankedTrees:
        return list_trees(self.most_probable)

    def most_probable(self, k: int) -> RankedTrees:
        if self.found is None:
            return self.exact.k_best(k)
        ranked = RankedTrees.joined([self.found, self.posterior.ranked])
        _, tree = group_by_rows(ranked.trees, self.model.design.matrix)
        is_other = tree != tree[0]
        return ranked[np.append(0, np.flatnonzero(is_other))[:k]]

    def __getstate__(self) -> dict:
        # The sums over trees are recomputed when needed: copies stay small.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


_said: set[tuple] = set()
_RISES = 3.0  # nats of evidence by which another level must pay
# Subproblems and productions, or boxes, whose best tree is found within a second.
_SMALL = 200_000


@declared
class ExactParameters(HasCheckpoint, ShowsProgress):
    """Parameters of the exact posterior."""

    bins: int | Literal["auto"] | None = parameter(
        "auto",
        "Most buckets per feature; None keeps a cut between any two neighbouring distinct values; "
        '"auto" tries several numbers of buckets and levels within ``max_seconds``, fits the '
        "hyperparameters of a default prior and leaf family, and keeps the setting with the "
        "greatest evidence.",
        option=str,
    )
    method: ExactMethod = parameter(
        "auto",
        'How trees are summed over: "boxes" sums over trees of few levels at any number of rows; '
        '"chart" over trees of any depth, by the sets of rows that they can make; "search" is a '
        'chart of the most promising sets alone, with bounds on the rest. "auto" uses a chart for '
        "up to 2,000 rows if these sets are few enough, else boxes, else a search; with "
        '``bins="auto"``, a chart or boxes, whichever has the greater evidence.',
    )
    max_seconds: float = parameter(
        8.0,
        'CPU seconds that ``bins="auto"`` may spend, without compilation. They are estimated at '
        "fixed rates, so that the choice does not depend on the machine unless the work would "
        "exceed the budget; then the choice ends in time. For a search: wall-clock seconds.",
        above=0,
    )
    max_bytes: float = parameter(1e9, "Memory limit of boxes or a search, in bytes.", above=0)
    max_subproblems: int = parameter(
        500_000,
        "Most sets of rows that trees may make, if trees of any depth are summed over.",
        least=1,
    )
    chains: int = parameter(
        4, "Number of chains in which the independent draws are arranged.", least=1, is_of_run=False
    )
    draws: int = parameter(250, "Draws of each chain.", least=1, is_of_run=False)


class ExactTree(ExactParameters, TreeEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        Draws of trees, i.i.d. from the exact posterior.
    log_evidence_ : float
        Exact log marginal likelihood under the normalised prior; ``log_evidence_se_`` is 0. After
        a search the lower one of ``log_evidence_bounds_``, and the error is NaN.
    log_evidence_bounds_ : tuple of float
        Bounds of the log evidence; they differ only after a search that did not end.
    log_partition_ : float
        Log of the sum over trees of prior weight (not normalised) times likelihood; after a search,
        over the trees that it enumerated.
    total_variation_ : float
        Bound on the total variation distance between the distribution of the draws and the
        posterior; 0 except after a search that did not end.
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree, with ``map_log_joint_`` and ``map_probability_``; after a search, the
        best tree found and its probability among the trees summed over.
    map_gap_ : float
        No tree has a log joint larger by more than this; 0 except after a search that did not end.
    exact_ : bdtppl.inference.pcfg.exact.ExactPosterior | bdtppl.inference.boxes.exact.BoxPosterior
        The exact posterior itself, with its entropy, marginals and paths. None after a search.
    method_
        "boxes", "chart" or "search".
    chosen
        What ``bins="auto"`` chose, as parameters: ``clone(model).set_params(**model.chosen)`` fits
        other rows without a new search, as in `bdtppl.compare`.
    settings_
        Settings that ``bins="auto"`` tried, as lists by column (method, bins, max_depth, seconds,
        log_evidence), the best first; then those that a larger budget would try, with NaN.
    design_
        The coded training rows; cut points alone (`bdtppl.models.data.design.RowlessDesign`) if
        rows came in parts. Methods that need the rows then raise a ValueError.
    prior_, leaf_, constraints_
        The model, with defaults filled in; the chosen depth is one of the constraints.
    bins_
        Buckets per feature that were used.
    {fitted}
    """

    inference = "exact"
    default_prior = LeafPenalty(2.0)
    design_: Any  # a `RowlessDesign` for rows in parts
    method_: str = "chart"  # absent from models in older files, like the attributes below
    log_evidence_gap_: float = 0.0
    map_gap_: float = 0.0
    total_variation_: float = 0.0
    found_tree_: Any = None  # from a search, like the next ones
    found_statistics_: Any = None
    num_expansions_: int = 0

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        if isinstance(self.bins, str) and self.bins != "auto":
            raise ValueError(f"bins must be None, 'auto' or an integer; got {self.bins!r}.")
        parts = parts_of(X, y, sample_weight)
        if parts is not None:
            return self._fit_parts(parts)
        prior = self._read_prior()
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        prior = with_weights_of_marks(schema, prior)
        leaf = self._default_leaf(y, weights)
        constraints = self._limits(schema)
        require_rules_apart(prior, constraints)

        def make_model(bins: int | None) -> TreeModel:
            grid = self.grid if bins in (None, self.bins) else None  # bins that would fit
            design = self._design(schema, matrix, weights, bins=bins, grid=grid)
            return TreeModel(design, y, prior, leaf, constraints)

        if self.method == "search":
            bins = 10 if self.bins == "auto" else self.bins
            search = TreeSearch(self._with_fitted_leaf(make_model(bins)), "sum")
            return self._keep_search(schema, search, bins)
        settings = []
        data = matrix, y, weights, np.array(schema.is_indicator)
        given = {"prior": prior, "leaf": leaf, "constraints": constraints}
        budget = Budget(self.max_seconds, self.max_bytes, int(self.max_subproblems))
        if self.bins == "auto" and self.grid is None:
            if (reason := why_no_boxes(prior, constraints)) and self.method == "boxes":
                raise ValueError(reason)
            with (
                self._run(schema.features, data, **given) as run,
                counting("settings", shown=self.progress) as on_step,
            ):
                # The hyperparameters that the user did not choose: those of a default prior and
                # leaf family.
                free = [*prior.parameter_support] if self.prior is None else []
                exact, chosen, settings = choose_by_evidence(
                    make_model,
                    method="chart" if reason else self.method,
                    fitted=free + self._free_of_leaf(leaf),
                    budget=budget,
                    on_step=on_step,
                    keep=run,
                )
            method, bins = chosen.method, chosen.bins
            constraints = replace(constraints, max_depth=chosen.max_depth)
            self.settings_ = {
                each.name: [getattr(setting, each.name) for setting in settings]
                for each in fields(Setting)
            }
        else:
            bins = None if self.bins == "auto" else self.bins
            model = make_model(bins)
            with (
                self._run(schema.features, data, **given) as run,
                waiting("summing over trees", shown=self.progress),
            ):
                try:
                    exact, method = exact_within_budget(model, self.method, budget)
                except TooManySubproblems as error:
                    suggest(error, make_model, bins, budget)
                    if self.method != "auto":
                        raise error from None
                    exceeded = error
                else:
                    exceeded = None
                    exact = fit_numbers(exact, self._free_of_leaf(leaf), budget.seconds, run)
            if exceeded is not None:
                try:
                    search = TreeSearch(self._with_fitted_leaf(model), "sum")
                except (TypeError, ValueError):  # the prior or the leaf family has no bounds
                    raise exceeded from None
                return self._keep_search(schema, search, bins, exceeded.remedies)
        larger = self._beyond_the_budget()
        if larger is not None and (key := (*matrix.shape, larger)) not in _said:
            _said.add(key)
            warnings.warn(
                f"The evidence still rises with depth, but max_seconds={self.max_seconds:g} ended "
                f"the choice of settings: {self._choice_in_words()}. Raise it, or set bins and "
                "max_depth.",
                ChoiceWarning,
                stacklevel=3,  # the caller of `fit`
            )
        self._keep_sum(schema, exact, constraints, method, bins, run.seed)
        self._warn_of_no_cut(schema, exact.design, constraints)
        if not exact.has_rule:
            self._warn_of_no_rule()
        return self

    def _fit_parts(self, parts: Parts) -> Self:
        """Fit rows that come in parts, by two passes over them."""
        if self.checkpoint is not None:
            raise ValueError(
                "Rows in parts cannot be combined with a checkpoint, whose name would need a pass "
                "over all rows: leave checkpoint at None."
            )
        bins = None if self.bins == "auto" else self.bins
        check_cuts(bins, self.binning, self.grid)
        if bins is None and self.grid is None:
            raise ValueError(
                f"bins must be an integer for rows in parts, such as 16; got {self.bins!r}. Fit a "
                "sample in memory with bins='auto' to find the number with the greatest evidence."
            )
        if self.method in ("chart", "search"):
            raise ValueError(
                f"method={self.method!r} needs all rows in memory: use method='boxes' for rows in "
                "parts."
            )
        prior = self._read_prior()
        limits = self.constraints if isinstance(self.constraints, Constraints) else Constraints()
        limits.require_free_leaves("The exact posterior")
        if reason := why_no_boxes(prior, limits):
            raise ValueError(f"{reason} That method needs all rows in memory; these come in parts.")
        if self.max_depth is None and limits.max_depth is None:
            raise ValueError("max_depth must be a number for rows in parts, such as max_depth=3.")
        if self.ordered:
            raise ValueError("Rows in parts cannot use ordered: use ordered categories.")
        self._note_columns(parts.example)
        reader = Reader(self._check_targets, Labels if self.is_classifier else TargetMoments)
        with waiting("passing over the rows, first", shown=self.progress):
            found = survey(parts, reader)
        leaf = self._leaf_of(found.targets)
        schema = found.schema(categories=self.categories, drop_first=self.drop_first)
        prior = with_weights_of_marks(schema, prior)
        constraints = self._limits(schema)
        require_rules_apart(prior, constraints)
        design: Any = found.design(schema, bins=bins, binning=self.binning, grid=self.grid)
        space = BoxSpace.of(design, constraints, max(constraints.max_depth or 0, 1))
        num_bytes = box_cost(space, prior, leaf, found.count).num_bytes
        if num_bytes > self.max_bytes:
            raise ValueError(
                f"The boxes of bins={bins} and max_depth={constraints.max_depth} need about "
                f"{num_bytes:.2g} bytes, more than max_bytes={self.max_bytes:.2g}: lower bins or "
                "max_depth, or raise max_bytes."
            )
        with waiting("passing over the rows, second", shown=self.progress):
            design, histograms = fill(
                parts,
                reader,
                schema=schema,
                labels=self.class_labels,
                cut_points=design,
                space=space,
                leaf=leaf,
                with_keys="log_num_equivalent" in prior.rule_facts,
                counts_apart=counts_apart(leaf, found.has_weights),
            )
        model = TreeModel(design, np.empty(0), prior, leaf, constraints)
        exact = exact_of(model, "boxes", histograms=histograms)
        exact = fit_numbers(exact, self._free_of_leaf(leaf), self.max_seconds)
        self._keep_sum(schema, exact, constraints, "boxes", bins, self._draw_seed(), histograms)
        self._warn_of_no_cut(schema, design, constraints, stacklevel=5)
        return self

    def _keep_search(
        self, schema: Schema, search: TreeSearch, bins: int | None, remedies: Sequence[str] = ()
    ) -> Self:
        """Search until all trees are summed over or a limit is reached, and store the result."""

        def in_words(search: TreeSearch) -> str:
            return f"log evidence between {interval_in_words(search.log_evidence)}"

        run_search(search, self.max_seconds, self.max_bytes, self.progress, in_words)
        evidence, is_closed, seed = search.log_evidence, search.is_closed, self._draw_seed()
        self.log_partition_, self.log_evidence_ = search.log_partition.low, evidence.low
        require_finite("The log evidence", self.log_evidence_)
        self.log_evidence_gap_ = 0.0 if is_closed else evidence.gap
        self.map_gap_ = 0.0 if is_closed else search.best.gap
        self.total_variation_ = 0.0 if is_closed else search.total_variation
        self.num_expansions_ = search.num_expansions
        found, rng = search.best_tree(), np.random.default_rng(seed)
        self.found_tree_, self.found_statistics_ = found.trees[0], found.statistics[0]
        drawn = search.sample(rng, chains=int(self.chains), draws=int(self.draws))
        model = replace(search.model, prior=search.prior, constraints=search.constraints)
        self._keep(schema, model, "search", bins, seed, drawn=drawn, found=found)
        self._warn_of_no_cut(schema, model.design, model.constraints)
        if not search.has_rule:
            self._warn_of_no_rule()
        for reason in self.cautions():
            said = " ".join([reason, *remedies])
            warnings.warn(said, ConvergenceWarning, stacklevel=4)  # the caller of `fit`
        return self

    def _keep_sum(
        self,
        schema: Schema,
        exact: ExactPosterior | BoxPosterior,
        constraints: Constraints,
        method: str,
        bins: int | None,
        seed: int,
        histograms: BoxHistograms | None = None,
    ) -> None:
        """Score all trees, and set the fitted attributes."""
        with waiting("scoring trees", shown=self.progress):
            self.log_partition_, self.log_evidence_ = exact.log_partition, exact.log_evidence
        require_finite("The log evidence", self.log_evidence_)
        self.log_evidence_gap_ = self.map_gap_ = self.total_variation_ = 0.0
        # The prior with its table-dependent counts filled in.
        model = TreeModel(exact.design, exact.y, exact.prior, exact.leaf, constraints)
        self._keep(schema, model, method, bins, seed, histograms=histograms)
        self._fitted.exact = exact

    def _keep(
        self,
        schema: Schema,
        model: TreeModel,
        method: str,
        bins: int | None,
        seed: int,
        **own: Any,
    ) -> None:
        """Set the fitted attributes, except those of the evidence."""
        sizes = {n: int(getattr(self, n)) for n in ("max_subproblems", "chains", "draws")}
        self._fitted = _Fit(model, method, seed=seed, **sizes, **own)
        self._keep_model(model)
        self.schema_, self.method_, self.bins_ = schema, method, bins
        self.log_evidence_se_ = np.nan if self.log_evidence_gap_ else 0.0

    def _saved_state(self) -> dict:
        """Return the state for `bdtppl.storage` besides parameters, attributes and posterior."""
        fit = self._fitted
        names = "seed", "chains", "draws", "max_subproblems"
        state = {name: getattr(fit, name) for name in names}
        if fit.found is not None:
            state["best"] = [float(fit.found.log_joint[0]), float(fit.found.probability[0])]
        return state

    def _saved_arrays(self) -> dict[str, np.ndarray]:
        """Return the histograms of rows that were not stored, for `bdtppl.storage`."""
        histograms = self._fitted.histograms
        if histograms is None:
            return {}
        return dict(zip(("values", "keys"), histograms.sums(), strict=True))

    def _restore(self, posterior: Posterior, state: dict) -> None:
        """Restore a saved fit; its sums are computed when needed."""
        if self.method_ not in ("boxes", "chart", "search"):
            raise ValueError(f"method_ must be that of a fit; got {self.method_!r}.")
        if self.method_ == "search":
            log_joint, probability = (np.array([float(each)]) for each in state.pop("best"))
            found = self.found_tree_.reshape(1), self.found_statistics_[None]
            state["found"] = RankedTrees(*found, log_joint, probability)
            state["drawn"] = posterior
        if "values" in state and self.method_ != "boxes":
            raise ValueError("Histograms of rows in parts require method='boxes'.")
        design, limits = posterior.design, self.constraints_
        model = TreeModel(design, posterior.y, posterior.prior, posterior.leaf, limits)
        if "values" in state:
            values, keys = state.pop("values"), state.pop("keys")
            space = BoxSpace.of(design, limits, max(limits.max_depth or 1, 1))
            state["histograms"] = BoxHistograms.of_sums(space, values, keys)
        self._fitted = _Fit(model, self.method_, **state)
        self._fitted.posterior = posterior

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether a fit has completed: one that fails leaves attributes behind."""
        return "_fitted" in vars(self)

    @property
    def _result(self) -> _Fit:
        check_is_fitted(self)  # its error is also an AttributeError, as `hasattr` requires
        return self._fitted

    @property
    def _seed(self) -> int:
        return self._result.seed

    @property
    def exact_(self) -> Any:
        """The exact posterior, recomputed after loading or copying; absent after a search."""
        return self._result.exact

    @property
    def log_evidence_bounds_(self) -> tuple[float, float]:
        """Lower and upper bound of the log evidence."""
        check_is_fitted(self)
        return self.log_evidence_, self.log_evidence_ + self.log_evidence_gap_

    @property
    def draws_are(self) -> str:
        """Origin of the draws: "exact", or independent draws among a search's trees."""
        return "independent" if self.method_ == "search" else "exact"

    @property
    def probability_name(self) -> str:
        """Name of the probabilities of `k_best`."""
        if self.total_variation_:
            return "probability among the trees summed over"
        return "posterior probability"

    @property
    def in_words(self) -> str:
        """Describe how the posterior is computed."""
        if self.method_ == "search":
            return (
                "There are too many trees to sum over. A search summed over the most promising "
                "ones and bounded the contribution of the others (after MAPTree, Sullivan et al. "
                "2024). Draws and probabilities are of the trees that were summed over."
            )
        return (
            "The posterior is exact: a sum over all trees (Sullivan et al. 2023). Nothing in the "
            "evidence, the probabilities and the predictions is estimated."
        )

    def cautions(self) -> Iterator[str]:
        """List which trees were not considered."""
        if self.log_evidence_gap_:
            yield (
                f"There are too many trees to sum over in max_seconds={self.max_seconds:g} and "
                f"max_bytes={self.max_bytes:.2g}. The log evidence lies between "
                f"{interval_in_words(self.log_evidence_bounds_)}, another tree may be better than "
                f"the best one found by up to {number(self.map_gap_)}, and the distribution of the "
                f"draws may differ from the posterior by up to {self.total_variation_:.2g} in "
                "total variation."
            )
        depth = self.constraints_.max_depth
        if self.bins == "auto" and self.method_ == "boxes" and depth != self.max_depth:
            yield (
                f"Trees of more than {depth} levels were not considered: the evidence preferred "
                f"this depth, or deeper trees would have cost more than max_seconds."
            )

    @property
    def chosen(self) -> dict[str, Any]:
        """What ``bins="auto"`` chose, as parameters."""
        if self.bins != "auto" or self.grid is not None:
            return {}
        chosen: dict[str, Any] = {
            "bins": self.bins_,
            "method": self.method_,
            "max_depth": self.constraints_.max_depth,
        }
        if self.prior is None:
            chosen["prior"] = self.prior_
        return chosen

    @property
    def posterior_(self) -> Posterior:
        """Independent draws of trees."""
        return self._result.posterior

    @property
    def map_tree_(self) -> Tree:
        """Most probable tree."""
        return self._result.best.trees[0]

    @property
    def map_log_joint_(self) -> float:
        """Sum of the log prior weights and leaf log marginals of the most probable tree."""
        return float(self._result.best.log_joint[0])

    @property
    def map_probability_(self) -> float:
        """Posterior probability of the most probable tree."""
        return float(self._result.best.probability[0])

    def _rows_of_slots(self, tree: Tree) -> np.ndarray:
        if self._result.histograms is None:
            return super()._rows_of_slots(tree)
        return self.exact_.rows_of_slots(tree)

    def _known_best(self) -> RankedTrees | None:
        known = vars(fit := self._result)
        if "best" in known:
            return fit.best
        if self.method_ == "search":
            return fit.best
        is_cheap = "exact" in known and not isinstance(self.prior_, WholeTreePrior)
        return fit.best if is_cheap and sum(fit.exact.size.values()) < _SMALL else None

    def _most_probable(self, k: int) -> RankedTrees:
        return self._result.most_probable(k)

    def _listed(self, least: int = 1) -> RankedTrees:
        known = self._result.listed  # each figure needs them
        return known if len(known) >= least else super()._listed(least)

    def _settings(self) -> tuple[list[Setting], list[Setting]]:
        """List the settings that were tried, the best first, and those beyond the budget."""
        columns = getattr(self, "settings_", None) or {"method": []}
        settings = [Setting(*row) for row in zip(*columns.values(), strict=True)]
        tried = [each for each in settings if not np.isnan(each.log_evidence)]
        return tried, settings[len(tried) :]

    def _beyond_the_budget(self) -> str | None:
        """Return a deeper setting that exceeded the budget, if it is probably better.

        It is if the evidence of the chosen one is higher than that of fewer levels.
        """
        tried, beyond = self._settings()
        if not tried:
            return None
        alike = [each for each in tried if each.bins == tried[0].bins]
        deeper = [each for each in beyond if each.bins == tried[0].bins]
        shallower = [each.log_evidence for each in alike[1:]]
        rises = all(tried[0].log_evidence > each + _RISES for each in shallower)
        is_deepest = tried[0].max_depth == max(each.max_depth or 0 for each in alike)
        return str(deeper[0]) if deeper and is_deepest and shallower and rises else None

    def _choice_in_words(self) -> str:
        """Describe the choice, the runner-up, and what more budget would try; may be empty."""
        tried, beyond = self._settings()
        if len(tried) + len(beyond) < 2:
            return ""
        chosen, *others = [f"{each} (log evidence {each.log_evidence:.1f})" for each in tried]
        said = [f"{chosen} was chosen", *(f"next was {each}" for each in others[:1])]
        if beyond:
            larger = next((each for each in beyond if each.bins == tried[0].bins), beyond[0])
            said.append(
                f"more seconds would try {larger}, about {number(float(f'{larger.seconds:.1g}'))} s"
            )
        return "; ".join(said)

    @summarised
    def summary(self) -> dict:
        """Summarise the fit in numbers and text of JSON types."""
        check_is_fitted(self)
        exact, names = self.exact_, self.design_.names
        known = {
            **self._describe(),
            "bins": self.bins_,
            "method": self.method_,
            "choice": self._choice_in_words(),
            "log_evidence": self.log_evidence_,
            "log_partition": self.log_partition_,
            "map_probability": self.map_probability_,
            "map_log_joint": self.map_log_joint_,
            "map_leaves": int(self.map_tree_.num_leaves),
            "map_rules": self.rules(),
        }
        if exact is None:
            uses = self.structures().inclusion
            return known | {
                "expansions": self.num_expansions_,
                "log_evidence_bounds": list(self.log_evidence_bounds_),
                "total_variation": self.total_variation_,
                "map_gap": self.map_gap_,
                "expected_leaves": float(self.posterior_.num_leaves.mean()),
                "split_inclusion": dict(zip(names, map(float, uses), strict=True)),
            }
        return known | {
            **exact.size,
            "expected_leaves": exact.expected_leaves,
            "entropy": exact.entropy,
            "split_inclusion": dict(zip(names, map(float, exact.split_inclusion), strict=True)),
            "prior_inclusion": dict(zip(names, map(float, exact.prior_inclusion), strict=True)),
        }


@estimator
class ExactTreeClassifier(ClassLeaves, ExactTree):
    """Classify by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""


@estimator
class ExactTreeRegressor(RealLeaves, ExactTree):
    """Regress by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""

    def __sklearn_tags__(self):
        """Declare a coarse fit: a table of many features gets few bins."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
