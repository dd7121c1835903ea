"""Conversion of a posterior to named arrays and JSON, and back to the last bit.

Derived parts are not stored: codes and edges of a design follow from its rows and cut points, the
paths of soft trees from their topologies. A dot in an array's name separates an object from its
attribute.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior, TreatmentEffect
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.data.design import CutPoints, Design, RowlessDesign
from bdtppl.models.hard.tree import Tree
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree_batch import SoftTrees
from bdtppl.storage.encoding import decode, encode

Arrays = dict[str, Any]  # of NumPy

_DESIGN = ("matrix", "weights", "num_codes", "cut_threshold", "is_indicator", "column")
_ROWLESS = (
    "num_codes", "cut_threshold", "low_edge", "high_edge", "is_indicator", "column", "has_missing",
)  # fmt: skip
_SOFT_TREES = ("direction", "threshold")
_SOFT = (
    "matrix", "y", "scaling", "topology", "probability", "log_evidences", "log_evidence_ses",
    "weights",
)  # fmt: skip
_SUMS = (
    "rule", "value", "variance", "feature_weight", "noise_rule", "noise_value", "linear",
    "linear_deviation", "leaf_scale",
)  # fmt: skip


_OF_EFFECT = ("sums", "propensity")


def describe_posterior(posterior: AnyPosterior) -> tuple[dict[str, Any], Arrays]:
    """Separate a posterior into JSON content and arrays.

    Raises
    ------
    ValueError
        If its model cannot be stored.
    """
    arrays = {f"sample_stats.{name}": a for name, a in posterior.sample_stats.items()}
    if isinstance(posterior, SoftPosterior):
        arrays |= _attributes(posterior, _SOFT)
        arrays |= {
            f"trees.{name}": np.asarray(getattr(posterior.trees, name)) for name in _SOFT_TREES
        }
        arrays |= {
            f"trees.leaves.{name}": np.asarray(a) for name, a in posterior.trees.leaves.items()
        }
        described = {
            "kind": "soft",
            "model": encode(posterior.model, "the model"),
            "names": list(posterior.names),
            "topologies": [shape.code for shape in posterior.topologies],
        }
        numbers = ("sharpness", "log_evidence", "log_evidence_se", "effective_size")
    elif isinstance(posterior, SumPosterior):
        arrays |= _attributes(posterior, ("y", *_SUMS))
        described = {"kind": "sums", "prior": encode(posterior.prior, "the prior")}
        if (effect := posterior.effect) is not None:
            nested: dict[str, Any] = {"feature": effect.feature}
            described["effect"] = nested
            arrays["effect.coding"] = effect.coding
            for name in _OF_EFFECT:
                if (part := getattr(effect, name)) is not None:
                    nested[name], own = describe_posterior(part)
                    arrays |= under(f"effect.{name}", own)
        numbers = ("scale",)
    else:
        arrays |= {"y": posterior.y, "statistics": posterior.statistics}
        arrays |= under("trees", vars(posterior.trees))
        if posterior.log_weights is not None:
            arrays["log_weights"] = posterior.log_weights
        described = {
            "kind": "hard",
            "prior": encode(posterior.prior, "the prior"),
            "leaf": encode(posterior.leaf, "the leaf family"),
        }
        numbers = ("log_evidence", "log_evidence_se", "smoothing")
    if not isinstance(posterior, SoftPosterior):
        of_design, design_arrays = _describe_design(posterior.design)
        described["design"] = encode(of_design, "the design")
        arrays |= under("design", design_arrays)
    described |= {name: encode(getattr(posterior, name), name) for name in numbers}
    return described, arrays


def rebuild_posterior(described: Mapping[str, Any], arrays: Arrays) -> AnyPosterior:
    """Rebuild a posterior from the parts of `describe_posterior`.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it cannot have written them.
    """
    stats = below("sample_stats", arrays)
    nested = described.get("effect")
    values = {name: decode(each) for name, each in described.items() if name != "effect"}
    kind = values.pop("kind")
    if kind == "soft":
        return _rebuild_soft(values, arrays, stats)
    if kind not in ("hard", "sums"):
        raise ValueError(f"posteriors of the kind {kind!r} are not known")
    values["design"] = _rebuild_design(values["design"], below("design", arrays))
    if kind == "sums":
        if nested is not None:
            of_effect = below("effect", arrays)
            parts: Any = {
                name: rebuild_posterior(nested[name], below(name, of_effect))
                for name in _OF_EFFECT
                if name in nested
            }
            values["effect"] = TreatmentEffect(
                coding=of_effect["coding"], feature=nested["feature"], **parts
            )
        return SumPosterior(**values, y=arrays["y"], sample_stats=stats, **_take(arrays, _SUMS))
    return Posterior(
        **values,
        y=arrays["y"],
        trees=Tree(**below("trees", arrays)),
        statistics=arrays["statistics"],
        log_weights=arrays.get("log_weights"),
        sample_stats=stats,
    )


def under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Prefix the names of arrays with a name and a dot."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def below(prefix: str, arrays: Arrays) -> Arrays:
    """Select the arrays whose names start with a name and a dot, and remove this prefix."""
    start = f"{prefix}."
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}


def _attributes(owner: Any, names: Any) -> Arrays:
    """Select the arrays that exist."""
    held = ((name, getattr(owner, name)) for name in names)
    return {name: np.asarray(value) for name, value in held if value is not None}


def _take(arrays: Arrays, names: Any) -> Arrays:
    return {name: arrays[name] for name in names if name in arrays}


def _describe_design(design: CutPoints) -> tuple[dict[str, Any], Arrays]:
    if isinstance(design, RowlessDesign):
        of_rows = {"count": design.count, "pseudo_weight": design.pseudo_weight}
        return {"names": list(design.names), **of_rows}, _attributes(design, _ROWLESS)
    return {"names": list(design.names)}, _attributes(design, _DESIGN)


def _rebuild_design(described: dict[str, Any], arrays: Arrays) -> Any:
    names = tuple(described["names"])
    # Files of 2026 and before lack them.
    column = arrays.setdefault("column", np.arange(len(names), dtype=np.int32))
    starts = np.diff(column, prepend=-1)
    if column.shape != (len(names),) or starts[:1] != 1 or not np.isin(starts, (0, 1)).all():
        raise ValueError("features that belong to no columns")
    if "count" in described:
        of_rows = {key: described[key] for key in described if key != "names"}
        return RowlessDesign(names=names, **of_rows, **_take(arrays, _ROWLESS))
    sizes, thresholds = arrays["num_codes"], arrays["cut_threshold"]
    if len(sizes) != len(names) or (sizes < 1).any() or sizes.sum() != len(thresholds):
        raise ValueError("the numbers of codes do not sum correctly")
    of_feature = np.split(thresholds, np.cumsum(sizes)[:-1])
    if not all(t[0] == -np.inf and (np.diff(t[1:]) > 0).all() for t in of_feature):
        raise ValueError("cut points that are not increasing")
    return Design.from_matrix(
        arrays["matrix"],
        weights=arrays["weights"],
        cuts=[t[1:] for t in of_feature],
        names=names,
        is_indicator=arrays["is_indicator"],
        column=column,
    )


def _rebuild_soft(values: dict[str, Any], arrays: Arrays, stats: Arrays) -> SoftPosterior:
    topologies = tuple(Topology(code) for code in values.pop("topologies"))
    topology, most = arrays["topology"], arrays["trees.threshold"].shape[-1]
    paths = np.zeros((len(topologies), most + 1, most), np.int8)
    is_leaf = np.zeros((len(topologies), most + 1), bool)
    for place, shape in enumerate(topologies):
        if shape.num_splits <= most:  # no draw has a larger one
            paths[place, : shape.num_leaves, : shape.num_splits] = shape.paths
            is_leaf[place, : shape.num_leaves] = True
    trees = SoftTrees(
        paths=paths[topology],
        is_leaf=is_leaf[topology],
        leaves=below("trees.leaves", arrays),
        **{name: arrays[f"trees.{name}"] for name in _SOFT_TREES},
    )
    values["names"] = tuple(values["names"])
    return SoftPosterior(
        **values, topologies=topologies, trees=trees, sample_stats=stats, **_take(arrays, _SOFT)
    )
