"""Priors and constraints written as small TOML files.

The file is parsed, never evaluated; every error names its line. ::

    [prior]
    kind = "DepthDecay"
    alpha = 0.95
    beta = 0.8
    feature_weights = { age = 3.0 }

    [leaf]
    kind = "PoissonGamma"
    rate = 2.0

    [constraints]
    min_leaf = 5
    before = [["age", "start"]]

    [constraints.features_at_depth]
    0 = ["age"]

    [[keep_together]]
    start = [-inf, 12]
    age = [27, inf]

The tree of an `EditTree` is named, or written in place (see `read_tree`)::

    [prior]
    kind = "EditTree"
    edit_probability = 0.8
    tree = "last year"
    base = { kind = "DepthDecay", rules = "cuts" }
"""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bdtppl.models.constraints import FUNCTIONS, Constraints, KeepTogether
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior
from bdtppl.models.registry import LEAF_FAMILIES, writable_priors

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_ENTRY = re.compile(
    r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)

Place = tuple[str | int, ...]


def written_settings(prior: Any) -> dict[str, type]:
    """Return the settings of a prior class that are a number or a word: float, int or str.

    A tree is named by a path.
    """
    kinds: dict[str, type] = {}
    for field in fields(prior):
        if isinstance(field.default, str) or field.type is Tree:
            kinds[field.name] = str
        elif field.type is int:
            kinds[field.name] = int
        elif field.repr and not field.metadata.get("static"):
            kinds[field.name] = float
    return kinds


def read_tree(given: Any, folder: str | Path = ".") -> dict[str, Any]:
    """Read the tree of an `EditTree`.

    Parameters
    ----------
    given
        Path of a saved model, for its most probable tree, or of a file that `bdtppl.export.to_json`
        wrote; or nodes in that format: a split is ``{"column", "below" or "level", "missing",
        "left", "right"}``. An omitted "left" or "right" is a leaf; "missing" defaults to "right".
    folder
        Folder to which paths are relative.

    Returns
    -------
    dict
        ``tree`` and ``names`` of `bdtppl.models.edit_tree.EditTree`.

    Raises
    ------
    ValueError
        If there is no tree.
    OSError
        If a file cannot be read.

    Examples
    --------
    >>> read_tree({"column": "age", "below": 27, "right": {"column": "hue", "level": "red"}})
    {'tree': Tree(num_leaves=3)
    x0 < 27
    x0 >= 27
      x1 < 0.5
      x1 >= 0.5, 'names': ('age', 'hue=red')}
    """
    if given is None:
        raise ValueError("an EditTree needs one, as the path of a saved model.")
    if isinstance(given, str):
        path = Path(folder) / given
        if path.is_dir():
            from bdtppl.storage.fitted import load  # which is slow to import

            model = load(path)
            return {"tree": model.k_best(1).trees[0], "names": tuple(model.design_.names)}
        try:
            given = json.loads(path.read_text(encoding="utf-8"))["tree"]
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"{path} was not written by to_json of bdtppl.export.") from None
    names: dict[str, int] = {}
    try:
        tree = Tree.from_nested(_nested(given, names))
    except RecursionError:
        raise ValueError("The tree has too many levels.") from None
    return {"tree": tree, "names": tuple(names)}


def _nested(node: Any, names: dict[str, int]) -> dict[str, Any]:
    """Convert nodes for `Tree.from_nested`, and number the features by their names."""
    if not isinstance(node, Mapping):
        raise ValueError(f"A node of a tree must be a table; got {node!r}.")
    if "column" not in node:
        return {}
    column, level, below = node["column"], node.get("level"), node.get("below")
    if not isinstance(column, str) or not isinstance(below, int | float | None):
        raise ValueError(f"A split needs a column and a number below; got {column!r}, {below!r}.")
    if isinstance(below, int) and abs(below) > sys.float_info.max:
        raise ValueError(f"The number below of a split on {column!r} is too large for float64.")
    if below is None:  # a level, or whether the value is missing
        column, below = f"{column}={'missing' if level is None else level}", 0.5
    return {
        "feature": names.setdefault(column, len(names)),
        "threshold": float(below),
        "missing_left": node.get("missing") == "left",
        "left": _nested(node.get("left", {}), names),
        "right": _nested(node.get("right", {}), names),
    }


@dataclass(frozen=True)
class PriorFile:
    """Contents of a file.

    Attributes
    ----------
    path
        Its path.
    prior
        The prior, or None if the file has none.
    constraints
        The constraints.
    lines
        Line of each table and key, by its place in the file.
    leaf
        Leaf family and its given hyperparameters, or None if the file has none.
    """

    path: Path
    prior: TreePrior | None
    constraints: Constraints
    lines: dict[Place, int]
    leaf: tuple[type[Leaf], dict[str, float]] | None = None

    def make_leaf(self, y: np.ndarray) -> Leaf | None:
        """Make the leaf family for targets [n]; None if the file has none."""
        if self.leaf is None:
            return None
        family, numbers = self.leaf
        return family.of_targets(y, **numbers)

    def locate(self, message: str) -> str:
        """Add the line to an error that starts with a key of the file, as those of fits do."""
        words = re.match(r"(\w+)(?: names '([^']*)')?", message)
        if words is None:
            return message
        key, named = words.groups()
        own = [place for place in self.lines if key in place]
        precise = [place for place in own if place[-1] == named]
        places = precise or own
        return _located(self.path, self.lines[places[0]], message) if places else message


def _located(path: Path, line: int, message: Any) -> str:
    return f"{path}, line {line}: {message}"


def _lines(text: str) -> dict[Place, int]:
    """Return the line of every table and key at the start of a line."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := _ENTRY.match(line):
            place = (*table, *_parts(key[1]))
            for length in range(len(table) + 1, len(place) + 1):
                lines.setdefault(place[:length], number)
    return lines


def _parts(key: str) -> Place:
    names = re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", key)
    return tuple(name.strip("\"'") for name in names)


def read_prior_file(path: str | Path) -> PriorFile:
    r"""Read a prior and constraints from a TOML file.

    Tables are ``[prior]``, whose ``kind`` is the name of a prior and whose other keys are its
    attributes (the ``tree`` of an `EditTree` as in `read_tree`, with paths relative to the file's
    folder, and its ``base`` a table like this one), ``[leaf]``, whose ``kind`` is a leaf family and
    whose other keys are its hyperparameters, ``[constraints]``, whose keys are those of
    `bdtppl.models.constraints.Constraints`, and one ``[[keep_together]]`` for each box, with
    ``[low, high]`` by feature.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ValueError
        If its content is invalid; the message names the line.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "prior.toml"
    ...     _ = path.write_text('[prior]\nkind = "LeafPenalty"\nlog_phi = 3.0')
    ...     read_prior_file(path).prior
    LeafPenalty(log_phi=3.0, rules='gaps')
    """
    path = Path(path)
    try:
        return _read_file(path)
    except RecursionError:
        raise ValueError(f"{path} has too many brackets or tables inside one another.") from None


def _read_file(path: Path) -> PriorFile:
    """Read a file whose tables are not nested too deeply."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        last = max(1, len(text.splitlines()))
        line = int(where[1]) if where and where[1] else last
        message = str(error)[: where.start()] if where else str(error)
        raise ValueError(_located(path, line, f"{message}.")) from None
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(f"{path} contains a number that cannot be read: {error}.") from None
    reader = _Reader(path, _lines(text))
    reader.require(content, (), ("prior", "constraints", "keep_together", "leaf"))
    constraints = reader.constraints(content)
    prior = reader.prior(content.get("prior"), ("prior",))
    return PriorFile(path, prior, constraints, reader.lines, reader.leaf(content))


@dataclass(frozen=True)
class _Reader:
    """Makes parts of a file's content, and names the line of an error."""

    path: Path
    lines: dict[Place, int]

    def fail(self, place: Place, message: Any) -> ValueError:
        """Make the error of a place, or of the nearest table or key that contains it."""
        tried = [place[:n] for n in range(len(place), 0, -1)]
        if len(place) == 1:  # a table that may be repeated
            tried.append((*place, 0))
        line = next((self.lines[known] for known in tried if known in self.lines), 1)
        return ValueError(_located(self.path, line, message))

    def require(self, content: Any, place: Place, known: Any) -> None:
        """Raise unless the value is a table with known keys only."""
        if not isinstance(content, Mapping):
            raise self.fail(place, f"{place[-1]} must be a table.")
        for key in content:
            if key not in known:
                where = f"[{place[-1]}] has no {key!r}; it has" if place else f"{key!r} is no part:"
                raise self.fail((*place, key), f"{where} {', '.join(known)}.")

    def make(self, kind: Any, place: Place, values: Mapping[str, Any]) -> Any:
        """Build a part; its errors start with the name of the wrong entry."""
        try:
            return kind(**values)
        except (TypeError, ValueError, OverflowError) as error:
            name = re.match(r"\w*", str(error))[0]  # pyright: ignore[reportOptionalSubscript]
            raise self.fail((*place, name), error) from None

    def kind(self, values: Any, place: Place, known: Mapping[str, type]) -> Any:
        """Return the class that a table names."""
        given = values.get("kind") if isinstance(values, Mapping) else values
        if not isinstance(given, str) or given not in known:
            raise self.fail(
                (*place, "kind"), f"kind must be one of {', '.join(known)}; got {given!r}."
            )
        return known[given]

    def number(self, value: Any, place: Place) -> float:
        """Read a number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fail(place, f"{place[-1]} must be a number; got {value!r}.")
        try:
            return float(value)
        except OverflowError:
            raise self.fail(place, f"{place[-1]} is too large for float64.") from None

    def leaf(self, content: Mapping[str, Any]) -> tuple[type[Leaf], dict[str, float]] | None:
        """Read the leaf family and its hyperparameters."""
        if "leaf" not in content:
            return None
        values, place = content["leaf"], ("leaf",)
        family = self.kind(values, place, LEAF_FAMILIES)
        self.require(values, place, ("kind", *family.parameter_support))
        numbers = {key: value for key, value in values.items() if key != "kind"}
        return family, {key: self.number(value, (*place, key)) for key, value in numbers.items()}

    def prior(self, values: Any, place: Place) -> TreePrior | None:
        """Make the prior of a table, or return None."""
        if values is None:
            return None
        kind = self.kind(values, place, writable_priors())
        known = written_settings(kind)
        names = [field.name for field in fields(kind)]
        tables = [name for name in ("feature_weights", "base") if name in names]
        self.require(values, place, ("kind", *known, *tables))
        given = {key: value for key, value in values.items() if key != "kind"}
        for key, value in values.items():
            own = (*place, key)
            if key == "kind":
                continue
            if key == "base":
                given[key] = self.prior(value, own)
                continue
            if known.get(key) is float:
                given[key] = self.number(value, own)
                continue
            if key == "feature_weights":
                wanted, fits = "a table or a list of numbers", isinstance(value, Mapping | list)
            elif key == "tree" and kind is EditTree:
                wanted, fits = "a path or a table", isinstance(value, Mapping | str)
            else:
                wanted = "a word" if known[key] is str else "a whole number"
                fits = type(value) is known[key]
            if not fits:
                raise self.fail(own, f"{key} must be {wanted}; got {value!r}.")
        if kind is EditTree:
            try:
                given |= read_tree(given.get("tree"), self.path.parent)
            except (ValueError, OSError) as error:
                raise self.fail((*place, "tree"), f"tree: {error}") from None
        return self.make(kind, place, given)

    def constraints(self, content: Mapping[str, Any]) -> Constraints:
        """Make the constraints, including boxes."""
        place = ("constraints",)
        values = content.get("constraints", {})
        unwritten = {"keep_together", *FUNCTIONS}
        known = [field.name for field in fields(Constraints) if field.name not in unwritten]
        self.require(values, place, known)
        values = dict(values)
        boxes = content.get("keep_together", [])
        if not isinstance(boxes, list) or not all(isinstance(box, Mapping) for box in boxes):
            raise self.fail(("keep_together",), "keep_together must be tables, [[keep_together]].")
        made = []
        for number, box in enumerate(boxes):
            for feature, ends in box.items():
                own = ("keep_together", number, feature)
                if not isinstance(ends, list) or len(ends) != 2:
                    raise self.fail(own, f"A box needs [low, high] for {feature!r}; got {ends!r}.")
                self.make(KeepTogether, own, {"intervals": {feature: ends}})
            made.append(self.make(KeepTogether, ("keep_together", number), {"intervals": box}))
        if not isinstance(values.get("monotone", {}), Mapping):
            own = (*place, "monotone")
            raise self.fail(own, "monotone must be a table from features to 1 or -1.")
        levels = values.get("features_at_depth")
        if levels is not None:
            own = (*place, "features_at_depth")
            if not isinstance(levels, Mapping):
                raise self.fail(own, "features_at_depth must be a table from depths to features.")
            for depth, features in levels.items():
                if not depth.isdecimal():
                    raise self.fail((*own, depth), f"A depth must be a number; got {depth!r}.")
                if not isinstance(features, list):
                    message = f"features_at_depth must list features; got {features!r}."
                    raise self.fail((*own, depth), message)
            values["features_at_depth"] = {int(depth): some for depth, some in levels.items()}
        return self.make(Constraints, place, values | {"keep_together": made})
