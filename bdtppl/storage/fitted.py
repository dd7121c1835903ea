"""Save a fitted estimator into a folder, and load it back to the last bit.

The folder holds two files. ``posterior.nc`` (netCDF) has every large array: the draws, as the
groups ``posterior``, ``sample_stats`` and ``trees`` that ArviZ reads, the training rows, and single
trees. ``model.json`` has all else, and checksums of both. Nothing is pickled, and nothing that is
read is executed: classes are looked up in fixed tables of names.

What is stored of an estimator, for every inference alike:

- its class by name (one that is registered) and its ``get_params()``; in place of a prior or
  constraints with functions, what the fit made of them: weights at the cuts of the training rows;
- ``posterior_``, whether attribute or property (see `bdtppl.storage.posterior`);
- its fitted attributes: whatever `vars` shows with a name that ends in an underscore, if it is the
  design of the posterior, a single `Tree`, a `Schema`, a prior, a leaf family, constraints, a
  number, text, None, a small NumPy array, or a list, tuple or dictionary of these. Properties and
  ``exact_`` are left out: the estimator computes them again when they are asked for. So are
  ``components_``, which are lost;
- what its method ``_saved_state()`` returns, if it has one: a dictionary of such values, for what
  is private and cannot be computed again, such as the seed of predictive draws;
- what its method ``_saved_arrays()`` returns, if it has one: large arrays that belong to this
  state, by name.

`load` makes the estimator from its parameters, sets the fitted attributes, and last calls
``_restore(posterior, state)``, if there is such a method; otherwise it sets ``posterior_``.
"""

import hashlib
import json
import os
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from sklearn.utils.validation import check_is_fitted

import bdtppl
from bdtppl.arviz.groups import label_trees, read_trees
from bdtppl.estimators import estimator_class
from bdtppl.files import staged
from bdtppl.models.data.design import CutPoints
from bdtppl.models.hard.tree import Tree
from bdtppl.storage.encoding import decode, encode
from bdtppl.storage.posterior import describe_posterior, rebuild_posterior

__all__ = ["load", "save"]

FORMAT = "bdtppl model"
FORMAT_VERSION = 1

_ARRAYS = "posterior.nc"
_DESCRIPTION = "model.json"
_NOT_ATTRIBUTES = ("components_", "exact_", "posterior_")  # not kept, rebuilt, stored by itself


def save(estimator: Any, path: str | os.PathLike) -> None:
    """Save a fitted estimator.

    Both files are written aside and moved when they are complete; if anything fails, the folder is
    as it was before.

    Parameters
    ----------
    estimator
        A fitted estimator of bdtppl.
    path
        Folder to write, made if it does not exist; a model that it holds is replaced.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the estimator has not been fitted.
    ValueError
        If it has a part that cannot be stored, such as a prior defined outside bdtppl.
    OSError
        If the folder cannot be written.

    Warns
    -----
    UserWarning
        If ``random_state`` is a generator. It is stored as None: a generator's position in its
        stream is not part of the model.
    """
    check_is_fitted(estimator)
    folder = Path(path)
    model, groups = _take_apart(estimator)
    try:
        with staged(folder) as staging:
            arrays, description = staging / _ARRAYS, staging / _DESCRIPTION
            xr.DataTree.from_dict(groups).to_netcdf(arrays, engine="h5netcdf")
            document = {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "bdtppl_version": bdtppl.__version__,
                "sha256": {_ARRAYS: _checksum_of_file(arrays), "model": _checksum_of_json(model)},
                "model": model,
            }
            text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
            description.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OSError(f"The model cannot be saved in {folder}: {_reason(error)}.") from error


def load(path: str | os.PathLike) -> Any:
    """Load an estimator that `save` wrote.

    It predicts exactly what the saved one predicted, to the last bit on the same machine.

    Parameters
    ----------
    path
        The folder.

    Raises
    ------
    OSError
        If the folder or one of its files is missing or cannot be read.
    ValueError
        If the files are damaged or altered, were not written by `save`, or were written in a format
        newer than this version of bdtppl knows.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier, load
    >>> model = ExactTreeClassifier().fit([[1.0], [2.0], [3.0], [4.0]], ["a", "a", "b", "b"])
    >>> model.save("model")
    >>> bool((load("model").predict_proba([[1.5]]) == model.predict_proba([[1.5]])).all())
    True
    """
    folder = Path(path)
    model = _read_description(folder)["model"]
    try:
        with xr.open_datatree(folder / _ARRAYS, engine="h5netcdf") as tree:
            groups = {name: group.to_dataset().load() for name, group in tree.children.items()}
        return _rebuild(model, groups)
    except _BROKEN as error:
        raise ValueError(
            f"{folder} is not a model that this version of bdtppl can rebuild: {_reason(error)}."
        ) from error


# What reading a document of the wrong shape can raise.
_BROKEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


# -------------------------------------------------------------------------- estimator to parts


def _take_apart(estimator: Any) -> tuple[dict, dict[str, xr.Dataset]]:
    """Take an estimator apart into what goes to JSON and groups of arrays."""
    name = type(estimator).__name__
    if estimator_class(name) is not type(estimator):
        raise ValueError(
            f"A {type(estimator).__module__}.{name} cannot be saved: only estimators that are "
            f"registered can be (see bdtppl.estimators.base.estimator)."
        )
    parameters = estimator.get_params(deep=False)
    if isinstance(parameters.get("random_state"), np.random.RandomState | np.random.Generator):
        warnings.warn(
            "random_state is a generator, whose position in its stream is not saved: the loaded "
            "model will have random_state=None; set it to an integer for draws that repeat.",
            UserWarning,
            stacklevel=4,  # the caller of the estimator's method `save`
        )
        parameters["random_state"] = None
    if parameters.get("bins") == "auto" and hasattr(estimator, "_num_bins"):
        parameters["bins"] = estimator._num_bins  # constraints that are written out name cuts
    for part in ("prior", "constraints"):
        if part in parameters and _has_function(parameters[part]):
            parameters[part] = getattr(estimator, f"{part}_")
    posterior = estimator.posterior_
    groups: dict[str, xr.Dataset] = {}
    attributes = {}
    for attribute, value in vars(estimator).items():
        if not _is_fitted_attribute(attribute) or attribute in _NOT_ATTRIBUTES:
            continue
        if isinstance(value, CutPoints) and value is posterior.design:
            attributes[attribute] = {"name": "Design"}
        elif isinstance(value, Tree):
            groups[attribute] = label_trees(value)
            attributes[attribute] = {"name": "Tree", "group": attribute}
        else:
            attributes[attribute] = encode(value, attribute)
    stored, of_posterior = describe_posterior(posterior, estimator.class_labels)
    groups |= of_posterior
    state = estimator._saved_state()
    if arrays := getattr(estimator, "_saved_arrays", dict)():
        groups["state"] = xr.Dataset({name: _on_own_axes(name, a) for name, a in arrays.items()})
    model = {
        "estimator": name,
        "parameters": {name: encode(value, name) for name, value in parameters.items()},
        "posterior": stored,
        "attributes": attributes,
        "state": {name: encode(value, name) for name, value in state.items()},
    }
    return model, groups


def _has_function(part: Any) -> bool:
    """Whether a prior or constraints hold a function, for which fitted numbers may stand."""
    if not is_dataclass(part) or isinstance(part, type):
        return False
    values = [getattr(part, field.name) for field in fields(part)]
    return any(callable(value) or _has_function(value) for value in values)


def _on_own_axes(name: str, array: np.ndarray) -> tuple:
    return [f"{name}_{axis}" for axis in range(array.ndim)], array


def _is_fitted_attribute(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


# -------------------------------------------------------------------------- parts to estimator


def _rebuild(model: dict, groups: dict[str, xr.Dataset]) -> Any:
    name = model["estimator"]
    kind = estimator_class(name)
    if kind is None:
        raise ValueError(f"the estimator {name!r} is not known")
    posterior: Any = rebuild_posterior(model["posterior"], groups)

    def value_of(encoded: Any) -> Any:
        match encoded:
            case {"name": "Design"}:
                return posterior.design
            case {"name": "Tree", "group": group}:
                return read_trees(groups[group])
        return decode(encoded)

    parameters = {key: decode(value) for key, value in model["parameters"].items()}
    estimator = kind(**parameters)
    for attribute, encoded in model["attributes"].items():
        if not _is_fitted_attribute(attribute):
            raise ValueError(f"{attribute!r} is not the name of a fitted attribute")
        setattr(estimator, attribute, value_of(encoded))
    arrays = {name: each.values for name, each in groups.get("state", {}).items()}
    state = {name: decode(value) for name, value in model["state"].items()}
    estimator._restore(posterior, state | arrays)
    return estimator


# --------------------------------------------------------------------------------------- files


def _read_description(folder: Path) -> dict:
    """Read and check ``model.json``, and the checksum of the arrays."""
    description, arrays = folder / _DESCRIPTION, folder / _ARRAYS
    try:
        text = description.read_bytes()
        checksum = _checksum_of_file(arrays)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"{folder} is not a saved model: {error.filename} does not exist."
        ) from error
    except OSError as error:
        raise OSError(f"The model in {folder} cannot be read: {_reason(error)}.") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{description} is damaged: it is not JSON ({_reason(error)}).") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{description} was not written by bdtppl: it has no format {FORMAT!r}.")
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ValueError(
            f"{description} has format version {version}, written by bdtppl "
            f"{document.get('bdtppl_version')}; bdtppl {bdtppl.__version__} reads versions up to "
            f"{FORMAT_VERSION}: install a newer bdtppl."
        )
    stored = document.get("sha256")
    if not isinstance(stored, dict) or version != FORMAT_VERSION:
        raise ValueError(f"{description} is damaged: its version or its checksums are missing.")
    if stored.get("model") != _checksum_of_json(document.get("model")):
        raise ValueError(f"{description} is damaged or was altered: its checksum does not match.")
    if stored.get(_ARRAYS) != checksum:
        raise ValueError(
            f"{arrays} is damaged, was altered or belongs to another model: its checksum is not "
            f"the one in {_DESCRIPTION}."
        )
    return document


def _checksum_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum_of_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: BaseException) -> str:
    """Say in one line, without a full stop, what went wrong."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")
