"""Models of the first format, whose arrays the HDF5 library reads.

That library is not made for files of unknown origin: one that was made on purpose can keep it busy
for ever or crash the process.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bdtppl.array_files import DAMAGED
from bdtppl.files import reason_of
from bdtppl.storage.encoding import encode
from bdtppl.storage.posterior import Arrays

__all__ = ["FILES", "read_version_1"]

FILES = ("model.json", "posterior.nc")

_TREE = ("feature", "threshold", "missing_left", "left", "right")
_POSTERIOR = {
    "hard": {"trees.node_statistics": "statistics", "sample_stats.log_weight": "log_weights"},
    "soft": {
        "posterior.topology": "topology",
        "training.scaling": "scaling",
        "training.matrix": "matrix",
        **{f"topologies.{name}": name for name in ("probability", "log_evidences")},
        "topologies.log_evidence_ses": "log_evidence_ses",
        **{f"trees.{name}": f"trees.{name}" for name in ("direction", "threshold")},
    },
    "sums": {
        "trees.weight": "feature_weight",
        **{
            f"trees.{name}": name
            for name in ("rule", "value", "variance", "noise_rule", "noise_value")
        },
    },
}


def read_version_1(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """Read a model as the present format has it.

    Raises
    ------
    OSError
        If a file is missing or cannot be read.
    ValueError
        If one is damaged.
    """
    try:
        return _read_files(*(folder / name for name in FILES))
    except DAMAGED as error:
        raise ValueError(f"The model in {folder} is damaged: {reason_of(error)}.") from error


def _read_files(description: Path, stored: Path) -> tuple[dict[str, Any], Arrays]:
    document = json.loads(description.read_bytes())
    model, checksums = document["model"], document["sha256"]
    text = json.dumps(model, sort_keys=True, separators=(",", ":"))
    found = {
        stored.name: hashlib.sha256(stored.read_bytes()).hexdigest(),
        "model": hashlib.sha256(text.encode()).hexdigest(),
    }
    if found != checksums:
        raise ValueError("its checksums do not match")
    try:
        with xr.open_datatree(stored, engine="h5netcdf") as tree:
            groups = {name: group.to_dataset().load() for name, group in tree.children.items()}
    except OSError as error:
        raise ValueError(f"{stored.name} cannot be read ({reason_of(error)})") from error
    return _as_present(model, groups)


def _as_present(model: dict[str, Any], groups: dict[str, xr.Dataset]) -> tuple[dict, Arrays]:
    posterior = dict(model["posterior"])
    kind = posterior.setdefault("kind", "hard")
    names = posterior.pop("feature_names")
    given = {
        f"{group}.{name}": np.asarray(variable.values)
        for group, dataset in groups.items()
        for name, variable in dataset.items()
    }
    arrays = {ours: given[theirs] for theirs, ours in _POSTERIOR[kind].items() if theirs in given}
    arrays["y"] = given["training.y"]
    for name, array in given.items():
        group, _, own = name.partition(".")
        if group == "sample_stats" and name not in _POSTERIOR[kind]:
            arrays[f"sample_stats.{'log_joint' if own == 'lp' else own}"] = array
        elif group == "training" and kind != "soft" and own not in ("y", "codes", "count"):
            arrays[f"design.{own}"] = array
        elif group == "trees" and own.startswith("leaf_"):
            arrays[f"trees.leaves.{own.removeprefix('leaf_')}"] = array
        elif group == "state":
            arrays[name] = array
    if kind == "soft":
        posterior |= {
            "names": names,
            "topologies": groups["topologies"]["topology"].values.tolist(),
        }
        posterior.setdefault("effective_size", {"name": "float", "value": "nan"})
    else:
        design = {"names": names}
        if "training.count" in given:
            design["count"] = int(given["training.count"])
        posterior["design"] = encode(design, "the design")
    if kind == "hard":
        arrays |= _tree_arrays("trees", groups["trees"])
    if kind == "sums":
        posterior.pop("log_evidence", None)
        posterior.pop("log_evidence_se", None)
    attributes = {}
    for name, value in model["attributes"].items():
        match value:
            case {"name": "Tree", "group": group}:
                value = {"name": "Tree"}
                arrays |= _tree_arrays(name, groups[group])
            case {"name": "Design"}:
                value = {"name": "posterior", "part": "design"}
        attributes[name] = value
    return model | {"posterior": posterior, "attributes": attributes}, arrays


def _tree_arrays(name: str, dataset: xr.Dataset) -> Arrays:
    arrays = {f"{name}.{each}": dataset[f"node_{each}"].values for each in _TREE}
    return arrays | {f"{name}.num_nodes": dataset["num_nodes"].values}
