"""Convert a posterior over trees to an ArviZ data tree.

ArviZ diagnoses and plots numbers with chain and draw axes, so the group ``posterior`` contains the
numbers that describe a tree: its leaves, its depth, its splits on each feature. The trees
themselves, which have no trace, are arrays in the group ``trees``. The pointwise log likelihood has
the leaf parameters integrated out given all *other* rows, so that PSIS-LOO estimates exact
leave-one-out (Vehtari, Gelman and Gabry 2017, section 2).

The data tree is built with xarray alone. ArviZ 1 uses it as it is; `for_installed_arviz` converts
it for ArviZ 0.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from sklearn.utils import check_random_state

import bdtppl
from bdtppl.arviz.groups import class_labels, label_draws
from bdtppl.arviz.soft_groups import label_soft_draws
from bdtppl.arviz.sum_groups import label_sum_draws
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.inference.statistics import effective_sample_size

_LABELS: dict[type, Any] = {
    Posterior: label_draws,
    SoftPosterior: label_soft_draws,
    SumPosterior: label_sum_draws,
}
_LIKELIHOOD_TIE = 1e-9  # log likelihoods of a row that differ by less are ties up to rounding


class PriorDraws(NamedTuple):
    """Draws from the prior.

    Attributes
    ----------
    described
        Numbers that describe the trees, [chain, draw, ...].
    targets
        [chain, draw, obs]; targets of the observed rows given each tree and no target.
    """

    described: xr.Dataset
    targets: np.ndarray


class PsisLoo(NamedTuple):
    """Leave-one-out predictions by Pareto smoothed importance sampling.

    Attributes
    ----------
    log_density
        float64 [obs]; log density or probability of each observation given all others.
    pareto_k
        float64 [obs]; shape of the largest importance ratios. Above 0.7 the estimate is not
        reliable.
    """

    log_density: np.ndarray
    pareto_k: np.ndarray


def to_arviz(
    posterior: AnyPosterior,
    *,
    random_state: int | np.random.RandomState | None = None,
    classes: Any = None,
    inference: str | None = None,
    certificates: Mapping[str, Any] | None = None,
    prior: PriorDraws | None = None,
) -> xr.DataTree:
    """Convert a posterior to the layout that ArviZ expects.

    The log likelihood of a row is raised to the power of its weight (``constant_data.weight``), so
    that sums over ``obs`` (`arviz.loo`) are weighted; if the weights are not counts, the likelihood
    is a pseudo-likelihood. ArviZ treats all draws as equally weighted, so weighted trees are
    resampled to 4 chains of 250 draws. The attribute ``effective_size`` is then the effective
    sample size of the weights, 1 over the sum of their squares, which ArviZ's own effective sample
    sizes and R-hat do not reflect.

    Parameters
    ----------
    posterior
        Draws of trees.
    random_state
        Seed or generator of the posterior predictive draws, in scikit-learn's sense.
    classes
        Class labels [c], for classification: y is an index into them.
    inference
        Name of the inference, stored in the attributes.
    certificates
        Bounds by name, as further attributes.
    prior
        Draws from the prior; the estimators' method ``to_arviz`` makes them.

    Returns
    -------
    xarray.DataTree
        posterior
            ``num_leaves``, ``max_leaf_depth`` [chain, draw]; ``splits_on`` [chain, draw, feature],
            the number of splits on each feature.
        sample_stats
            [chain, draw]: ``lp`` (log joint), ``log_likelihood`` (of all rows), and other numbers
            that the inference reports.
        log_likelihood
            ``y`` [chain, draw, obs], rounded to 1e-9 (see the notes).
        posterior_predictive
            ``y`` [chain, draw, obs].
        observed_data
            ``y`` [obs].
        constant_data
            ``X`` [obs, feature] (NaN is missing), ``weight`` [obs].
        prior, prior_predictive
            The same for draws from the prior, if there are any; these draws are separate.
        trees
            The arrays of `Tree`, as ``node_feature``, ``node_threshold``, ...
            [chain, draw, node] and ``num_nodes`` [chain, draw]; the statistics of the training rows
            in each node, ``node_statistics`` [chain, draw, node, class or statistic].

    Soft trees and sums of trees have their own groups instead of these arrays: see
    `bdtppl.arviz.soft_groups.label_soft_draws` and `bdtppl.arviz.sum_groups.label_sum_draws`. Their
    log likelihood is that of each row given the draw's parameters; the compound likelihood of
    classes (equation 8 of Cochrane et al. 2024) is not a distribution of single rows, and the group
    is then absent.

    Notes
    -----
    Many trees give a row the same likelihood. ArviZ's Pareto smoothing breaks if the largest
    importance ratios are ties, exactly or up to rounding: it returns NaN, fails, or fits a shape of
    20. The log likelihood is therefore rounded to 1e-9, and draws that tie for a row's smallest
    value are spread evenly over 1e-9 above it.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier(random_state=0).fit([[0.0], [1.0]], ["no", "yes"])
    >>> data = to_arviz(model.posterior_, random_state=0, classes=["no", "yes"])
    >>> data.log_likelihood.y.dims
    ('chain', 'draw', 'obs')
    >>> int(data.posterior.num_leaves.max())
    2
    """
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    attributes = {
        "inference_library": "bdtppl",
        "inference_library_version": bdtppl.__version__,
        "inference": inference or "",
        **_describe(posterior),
        "log_evidence": float(posterior.log_evidence),
        "log_evidence_se": float(posterior.log_evidence_se),
        **_effective_size(posterior),
        **{name: np.asarray(bound) for name, bound in (certificates or {}).items()},
    }
    groups = _groups(_equally_weighted(posterior, seed), seed, classes, prior)
    groups["/"] = xr.Dataset(attrs=attributes)
    groups["posterior"].attrs = attributes
    return xr.DataTree.from_dict(groups)


def _groups(posterior: Any, seed: int, classes: Any, prior: PriorDraws | None) -> dict[str, Any]:
    """Label the arrays of each group of the data tree."""
    matrix, y = posterior.matrix, posterior.y
    predictive = posterior.sample_predictive(jax.random.key(seed), matrix)
    groups: dict[str, Any] = _LABELS[type(posterior)](posterior, classes=classes)
    draws = {name: groups["trees"].coords[name] for name in ("chain", "draw")}
    obs = {"obs": np.arange(len(y))}
    labels = {} if classes is None else {"class": class_labels(classes)}
    about_y = {} if classes is None else {"description": "index into the coordinate class"}

    def pointwise(values: np.ndarray, draws: Any = draws) -> xr.Dataset:
        variable = (("chain", "draw", "obs"), values, about_y)
        return xr.Dataset({"y": variable}, draws | obs | labels)

    if posterior.has_pointwise_likelihood:
        log_likelihood = _log_likelihood(posterior)
        groups["log_likelihood"] = pointwise(log_likelihood)
        if "log_likelihood" not in groups["sample_stats"]:
            total = ("chain", "draw"), log_likelihood.sum(axis=-1)
            groups["sample_stats"] = groups["sample_stats"].assign(log_likelihood=total)
    if prior is not None:
        own = {name: prior.described.coords[name] for name in ("chain", "draw")}
        groups["prior"] = prior.described
        groups["prior_predictive"] = pointwise(prior.targets, own)
    return groups | {
        "posterior_predictive": pointwise(predictive),
        "observed_data": xr.Dataset({"y": ("obs", y, about_y)}, obs | labels),
        "constant_data": xr.Dataset(
            {"X": (("obs", "feature"), matrix), "weight": ("obs", posterior.row_weights)},
            obs | {"feature": list(posterior.names)},
        ),
        "trees": groups.pop("trees"),
    }


def _effective_size(posterior: AnyPosterior) -> dict[str, float]:
    """Return the effective sample size of weighted draws; empty for equally weighted ones."""
    if isinstance(posterior, SumPosterior):
        return {}
    if isinstance(posterior, SoftPosterior):
        size = posterior.effective_size
        return {"effective_size": size} if np.isfinite(size) else {}
    if posterior.log_weights is None:
        return {}
    return {"effective_size": effective_sample_size(posterior.weights)}


def _describe(posterior: AnyPosterior) -> dict[str, Any]:
    """Describe the model."""
    if isinstance(posterior, SoftPosterior):
        return {"model": repr(posterior.model), "sharpness": posterior.sharpness}
    if isinstance(posterior, SumPosterior):
        return {"prior": repr(posterior.prior), "target_scale": str(posterior.scale)}
    return {"prior": repr(posterior.prior), "leaf": repr(posterior.leaf)}


def for_installed_arviz(data: xr.DataTree) -> Any:
    """Convert a data tree to the type that the installed ArviZ uses.

    Returns
    -------
    xarray.DataTree or arviz.InferenceData
        The data tree itself from ArviZ 1 on, else an InferenceData.
    """
    import arviz

    if hasattr(arviz, "from_datatree"):
        return arviz.from_datatree(data)
    return data


def psis_loo(
    posterior: AnyPosterior, *, random_state: int | np.random.RandomState | None = None
) -> PsisLoo:
    """Estimate by PSIS-LOO how well each observation is predicted from all others.

    Parameters
    ----------
    posterior
        Draws of trees; weighted ones are resampled, as in `to_arviz`.
    random_state
        Seed or generator of the resampling, in scikit-learn's sense.

    Raises
    ------
    ValueError
        If rows have no individual likelihood (equation 8 of Cochrane et al. 2024).

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier(random_state=0).fit([[0], [1], [2], [3]] * 9, [0, 0, 1, 1] * 9)
    >>> psis_loo(model.posterior_, random_state=0).log_density.sum().round()
    np.float64(-2.0)
    """
    import arviz

    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    posterior = _equally_weighted(posterior, seed)
    log_likelihood = _log_likelihood(posterior)
    axes = ("chain", "draw", "obs")
    data = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"num_leaves": (axes[:2], posterior.num_leaves)}),
            "log_likelihood": xr.Dataset({"y": (axes, log_likelihood)}),
        }
    )
    with warnings.catch_warnings():  # the shapes of the tails are returned
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
        warnings.simplefilter("ignore", RuntimeWarning)  # weights of a tail that overflow are 0
        loo = arviz.loo(for_installed_arviz(data), pointwise=True)
    log_density = loo.elpd_i if hasattr(loo, "elpd_i") else loo.loo_i
    return PsisLoo(log_density.values, loo.pareto_k.values)


def _equally_weighted(posterior: AnyPosterior, seed: int) -> AnyPosterior:
    """Resample weighted draws, because ArviZ does not support weights."""
    if isinstance(posterior, Posterior) and posterior.log_weights is not None:
        return posterior.resampled(seed)
    return posterior


def _log_likelihood(posterior: AnyPosterior) -> np.ndarray:
    """Return the log likelihood of each observation given a draw, float64 [chain, draw, obs]."""
    if isinstance(posterior, Posterior):
        return _without_ties(posterior.log_likelihood())
    return posterior.log_likelihood()


def _without_ties(log_likelihood: np.ndarray) -> np.ndarray:
    """Round to 1e-9 and spread the draws that tie for a row's smallest value; [chain, draw, n]."""
    units = np.round(log_likelihood.reshape(-1, log_likelihood.shape[-1]) / _LIKELIHOOD_TIE)
    is_smallest = units == units.min(axis=0)
    units += is_smallest * (np.cumsum(is_smallest, axis=0) / is_smallest.sum(axis=0))
    return (units * _LIKELIHOOD_TIE).reshape(log_likelihood.shape)
