"""Save a fitted estimator into a folder, and load it back to the last bit.

The folder holds one file, `FILE`: the arrays of the posterior, and a header with all else (see
`bdtppl.array_files`). Nothing is pickled, and no loaded data are executed: classes are looked up in
fixed tables of names.

Stored parts of an estimator, for every inference alike:

- its class by name (one that is registered) and its ``get_params()``; a prior or constraints with
  functions are replaced by the fit's result: weights at the cuts of the training rows;
- ``posterior_``, whether attribute or property (see `bdtppl.storage.posterior`);
- its fitted attributes: whatever `vars` shows with a name that ends in an underscore, if it is a
  part of the posterior, a single `Tree`, a `Schema`, a prior, a leaf family, constraints, a number,
  text, None, a small NumPy array, or a list, tuple or dictionary of these. Properties and
  ``exact_`` are omitted and recomputed when needed. ``components_`` are omitted and lost;
- the result of its method ``_saved_state()``, if it has one: a dictionary of such values, for
  private ones that cannot be recomputed, such as the seed of predictive draws;
- the result of its method ``_saved_arrays()``, if it has one: large arrays that belong to this
  state, by name.

`load` makes the estimator from its parameters, sets the fitted attributes, and finally calls
``_restore(posterior, state)``, if there is such a method; otherwise it sets ``posterior_``. The
content must be one that a fit could have made (`bdtppl.storage.checks`), and nothing more: `load`
saves the estimator again, and must obtain all parts of the file.
"""

import os
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.array_files import DAMAGED, read_arrays, write_arrays
from bdtppl.estimators import estimator_class
from bdtppl.files import reason_of, staged
from bdtppl.models.hard.tree import Tree
from bdtppl.models.settings import check_parameters, declared_fields, kinds_of
from bdtppl.storage.checks import (
    require_classes,
    require_posterior,
    require_statistics,
    require_trees,
)
from bdtppl.storage.encoding import decode, encode
from bdtppl.storage.posterior import Arrays, below, describe_posterior, rebuild_posterior, under

FILE = "model.bdtppl"
_MODEL_KIND = "bdtppl model"
_NOT_ATTRIBUTES = ("components_", "exact_", "posterior_")  # lost, rebuilt, stored separately
_OF_POSTERIOR = ("design", "prior", "leaf", "model")  # parts of a posterior, maybe attributes


def save(estimator: Any, path: str | os.PathLike) -> None:
    """Save a fitted estimator.

    The file is written under a temporary name and moved when complete. If anything fails or the
    process is killed, the folder still contains the previous model.

    Parameters
    ----------
    estimator
        A fitted estimator of bdtppl.
    path
        Folder to write, created if it does not exist; a model in it is replaced. ``~`` is the home
        folder.

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
        If ``random_state`` is a generator. It is stored as None, because a generator's position in
        its stream is not part of the model.
    """
    check_is_fitted(estimator)
    folder = Path(path).expanduser()
    header, arrays = _take_apart(estimator, stacklevel=3)
    try:
        with staged(folder) as staging:
            write_arrays(staging / FILE, _MODEL_KIND, header, arrays)
    except OSError as error:
        raise OSError(f"The model cannot be saved in {folder}: {reason_of(error)}.") from error


def load(path: str | os.PathLike, *, trusted: bool = False) -> Any:
    """Load an estimator that `save` wrote.

    It predicts exactly what the saved one predicted, to the last bit on the same machine.

    Parameters
    ----------
    path
        The folder; ``~`` is the home folder.
    trusted
        Whether the file is known to come from bdtppl, so that the checks of its contents, which
        take about as long as reading it, can be skipped.

    Raises
    ------
    OSError
        If the folder or its file is missing or cannot be read.
    ValueError
        If the file is damaged or altered, was not written by `save`, or was written in a format
        newer than this version of bdtppl knows.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier, load
    >>> model = ExactTreeClassifier().fit([[1.0], [2.0], [3.0], [4.0]], ["a", "a", "b", "b"])
    >>> model.save("model")
    >>> bool((load("model").predict_proba([[1.5]]) == model.predict_proba([[1.5]])).all())
    True
    """
    folder = Path(path).expanduser()
    model, arrays = _read_folder(folder)
    try:
        estimator = _rebuild(model, arrays)
        if not trusted:
            _check_loaded(estimator, model, arrays)
    except DAMAGED as error:
        raise ValueError(
            f"{folder} is not a model that this version of bdtppl can rebuild: {reason_of(error)}."
        ) from error
    return estimator


def _read_folder(folder: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        return read_arrays(folder / FILE, _MODEL_KIND)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"{folder} is not a saved model: {error.filename} does not exist."
        ) from error
    except OSError as error:
        raise OSError(f"The model in {folder} cannot be read: {reason_of(error)}.") from error


# -------------------------------------------------------------------------- estimator to parts


def _take_apart(estimator: Any, stacklevel: int = 1) -> tuple[dict[str, Any], Arrays]:
    """Separate an estimator into the header's content and arrays."""
    name = type(estimator).__name__
    if estimator_class(name) is not type(estimator):
        raise ValueError(
            f"A {type(estimator).__module__}.{name} cannot be saved: only estimators that are "
            f"registered can be (see bdtppl.estimators.base.estimator)."
        )
    parameters = {
        field.name: getattr(estimator, field.name)
        for field, said in declared_fields(estimator)
        if said.is_saved
    }
    if isinstance(parameters.get("random_state"), np.random.RandomState | np.random.Generator):
        warnings.warn(
            "random_state is a generator, whose position in its stream is not saved: the loaded "
            "model will have random_state=None; set it to an integer for reproducible draws.",
            UserWarning,
            stacklevel=stacklevel + 1,  # the caller of the estimator's method `save`
        )
        parameters["random_state"] = None
    if parameters.get("bins") == "auto" and hasattr(estimator, "_num_bins"):
        parameters["bins"] = estimator._num_bins  # constraints whose stored form names cuts
    for part in ("prior", "constraints"):
        if part in parameters and _has_function(parameters[part]):
            parameters[part] = getattr(estimator, f"{part}_")
    posterior = estimator.posterior_
    stored, arrays = describe_posterior(posterior)
    attributes = {}
    for attribute, value in vars(estimator).items():
        if not _is_fitted_attribute(attribute) or attribute in _NOT_ATTRIBUTES:
            continue
        part = next((p for p in _OF_POSTERIOR if getattr(posterior, p, estimator) is value), None)
        if part is not None:
            attributes[attribute] = {"name": "posterior", "part": part}
        elif isinstance(value, Tree):
            attributes[attribute] = {"name": "Tree"}
            arrays |= under(attribute, vars(value))
        else:
            attributes[attribute] = encode(value, attribute)
    arrays |= under("state", getattr(estimator, "_saved_arrays", dict)())
    state = estimator._saved_state()
    header = {
        "estimator": name,
        "parameters": {name: encode(value, name) for name, value in parameters.items()},
        "posterior": stored,
        "attributes": attributes,
        "state": {name: encode(value, name) for name, value in state.items()},
    }
    return header, arrays


def _has_function(part: Any) -> bool:
    """Return whether a prior or constraints contain a function that fitted numbers can replace."""
    if not is_dataclass(part) or isinstance(part, type):
        return False
    values = [getattr(part, field.name) for field in fields(part)]
    return any(callable(value) or _has_function(value) for value in values)


def _is_fitted_attribute(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


# -------------------------------------------------------------------------- parts to estimator


def _rebuild(model: dict[str, Any], arrays: Arrays) -> Any:
    name = model["estimator"]
    kind = estimator_class(name)
    if kind is None:
        raise ValueError(f"the estimator {name!r} is not known")
    posterior: Any = rebuild_posterior(model["posterior"], arrays)

    def value_of(attribute: str, encoded: Any) -> Any:
        match encoded:
            case {"name": "posterior", "part": part} if part in _OF_POSTERIOR:
                return getattr(posterior, part)
            case {"name": "Tree", **others} if not others:
                return Tree(**below(attribute, arrays))
        return decode(encoded)

    parameters = {key: decode(value) for key, value in model["parameters"].items()}
    estimator = kind(**parameters)
    for attribute, encoded in model["attributes"].items():
        if not _is_fitted_attribute(attribute):
            raise ValueError(f"{attribute!r} is not the name of a fitted attribute")
        setattr(estimator, attribute, value_of(attribute, encoded))
    state = {name: decode(value) for name, value in model["state"].items()}
    estimator._restore(posterior, state | below("state", arrays))
    return estimator


def _check_loaded(estimator: Any, model: dict[str, Any], arrays: Arrays) -> None:
    """Reject an estimator that no fit could have made, and a file with additional content."""
    posterior = estimator.posterior_
    require_posterior(posterior, counts_rows=estimator.counts_rows)
    _require_attributes(estimator)
    if estimator.class_labels is not None:
        require_classes(estimator.class_labels, posterior)
    for attribute, value in vars(estimator).items():
        if isinstance(value, Tree) and _is_fitted_attribute(attribute):
            require_trees(value, len(posterior.names), ())
            statistics = getattr(estimator, attribute.replace("tree", "statistics"), None)
            if statistics is not None:
                require_statistics(posterior, value.reshape(1), statistics[None])
    _require_features(estimator)
    check_parameters(estimator)
    again, arrays_again = _take_apart(estimator)
    for part, encoded in again.items():
        if not _holds(encoded, model[part]):
            raise ValueError(f"its {part} is not that of a fitted {type(estimator).__name__}")
    for name, array in arrays.items():
        same = arrays_again.get(name)
        if same is None or same.dtype != array.dtype or same.tobytes() != array.tobytes():
            raise ValueError(f"its array {name} is not of a fitted {type(estimator).__name__}")


def _require_features(estimator: Any) -> None:
    """Raise unless a schema has the features of the posterior, except projections."""
    schema = getattr(estimator, "schema_", None)
    if schema is None:
        return
    names, own = estimator.posterior_.names, schema.features
    num_projections = len(getattr(estimator, "directions_", ()))
    if own != names[: len(own)] or len(own) + num_projections != len(names):
        raise ValueError("its schema and its posterior have other features")
    if getattr(estimator, "columns_", None) is None:
        columns = [column.name for column in schema.columns]
        if len(columns) != estimator.n_features_in_:
            raise ValueError("its schema has another number of columns")
        if [*getattr(estimator, "feature_names_in_", columns)] != columns:
            raise ValueError("its schema has other names")


def _require_attributes(estimator: Any) -> None:
    """Raise if fitted attributes are missing, or differ in kind from the class's declaration."""
    for name, declared in get_type_hints(type(estimator)).items():
        is_kept = _is_fitted_attribute(name) and name not in _NOT_ATTRIBUTES
        if not is_kept or (name == "classes_" and not estimator.is_classifier):
            continue
        kinds = tuple(get_origin(kind) or kind for kind in kinds_of(declared))
        if name in vars(estimator):
            if Any not in kinds and not isinstance(vars(estimator)[name], kinds):
                raise ValueError(f"{name} is a {type(vars(estimator)[name]).__name__}")
        elif not hasattr(type(estimator), name):
            raise ValueError(f"{name} is missing")


def _holds(whole: Any, part: Any) -> bool:
    """Return whether `value` contains every entry of `other`; newer versions may add entries."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(name in whole and _holds(whole[name], each) for name, each in part.items())
    if isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        return all(map(_holds, whole, part))
    return whole == part
