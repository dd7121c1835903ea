"""The posterior over structures: trees, their probabilities, and their common features.

A structure is a partition of the training rows by the leaves of trees, or a tree without its
leaves' parameters; for soft trees it is the topology. The exact posterior has no Monte Carlo error.
Others estimate shares from draws, with standard errors. Trees found by a search are not a
posterior: they have relative weights, but neither credible sets nor an entropy. The consensus is
the tree whose partition of the rows is nearest to that of all trees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast, get_args

import numpy as np
from rich.console import RenderableType
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.parameters import require_level
from bdtppl.inference.evidence.estimates import pareto_k
from bdtppl.inference.hard.partitions import Grouping
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.inference.summaries.co_membership import (
    hard_co_membership,
    nearest_tree,
    soft_co_membership,
)
from bdtppl.inference.summaries.diagnostics import Diagnostics, diagnose
from bdtppl.inference.summaries.followed import followed
from bdtppl.inference.summaries.proportions import share_errors
from bdtppl.models.hard.tree import Tree
from bdtppl.models.soft.topology import Topology
from bdtppl.rendering import as_html, as_text
from bdtppl.summary import structures_view, why_no_r_hat

_MOST_TREES = 1000  # structures whose errors are estimated
_MOST_ROWS = 1000  # rows that the consensus is found by
_SHOWN = 5
_PROBABILITY = "probability that a tree splits on the feature"
_WEIGHT_FOUND = "weight of the found trees that split on the feature"
_WEIGHT = "mean weight of the feature in the directions of splits"
_TAIL_COUNTS = 0.01  # probability of a topology whose weights' tail counts


@dataclass(frozen=True, eq=False, repr=False)
class Structures:
    """Posterior over structures of trees; it displays as a summary.

    Attributes
    ----------
    names
        Names of the d features.
    by
        "partition" if trees whose leaves contain the same training rows are one structure; "tree"
        if each tree is its own; "topology" for soft trees.
    ranked
        The most probable tree of each structure, the most probable structure first; None for soft
        trees. Trees that differ only by cuts inside gaps of a node's rows are one.
    topologies
        Distinct topologies, the most probable first; empty for hard trees.
    probability, error
        float64 [structures]; probability of each, and its Monte Carlo error, 0 if it is exact and
        NaN if it is not known. An exact posterior lists up to 1,000 trees, and probabilities of
        partitions are sums over these. For trees found by a search these are their weights.
    entropy
        Entropy of the posterior in nats, of hard trees with each cut counted separately; NaN if it
        is not known.
    entropy_is
        "exact"; "estimated" from importance weights; "of the draws", which is too low if draws
        seldom repeat a structure; or "unknown", for trees found by a search.
    inclusion, inclusion_error
        float64 [d]; probability that a tree splits on a feature. For soft trees, the mean weight of
        the feature in the directions of splits.
    diagnostics
        Rank-normalised R-hat and effective sample size of the log joint, the number of leaves and
        predictions at a few rows, by name, for draws of chains.
    pareto_k
        Shape of the largest importance weights; None if there are none. Above 0.7 they are too
        uneven.
    """

    names: tuple[str, ...]
    by: str
    ranked: RankedTrees | None
    topologies: tuple[Topology, ...]
    probability: np.ndarray
    error: np.ndarray
    entropy: float
    entropy_is: str
    inclusion: np.ndarray
    inclusion_error: np.ndarray
    diagnostics: Mapping[str, Diagnostics]
    pareto_k: float | None
    _model: Any

    def credible_set(self, level: float = 0.9) -> int | None:
        """Count the most probable structures that together reach a probability.

        Parameters
        ----------
        level
            The probability, in (0, 1).

        Returns
        -------
        int or None
            Number of structures: the first ones. None if the listed ones have less, or for trees
            found by a search.

        Raises
        ------
        ValueError
            If the level is not a probability.
        """
        require_level(level)
        if self._model.draws_are == "found":
            return None
        reached = np.cumsum(self.probability) >= level - 1e-12
        return int(reached.argmax()) + 1 if reached.any() else None

    @cached_property
    def co_membership(self) -> np.ndarray:
        """Return the probability that two training rows share a leaf, float64 [n, n]."""
        return self._co_membership(np.arange(len(self._model.posterior_.y)))

    def _co_membership(self, rows: np.ndarray) -> np.ndarray:
        posterior = self._model.posterior_
        if isinstance(posterior, SoftPosterior):
            return soft_co_membership(posterior, rows)
        if self._model.draws_are == "exact":
            return self._model.exact_.co_membership(rows)
        ranked = posterior.ranked
        return hard_co_membership(ranked.trees, ranked.probability, posterior.matrix[rows])

    @property
    def _hard_trees(self) -> RankedTrees:
        """Return the listed trees, for the consensus."""
        if self.ranked is None:
            raise AttributeError(
                "consensus requires hard trees; for soft trees use the most probable topology."
            )
        return self.ranked

    @cached_property
    def _nearest(self) -> tuple[int, float]:
        """Return the place of the consensus and its distance, by some rows if they are many."""
        trees = self._hard_trees.trees
        matrix = self._model.posterior_.matrix
        rows = np.unique(np.linspace(0, len(matrix) - 1, _MOST_ROWS).astype(int))
        return nearest_tree(trees, matrix[rows], self._co_membership(rows))

    @property
    def consensus(self) -> Tree:
        """Return the listed tree whose leaves are nearest to the co-membership of rows.

        Raises
        ------
        AttributeError
            If trees are soft.
        """
        rank = self._nearest[0]
        return self._hard_trees.trees[rank]

    def consensus_rules(self) -> str:
        """Write the consensus as rules, with the predictions of its leaves."""
        rank = self._nearest[0]
        return self._model._written(self.consensus, self._hard_trees.statistics[rank])

    def summary(self) -> dict[str, Any]:
        """Summarise the structures with JSON types."""
        shown = range(min(_SHOWN, len(self.probability)))
        kind, size = self._model.draws_are, self._model.posterior_.num_leaves.shape
        inclusion_is = _WEIGHT_FOUND if kind == "found" else _PROBABILITY
        return {
            "structures": len(self.probability),
            "structures_are": self.by,
            "draws_are": kind,
            "most_probable": [
                {
                    "probability": float(self.probability[rank]),
                    "error": _or_none(self.error[rank]),
                    **self._described(rank),
                }
                for rank in shown
            ],
            "credible_set_90": self.credible_set(0.9),
            "entropy": _or_none(self.entropy),
            "entropy_is": self.entropy_is,
            "inclusion_is": inclusion_is if self.ranked is not None else _WEIGHT,
            "inclusion": {
                name: {"probability": float(share), "error": _or_none(error)}
                for name, share, error in zip(
                    self.names, self.inclusion, self.inclusion_error, strict=True
                )
            },
            "no_cut": list(self._model.no_cut),
            "diagnostics": {
                name: {"r_hat": _or_none(diagnosed.r_hat), "ess": _or_none(diagnosed.ess)}
                for name, diagnosed in self.diagnostics.items()
            },
            "why_no_r_hat": why_no_r_hat(*size) if kind == "chains" else "",
            "pareto_k": None if self.pareto_k is None else _or_none(self.pareto_k),
        }

    def _described(self, rank: int) -> dict[str, Any]:
        """Return the size and splits of a structure."""
        if self.ranked is None:
            shape = self.topologies[rank]
            return {"leaves": shape.num_leaves, "splits_on": shape.code}
        tree = self.ranked.trees[rank]
        used = sorted({int(feature) for feature in tree.feature if feature >= 0})
        return {"leaves": int(tree.num_leaves), "splits_on": [self.names[j] for j in used]}

    def _view(self) -> RenderableType:
        rules = "" if self.ranked is None else self.consensus_rules()
        return structures_view(self.summary(), rules)

    def __str__(self) -> str:
        return as_text(self._view(), 80)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self._view(), 80)


def structures_of(model: Any, by: Grouping | None = None) -> Structures:
    """Summarise the posterior over structures of a fitted estimator.

    Parameters
    ----------
    model
        A fitted estimator; its method ``structures`` calls this.
    by
        See that method.

    Raises
    ------
    ValueError
        If ``by`` is unknown, or given for soft trees.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]] * 9, [0, 0, 1, 1] * 9
    >>> found = structures_of(ExactTreeClassifier(random_state=0).fit(X, y))
    >>> found.credible_set(0.9), found.consensus.threshold[0].item()
    (3, 1.5)
    >>> found.co_membership[0].round(2)[:4].tolist()
    [1.0, 0.85, 0.0, 0.0]
    """
    check_is_fitted(model)
    posterior = model.posterior_
    chains = model.draws_are == "chains"
    is_soft = isinstance(posterior, SoftPosterior)
    if by is not None and (is_soft or by not in get_args(Grouping)):
        allowed = "None for soft trees" if is_soft else "'tree', 'partition' or None"
        raise ValueError(f"by must be {allowed}; got {by!r}.")
    return Structures(
        names=tuple(posterior.names),
        diagnostics=diagnose(followed(posterior)) if chains else {},
        _model=model,
        **(
            _of_soft_trees(model, posterior)
            if is_soft
            else _of_hard_trees(model, posterior, by or model.grouping)
        ),
    )


def _of_hard_trees(model: Any, posterior: Posterior, by: Grouping) -> dict[str, Any]:
    num_features = len(posterior.names)
    if model.draws_are == "exact":
        exact = model.exact_
        facts = {
            "by": by,
            "entropy": exact.entropy,
            "entropy_is": "exact",
            "inclusion": exact.split_inclusion,
            "inclusion_error": np.zeros(num_features),
            "pareto_k": None,
        }
        # Not under a prior on the number of leaves, nor if an entry represents several cuts of a
        # gap, each of which is a tree.
        if exact.lists_trees:
            ranked = model._listed()
            if by == "partition":
                ranked = ranked.by_leaves(posterior.matrix)
            return facts | _structures(ranked, np.zeros(len(ranked)))
        return facts | _drawn_trees(posterior, "independent", by)
    weights = posterior.weights
    uses = (posterior.trees.feature[..., None] == np.arange(num_features)).any(axis=2)
    kind = model.draws_are
    is_importance = model.has_importance_weights
    entropy, entropy_is = _tree_entropy(model, posterior)
    return {
        "by": by,
        "entropy": entropy,
        "entropy_is": entropy_is,
        "inclusion": np.tensordot(weights, uses, axes=2),
        "inclusion_error": _errors(uses, weights, kind),
        "pareto_k": pareto_k(cast(np.ndarray, posterior.log_weights)) if is_importance else None,
    } | _drawn_trees(posterior, kind, by)


def _drawn_trees(posterior: Posterior, kind: str, by: Grouping) -> dict[str, Any]:
    """Find the distinct structures among draws."""
    first, tree = posterior.structures if by == "tree" else posterior.partitions
    probability = np.bincount(tree.ravel(), posterior.weights.ravel())
    best = np.lexsort((first, -probability))
    shown = best[:_MOST_TREES]
    error = np.full(len(best), np.nan)
    error[: len(shown)] = _errors(tree[..., None] == shown, posterior.weights, kind)
    ranked = posterior.listed(first[best], probability[best])
    return _structures(ranked, error)


def _structures(ranked: RankedTrees, error: np.ndarray) -> dict[str, Any]:
    probability = ranked.probability
    return {"ranked": ranked, "topologies": (), "probability": probability, "error": error}


def _errors(member: np.ndarray, weights: np.ndarray, kind: str) -> np.ndarray:
    """Return Monte Carlo errors of shares; they are unknown for trees found by a search."""
    if kind == "found":
        return np.full(member.shape[-1], np.nan)
    return share_errors(member, weights, kind)  # type: ignore[arg-type]


def _tree_entropy(model: Any, posterior: Posterior) -> tuple[float, str]:
    """Return minus the mean log posterior probability, if the sum over all trees is known."""
    if model.draws_are == "found":
        return np.nan, "unknown"
    if model.log_partition_ is not None:
        mean = (posterior.weights * posterior.sample_stats["log_joint"]).sum()
        return float(model.log_partition_ - mean), "estimated"
    return _plug_in(posterior.ranked.probability), "of the draws"


def _plug_in(probability: np.ndarray) -> float:
    known = probability[probability > 0]
    return max(0.0, float(-(known * np.log(known)).sum()))


def _of_soft_trees(model: Any, posterior: SoftPosterior) -> dict[str, Any]:
    number = len(posterior.topologies)
    weights = np.full(posterior.topology.shape, 1 / posterior.topology.size)
    if model.draws_are == "chains":
        member = posterior.topology[..., None] == np.arange(number)
        error = share_errors(member, weights, "chains")
        kind = "chains"
    else:
        error = _evidence_errors(posterior.probability, posterior.log_evidence_ses)
        kind = "independent"
    diagnosed = model.diagnostics_
    tails = [
        diagnosed.get(shape.code, {}).get("pareto_k")
        for shape, share in zip(posterior.topologies, posterior.probability, strict=True)
        if share >= _TAIL_COUNTS
    ]
    known = [tail for tail in tails if tail is not None]
    return {
        "by": "topology",
        "ranked": None,
        "topologies": posterior.topologies,
        "probability": posterior.probability,
        "error": error,
        "entropy": _plug_in(posterior.probability),
        "entropy_is": "of the draws" if kind == "chains" else "estimated",
        "inclusion": posterior.input_weights.mean(axis=(0, 1)),
        "inclusion_error": share_errors(posterior.input_weights, weights, kind),
        "pareto_k": max(known, default=None),
    }


def _evidence_errors(probability: np.ndarray, log_errors: np.ndarray) -> np.ndarray:
    """Compute errors of shares p_m = Z_m / sum Z from those of log Z, by the delta method."""
    own = (1 - probability) ** 2 * log_errors**2
    others = (probability * log_errors) ** 2
    return probability * np.sqrt(own + others.sum() - others)


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
