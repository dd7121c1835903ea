"""Tables in parts (dask frames and iterables of chunks), and the passes over them.

dask is imported only if a dask frame is given.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bdtppl.estimators.base import read_target, read_weights
from bdtppl.inference.boxes.histograms import BoxHistograms
from bdtppl.inference.boxes.parts import (
    BoxTally,
    Chunks,
    Labels,
    Part,
    Parts,
    Survey,
    TargetMoments,
    in_pairs,
)
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.models.data.design import RowlessDesign
from bdtppl.models.data.schema import Schema
from bdtppl.models.leaf import Leaf
from bdtppl.table_files import PARQUET


class DaskParts:
    """Parts of a dask frame, read where dask computes: on its client's workers, if it has one.

    Parameters
    ----------
    X
        dask DataFrame.
    y, sample_weight
        Names of columns of X, or dask Series with its partitions; no weights by default.

    Raises
    ------
    TypeError, ValueError
        If they are neither, or have other partitions.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None):
        if y is None:
            raise ValueError("y must name the column of targets, or be a dask Series of them.")
        named = [name for name in (y, sample_weight) if isinstance(name, str)]
        for name in named:
            if name not in X.columns:
                raise ValueError(f"Column {name!r} is not in X.")
        columns = [X[name] if isinstance(name, str) else name for name in (y, sample_weight)]
        self.table = X.drop(columns=named)
        frames = [self.table, *(column for column in columns if column is not None)]
        for name, frame in zip(("X", "y", "sample_weight"), frames, strict=False):
            if not is_dask(frame):
                raise TypeError(
                    f"{name} must be the name of a column or a dask Series if X is a dask "
                    f"DataFrame; got {type(frame).__name__}."
                )
        # Optimised separately, a frame may join partitions that the others keep.
        parts = [frame.to_delayed(optimize_graph=False) for frame in frames]
        if len({len(each) for each in parts}) > 1:
            raise ValueError("X, y and sample_weight must have the same partitions.")
        self.parts = list(zip(*parts, strict=True))

    @property
    def example(self) -> Any:
        """Return a table with the columns of every part."""
        return self.table._meta

    def reduce(self, summarise: Callable, merge: Callable) -> Any:
        """Summarise each partition and merge the summaries in pairs, all within dask."""
        from dask.base import compute
        from dask.delayed import delayed

        summaries = [delayed(_summarised, pure=False)(summarise, *part) for part in self.parts]
        merged = delayed(partial(_merge_pair, merge), pure=False)
        [total] = compute(in_pairs(summaries, merged))
        return total


def _summarised(summarise: Callable, X: Any, y: Any, weights: Any = None) -> Any:
    return summarise(Part(X, y, weights))


def _merge_pair(merge: Callable, one: Any, other: Any) -> Any:
    return in_pairs([one, other], merge)


def is_dask(table: Any) -> bool:
    """Return whether a table is a dask DataFrame or Series."""
    return type(table).__module__.startswith("dask.dataframe.")


def parts_of(X: Any, y: Any, sample_weight: Any) -> Parts | None:
    """Read the arguments of `fit` as rows in parts; return None for a table in memory.

    Raises
    ------
    TypeError
        If X is an iterator, which cannot be read twice, or chunks are combined with further
        arguments.
    """
    if is_dask(X):
        return DaskParts(X, y, sample_weight)
    if isinstance(X, Iterator):
        raise TypeError(
            "X must be readable twice; got an iterator: pass a function without arguments that "
            "returns a new iterator of chunks (X, y) on each call."
        )
    if not callable(X):
        return None
    if y is not None or sample_weight is not None:
        raise TypeError(
            "y and sample_weight must be part of the chunks if X is a function: let it return "
            "chunks (X, y) or (X, y, sample_weight), and pass neither separately."
        )
    return Chunks(X)


@dataclass(frozen=True)
class Reader:
    """Reads the rows of a part.

    Attributes
    ----------
    check
        Returns targets [n] in the form to be summed, or raises ValueError.
    summary
        `Labels` or `TargetMoments`.
    """

    check: Callable[[np.ndarray], np.ndarray]
    summary: type[Labels] | type[TargetMoments]

    def rows(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Read targets and weights of a part, [n] both."""
        y = self.check(read_target(part.y))
        return y, read_weights(part.weights, len(y))

    def survey(self, part: Part) -> Survey | None:
        """Summarise a part in the first pass."""
        y, weights = self.rows(part)
        kept = weights > 0
        if not kept.any():
            return None
        return Survey.of(part.X, weights, self.summary.of(y[kept], weights[kept]))

    def tally(self, part: Part, *, schema: Schema, labels: np.ndarray | None, **known: Any):
        """Summarise a part in the second pass; see `fill`."""
        y, weights = self.rows(part)
        kept = weights > 0
        if not kept.any():
            return None
        y, matrix = y[kept], schema.transform(part.X)[kept]
        if labels is None:
            known["leaf"].require_targets(y)
        else:
            y = np.searchsorted(labels, y)
        return BoxTally.of(matrix, y, weights[kept], **known)


def survey(parts: Parts, reader: Reader) -> Survey:
    """Pass over the rows for the first time.

    Raises
    ------
    ValueError, TypeError
        If the rows cannot be read, or there are none.
    """
    found = parts.reduce(reader.survey, Survey.merge)
    if found is None:
        raise ValueError("The parts have no rows (0 samples, or all of weight 0).")
    return found


def fill(
    parts: Parts,
    reader: Reader,
    *,
    schema: Schema,
    labels: np.ndarray | None,
    cut_points: RowlessDesign,
    space: BoxSpace,
    leaf: Leaf,
    with_keys: bool,
    counts_apart: bool,
) -> tuple[RowlessDesign, BoxHistograms]:
    """Pass over the rows for the second time.

    Parameters
    ----------
    parts, reader
        The rows.
    schema
        How tables are read.
    labels
        Sorted labels [c]; None for regression.
    cut_points
        The cut points.
    space
        The boxes between them.
    leaf
        Leaf family.
    with_keys
        Whether keys of rows are summed.
    counts_apart
        Whether rows are counted in addition to their statistics.

    Returns
    -------
    design
        The cut points, with the range of the values of each code.
    histograms
        Sums over all rows.

    Raises
    ------
    ValueError, TypeError
        If the rows cannot be read, or their number differs from the first pass.
    """
    known = {"cut_points": cut_points, "space": space, "leaf": leaf, "with_keys": with_keys}
    known["counts_apart"] = counts_apart
    tally = parts.reduce(
        partial(reader.tally, schema=schema, labels=labels, **known), BoxTally.merge
    )
    count = 0 if tally is None else tally.count
    if tally is None or count != cut_points.count:
        raise ValueError(
            f"The second pass over the parts found {count:,} rows and the first one "
            f"{cut_points.count:,}: they must be the same each time."
        )
    design = replace(cut_points, low_edge=tally.low_edge, high_edge=tally.high_edge)
    return design, BoxHistograms.of_sums(space, tally.values, tally.keys)


def read_folder(folder: Path) -> Any:
    """Open a folder of Parquet files with the same columns as a dask DataFrame.

    Raises
    ------
    ValueError
        If dask or pyarrow is missing, or the folder has no Parquet file.
    """
    if not all(map(find_spec, ("dask", "pyarrow"))):
        raise ValueError(
            "A folder of Parquet files requires dask: run `python -m pip install 'bdtppl[dask]'`, "
            "or name a file."
        )
    paths = sorted(str(path) for path in folder.iterdir() if path.suffix.lower() in PARQUET)
    if not paths:
        raise ValueError(f"{folder} must contain a Parquet file (.parquet or .pq).")
    from dask.dataframe import read_parquet

    return read_parquet(paths)
