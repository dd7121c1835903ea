"""A posterior as groups of labelled arrays and JSON, and back to the last bit.

Hard trees, soft trees and sums of trees have groups of their own; the key "kind" tells them apart.
Where it is missing, trees are hard.
"""

from typing import Any

import xarray as xr

from bdtppl.arviz.groups import label_draws, read_sample_stats, read_trees
from bdtppl.arviz.soft_groups import label_soft_draws, read_soft_draws
from bdtppl.arviz.sum_groups import label_sum_draws, read_sum_draws
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.data.design import Design, RowlessDesign
from bdtppl.storage.encoding import decode, encode

__all__ = ["describe_posterior", "rebuild_posterior"]

_DESIGN_AXES = {
    "matrix": ("row", "feature"),
    "codes": ("row", "feature"),
    "weights": ("row",),
    "num_codes": ("feature",),
    "cut_threshold": ("code",),
    "low_edge": ("code",),
    "high_edge": ("code",),
    "is_indicator": ("feature",),
}
_ROWLESS_AXES = {name: axes for name, axes in _DESIGN_AXES.items() if "row" not in axes} | {
    "has_missing": ("feature",),
    "count": (),
}


def describe_posterior(
    posterior: AnyPosterior, classes: Any = None
) -> tuple[dict, dict[str, xr.Dataset]]:
    """Take a posterior apart into what goes to JSON and groups of arrays.

    Parameters
    ----------
    posterior
        The posterior.
    classes
        Class labels [c], for classification.

    Raises
    ------
    ValueError
        If its model cannot be stored.
    """
    evidence = {
        name: encode(getattr(posterior, name), name) for name in ("log_evidence", "log_evidence_se")
    }
    shared = {"feature_names": list(posterior.names), **evidence}
    if isinstance(posterior, SoftPosterior):
        groups = label_soft_draws(posterior, classes=classes)
        groups["training"] = xr.Dataset(
            {
                "matrix": (("row", "feature"), posterior.matrix),
                "y": ("row", posterior.y),
                "scaling": (("end", "feature"), posterior.scaling),
            }
        )
        described = {
            "kind": "soft",
            "model": encode(posterior.model, "the model"),
            "sharpness": encode(posterior.sharpness, "the sharpness"),
            "effective_size": encode(posterior.effective_size, "the effective size"),
        }
    elif isinstance(posterior, SumPosterior):
        groups = label_sum_draws(posterior)
        groups["training"] = _label_training(posterior)
        described = {"kind": "sums", "prior": encode(posterior.prior, "the prior")}
    else:
        groups = label_draws(posterior, classes=classes)
        groups["training"] = _label_training(posterior)
        described = {
            "kind": "hard",
            "prior": encode(posterior.prior, "the prior"),
            "leaf": encode(posterior.leaf, "the leaf family"),
        }
    return described | shared, groups


def rebuild_posterior(encoded: dict, groups: dict[str, xr.Dataset]) -> AnyPosterior:
    """Rebuild a posterior from the parts of `describe_posterior`.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it cannot have written this.
    """
    kind = encoded.get("kind", "hard")
    rebuild = {"hard": _rebuild_hard, "soft": _rebuild_soft, "sums": _rebuild_sums}.get(kind)
    if rebuild is None:
        raise ValueError(f"posteriors of the kind {kind!r} are not known")
    return rebuild(encoded, groups)


def _rebuild_sums(encoded: dict, groups: dict[str, xr.Dataset]) -> SumPosterior:
    training = groups["training"]
    return SumPosterior(
        prior=decode(encoded["prior"]),
        design=_rebuild_design(training, tuple(encoded["feature_names"])),
        y=training["y"].values,
        **read_sum_draws(groups),
    )


def _rebuild_soft(encoded: dict, groups: dict[str, xr.Dataset]) -> SoftPosterior:
    training = groups["training"]
    return SoftPosterior(
        model=decode(encoded["model"]),
        sharpness=decode(encoded["sharpness"]),
        names=tuple(encoded["feature_names"]),
        log_evidence=decode(encoded["log_evidence"]),
        log_evidence_se=decode(encoded["log_evidence_se"]),
        effective_size=decode(encoded.get("effective_size", {"name": "float", "value": "nan"})),
        **{name: training[name].values for name in ("matrix", "y", "scaling")},
        **read_soft_draws(groups),
    )


def _label_training(posterior: Posterior | SumPosterior) -> xr.Dataset:
    """Label the training rows, or the cut points alone where rows were not kept, and targets."""
    design = posterior.design
    known = _ROWLESS_AXES if isinstance(design, RowlessDesign) else _DESIGN_AXES
    variables = {name: (axes, getattr(design, name)) for name, axes in known.items()}
    coordinates = {
        "row": range(design.num_rows),
        "feature": list(design.names),
        "code": range(len(design.cut_threshold)),
    }
    return xr.Dataset(variables | {"y": ("row", posterior.y)}, coordinates)


def _rebuild_hard(encoded: dict, groups: dict[str, xr.Dataset]) -> Posterior:
    training = groups["training"]
    sample_stats, log_weights = read_sample_stats(groups["sample_stats"])
    return Posterior(
        trees=read_trees(groups["trees"]),
        statistics=groups["trees"]["node_statistics"].values,
        sample_stats=sample_stats,
        leaf=decode(encoded["leaf"]),
        prior=decode(encoded["prior"]),
        design=_rebuild_design(training, tuple(encoded["feature_names"])),
        y=training["y"].values,
        log_evidence=decode(encoded["log_evidence"]),
        log_evidence_se=decode(encoded["log_evidence_se"]),
        log_weights=log_weights,
    )


def _rebuild_design(training: xr.Dataset, names: tuple[str, ...]) -> Any:
    if "count" in training:
        known: dict[str, Any] = {name: training[name].values for name in _ROWLESS_AXES}
        known["count"] = int(known["count"])
        return RowlessDesign(names=names, **known)
    return Design(**{name: training[name].values for name in _DESIGN_AXES}, names=names)
