"""The most probable decision tree with a certificate, for classification and regression."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import estimator
from bdtppl.estimators.found import FoundTrees
from bdtppl.estimators.hard import ClassLeaves, RealLeaves, require_finite
from bdtppl.estimators.long_fits import ShowsProgress
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.searching import run_search
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.pcfg.search.search import TreeSearch
from bdtppl.models.priors import DepthDecay
from bdtppl.models.wording import number
from bdtppl.summary import summarised


@declared
class MAPTreeParameters(ShowsProgress):
    """Parameters of the search."""

    bins: int | Literal["auto"] | None = parameter(
        10,
        'Most buckets per feature; "auto" is 10; None keeps a cut between any two neighbouring '
        "distinct values. The search ends sooner with fewer cuts.",
        option=str,
    )
    time_limit: float = parameter(
        10.0,
        "Seconds after which the search stops; it then reports the best tree so far and how much "
        "better another one may be.",
        above=0,
    )
    memory_limit: float = parameter(
        2e9, "Memory limit of the search in bytes; it stops before it needs more.", above=0
    )


class MAPTree(MAPTreeParameters, FoundTrees):
    """The inference, for any kind of target.

    Attributes
    ----------
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree found.
    map_log_joint_ : float
        Sum of its log prior weight and the log marginal likelihoods of its leaves.
    map_gap_ : float
        No tree has a log joint that is larger by more than this, in nats; 0 if the tree is
        certified to be the most probable one. The bound holds in double precision, for sets of rows
        that their hashes distinguish (see `bdtppl.inference.pcfg.search.search.TreeSearch`).
    log_likelihood_gain_ : numpy.ndarray
        Gain of the tree's splits on each feature in log marginal likelihood over stopping, in nats;
        float64 [d].
    num_expansions_ : int
        Sets of rows whose rules were scored.
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        That tree alone.
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, with defaults filled in.
    {fitted}

    Notes
    -----
    Trees may have any depth. The search expands sets of rows, the most promising ones first, and
    bounds the remaining ones (``map_gap_``). Tables of few cuts end with a certificate; on others
    the tree is the best one found within ``time_limit``, so a faster machine may find a better one.

    References
    ----------
    Sullivan, Tiwari and Thrun 2024, MAPTree: Beating "Optimal" Decision Trees with Bayesian
    Decision Trees.
    """

    inference = "map"
    in_words = (
        "The tree is the most probable one that a search over all trees has found (after MAPTree, "
        "Sullivan et al. 2024). It is one tree, not a posterior: the uncertainty of its splits is "
        "not known."
    )
    default_prior = DepthDecay(0.95, 0.5)
    unknown: ClassVar = {
        "log_evidence": "the search was for the best tree, not for the sum over all trees",
        "elpd_loo": "one tree cannot be reweighted without a row",
    }

    map_log_joint_: float
    map_gap_: float
    num_expansions_: int

    @property
    def _num_bins(self) -> int | None:
        return 10 if isinstance(self.bins, str) and self.bins == "auto" else self.bins

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        model = self._read_model(X, y, sample_weight)
        search = TreeSearch(model)

        def in_words(search: TreeSearch) -> str:
            best = search.best
            return f"log joint {best.low:.2f}, none better by more than {best.gap:.2f}"

        run_search(search, self.time_limit, self.memory_limit, self.progress, in_words)
        found, best = search.best_tree(), search.best
        require_finite("The log joint of the tree", best.low)
        self._keep_model(replace(model, prior=search.prior, constraints=search.constraints))
        self.map_log_joint_ = best.low
        self.map_gap_ = 0.0 if best.is_closed else best.gap
        self.num_expansions_ = search.num_expansions
        scores, tree = search.log_marginals(found.statistics[0]), found.trees[0]
        slot = np.flatnonzero(tree.feature >= 0)
        gain = scores[tree.left[slot]] + scores[tree.right[slot]] - scores[slot]
        num_features = model.design.num_features
        self.log_likelihood_gain_ = np.bincount(tree.feature[slot], gain, minlength=num_features)
        self._random_seed = self._draw_seed()
        self.posterior_ = Posterior.of(
            model,
            found.trees.reshape(1, 1),
            found.statistics,
            log_joint=found.log_joint,
            log_likelihood=np.array([scores[tree.is_leaf].sum()]),
        )
        if not search.has_rule:
            self._warn_of_no_rule()
        self._warn_of(self.cautions())
        return self

    def cautions(self) -> Iterator[str]:
        """State by how much another tree may be better."""
        if self.map_gap_:
            yield (
                "The search stopped before its end: another tree may have a log joint larger by up "
                f"to {number(self.map_gap_)}. For a smaller gap, raise time_limit or memory_limit, "
                "or use fewer bins."
            )

    @summarised
    def summary(self) -> dict:
        """Summarise the fit in numbers and text of JSON types."""
        check_is_fitted(self)
        names, tree = self.design_.names, self.map_tree_
        return {
            **self._describe(),
            "bins": self._num_bins,
            "expansions": self.num_expansions_,
            "map_log_joint": self.map_log_joint_,
            "map_gap": self.map_gap_,
            "map_leaves": int(tree.num_leaves),
            "map_depth": int(tree.depth),
            "map_rules": self.rules(),
            "feature_importance": dict(zip(names, map(float, self._shares_of_gain), strict=True)),
        }


@estimator
class MAPTreeClassifier(ClassLeaves, MAPTree):
    """Classify by the most probable tree, certified (after MAPTree, Sullivan et al. 2024).

    Examples
    --------
    >>> from bdtppl import MAPTreeClassifier
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> model = MAPTreeClassifier().fit(X, y)
    >>> model.predict([[1.0], [4.0]]).tolist(), model.map_gap_
    (['a', 'b'], 0.0)
    """


@estimator
class MAPTreeRegressor(RealLeaves, MAPTree):
    """Regress by the most probable tree, certified (after MAPTree, Sullivan et al. 2024).

    Examples
    --------
    >>> from bdtppl import MAPTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> model = MAPTreeRegressor().fit(X, y)
    >>> model.predict([[1.0], [4.0]]).round(0).tolist(), model.map_gap_
    ([0.0, 9.0], 0.0)
    """
