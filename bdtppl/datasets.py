"""The data sets of the papers: simulators, and tables read from a folder of files.

Simulated sets need no files. The tables are public but not part of bdtppl: `load` reads them from
the folder that the environment variable ``BDTPPL_DATA`` names, and checks that a file is, byte for
byte, the one that the published figures of bdtppl were computed on. Each is a CSV file with one
header line, the target in the last column, values as their source has them, and an empty cell where
a value is missing.
"""

import csv
import hashlib
import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from bdtppl.dataset_sources import SOURCES

RandomState = int | np.random.RandomState | None


class Dataset(NamedTuple):
    """A table with its target.

    Attributes
    ----------
    X
        Features, [n, d]: float64 with NaN where a value is missing. An object array if a column
        contains words: floats in the columns of numbers, strings (None if missing) in those of
        words.
    y
        Target, [n]: float64 for regression, integer or string labels for classification.
    feature_names
        Names of the d columns of X.
    target_name
        Name of the target.
    """

    X: NDArray
    y: NDArray
    feature_names: tuple[str, ...]
    target_name: str


def make_wu(
    num_rows: int = 300, *, random_state: RandomState
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulate the regression set of Wu et al., which two trees describe equally well.

    Three groups of equal size (the first ones larger by one where three does not divide the number
    of rows) lie in separate boxes; a split on x1, or one on x3, separates the third.

    Parameters
    ----------
    num_rows
        Number of rows, n, at least 1.
    random_state
        Seed or generator, in scikit-learn's sense.

    Returns
    -------
    X : [n, 3]
        Inputs x1, x2, x3 between .1 and .9, group by group.
    y : [n]
        Mean 1, 3 or 5 by group, with normal noise of standard deviation .25.

    Raises
    ------
    ValueError
        If `num_rows` is not a positive integer.

    References
    ----------
    Wu, Tjelmeland and West (2007), section 5.1, as in Cochrane et al. 2023 (DCC-Tree), appendix C,
    whose N(0, .25) is read as a standard deviation, as in the authors' own data.

    Examples
    --------
    >>> X, y = make_wu(random_state=0)
    >>> X.shape, y.shape
    ((300, 3), (300,))
    """
    _check_count("num_rows", num_rows)
    generator = check_random_state(random_state)
    low, high = (0.1, 0.4), (0.6, 0.9)
    boxes = np.array([[low, low, high], [low, high, high], [high, (0.1, 0.9), low]])
    group = np.sort(np.arange(num_rows) % 3)
    X = generator.uniform(boxes[group, :, 0], boxes[group, :, 1])
    y = np.array([1.0, 3.0, 5.0])[group] + 0.25 * generator.standard_normal(num_rows)
    return X, y


def make_cgm(
    num_rows: int = 800, *, random_state: RandomState
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulate the regression set of Chipman, George and McCulloch with two numerical inputs.

    The tree has five leaves; a second tree gives the same partition of the inputs.

    Parameters
    ----------
    num_rows
        Number of rows, n, at least 1.
    random_state
        Seed or generator, in scikit-learn's sense.

    Returns
    -------
    X : [n, 2]
        Inputs x1, x2, uniform on the integers 1 to 10.
    y : [n]
        Where x2 <= 4: mean 1 for x1 <= 3, 5 for 3 < x1 <= 7, else 8. Where x2 > 4: mean 8 for
        x1 <= 5, else 2. With normal noise of standard deviation .2.

    Raises
    ------
    ValueError
        If `num_rows` is not a positive integer.

    References
    ----------
    Chipman, George and McCulloch (1998), as adapted by Cochrane et al. 2023 (DCC-Tree), appendix C;
    the regions and means are those of the authors' own data.

    Examples
    --------
    >>> X, y = make_cgm(5, random_state=0)
    >>> X.shape, bool(np.all((1 <= X) & (X <= 10)))
    ((5, 2), True)
    """
    _check_count("num_rows", num_rows)
    generator = check_random_state(random_state)
    X = generator.randint(1, 11, size=(num_rows, 2)).astype(np.float64)
    x1, x2 = X.T
    mean = np.where(
        x2 <= 4, np.select([x1 <= 3, x1 <= 7], [1.0, 5.0], 8.0), np.where(x1 <= 5, 8.0, 2.0)
    )
    return X, mean + 0.2 * generator.standard_normal(num_rows)


def make_hidden_xor(
    num_rows: int, num_features: int = 20, num_relevant: int = 4, *, random_state: RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Simulate fair bits; the parity of the first few decides the class.

    No single split is informative, so a greedy tree fails; a tree that splits on all relevant
    features makes no error.

    Parameters
    ----------
    num_rows
        Number of rows, n, at least 1.
    num_features
        Number of features, d.
    num_relevant
        Number of features, the first ones, that decide the class: 1 to `num_features`.
    random_state
        Seed or generator, in scikit-learn's sense.

    Returns
    -------
    X : [n, d]
        Independent bits, each 1 with probability .5.
    y : [n]
        1 where an odd number of the relevant features is 1, else 0.

    Raises
    ------
    ValueError
        If a count is not a positive integer, or more features are relevant than exist.

    References
    ----------
    Sullivan et al. 2023 (BCART-PCFG), section on data sets: 20 features of which 4 are relevant.

    Examples
    --------
    >>> X, y = make_hidden_xor(200, random_state=0)
    >>> X.shape, bool(np.all(y == X[:, 0] ^ X[:, 1] ^ X[:, 2] ^ X[:, 3]))
    ((200, 20), True)
    """
    _check_count("num_rows", num_rows)
    _check_count("num_features", num_features)
    _check_count("num_relevant", num_relevant)
    if num_relevant > num_features:
        raise ValueError(
            f"num_relevant must be at most num_features ({num_features}), got {num_relevant}."
        )
    generator = check_random_state(random_state)
    X = generator.randint(0, 2, size=(num_rows, num_features), dtype=np.int64)
    return X, X[:, :num_relevant].sum(axis=1) % 2


def available() -> tuple[str, ...]:
    """List the names for which `load` finds a file, in the order of the table of sources.

    Returns
    -------
    names
        Empty if ``BDTPPL_DATA`` is not set.

    Examples
    --------
    >>> set(available()) <= set(SOURCES)
    True
    """
    folder = os.environ.get("BDTPPL_DATA")
    return tuple(name for name in SOURCES if folder and _path(folder, name).is_file())


def state(name: str) -> Literal["present", "missing", "altered"]:
    """Return whether `load` would find the file of a table with the expected content.

    Parameters
    ----------
    name
        One of `bdtppl.dataset_sources.SOURCES`.

    Returns
    -------
    str
        "altered" if a file has the name but other content; "missing" also if ``BDTPPL_DATA`` is not
        set.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> state("haberman") in ("present", "missing", "altered")
    True
    """
    _require_known(name)
    if name not in available():
        return "missing"
    content = _path(os.environ["BDTPPL_DATA"], name).read_bytes()
    return "present" if _sha256(content) == SOURCES[name].sha256 else "altered"


def load(name: str) -> Dataset:
    """Read a table from the folder that the environment variable ``BDTPPL_DATA`` names.

    Parameters
    ----------
    name
        The file's name without ``.csv``; `bdtppl.dataset_sources.SOURCES` lists the known ones.

    Returns
    -------
    Dataset
        Features, target and their names.

    Raises
    ------
    ValueError
        If the name is unknown, or the file differs from the one in the table of sources.
    FileNotFoundError
        If ``BDTPPL_DATA`` is not set or its folder lacks the file; the message states the source.

    Examples
    --------
    >>> X, y, feature_names, target_name = load("haberman")  # doctest: +SKIP
    >>> X.shape, feature_names  # doctest: +SKIP
    ((306, 3), ('age', 'operation_year', 'positive_axillary_nodes'))
    """
    _require_known(name)
    source = SOURCES[name]
    folder = os.environ.get("BDTPPL_DATA")
    if not folder:
        raise FileNotFoundError(
            f"set the environment variable BDTPPL_DATA to a folder that contains {name}.csv, which "
            f"is available from: {source.origin}."
        )
    path = _path(folder, name)
    if not path.is_file():
        raise FileNotFoundError(
            f"the folder that BDTPPL_DATA names, {folder}, lacks {name}.csv, which is available "
            f"from: {source.origin}."
        )
    content = path.read_bytes()
    sha256 = _sha256(content)
    if sha256 != source.sha256:
        raise ValueError(
            f"{path} is not the {name}.csv that bdtppl knows (its sha256 is {sha256}, expected "
            f"{source.sha256}): get it from {source.origin}, as a CSV with one header line, the "
            "target last and values as the source has them."
        )
    header, *rows = csv.reader(content.decode("utf-8").splitlines())
    *feature_names, target_name = header
    *columns, target = zip(*rows, strict=True)
    return Dataset(
        _features(columns), _target(target, source.task), tuple(feature_names), target_name
    )


def _require_known(name: str) -> None:
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}; got {name!r}.")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _path(folder: str, name: str) -> Path:
    return Path(folder) / f"{name}.csv"


def _numbers(cells: Sequence[str]) -> NDArray[np.float64]:
    return np.array([cell or "nan" for cell in cells]).astype(np.float64)


def _features(columns: Sequence[Sequence[str]]) -> NDArray:
    converted = []
    for column in columns:
        try:
            converted.append(_numbers(column))
        except ValueError:
            converted.append(np.array([cell or None for cell in column], dtype=object))
    return np.stack(converted, axis=1)


def _target(cells: Sequence[str], task: str) -> NDArray:
    if task == "regression":
        return _numbers(cells)
    labels = np.array(cells)
    try:
        return labels.astype(np.int64)
    except ValueError:
        return labels


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
