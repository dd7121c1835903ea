"""Feed damaged files to what reads files: ``python tests/fuzz.py --cases 5000``.

A subject makes a damaged file and reads it, in a process of its own. What is in the file may be
refused by an error of a documented kind; no other error, no more than 5 seconds, no more than 1 GB
of memory beyond what the process had at first, and no crash. Each finding is printed with the seed
that makes it again (``--first SEED --cases 1``).

To fuzz more, write a function that returns a `Subject` and decorate it with `subject`.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mutations import EXTREMES, mutated_bytes, mutated_value, to_toml

__all__ = ["SUBJECTS", "Subject", "fuzz", "subject"]

SECONDS = 5.0
_START_SECONDS = 120.0  # of a process, and of its first case, which may compile
BYTES = 1e9
_KEPT = Path(__file__).parent / "data"  # models of earlier versions


@dataclass(frozen=True)
class Subject:
    """What is fuzzed.

    Attributes
    ----------
    damage
        Writes a damaged file, or several, and returns what `read` takes.
    read
        Reads it, and uses what it has read.
    refusals
        Kinds of errors by which it may refuse.
    """

    damage: Callable[[np.random.Generator], Any]
    read: Callable[[Any], Any]
    refusals: tuple[type[Exception], ...] = (ValueError, OSError)


SUBJECTS: dict[str, Callable[[Path], Subject]] = {}
"""By name: functions from a folder to write in to a subject."""


def subject(function: Callable[[Path], Subject]) -> Callable[[Path], Subject]:
    """Register a function that makes a subject, under its name."""
    SUBJECTS[function.__name__] = function
    return function


# ------------------------------------------------------------------------------------ subjects

_PRIORS: list[dict[str, Any]] = [
    {
        "prior": {"kind": "DepthDecay", "alpha": 0.9, "beta": 2.0, "feature_weights": {"age": 3}},
        "leaf": {"kind": "PoissonGamma", "rate": 2.0},
        "constraints": {
            "min_leaf": 5,
            "max_depth": 3,
            "before": [["age", "start"]],
            "refused": [["age", 2.5]],
            "monotone": {"age": 1},
            "features_at_depth": {"0": ["age"]},
        },
        "keep_together": [{"start": [float("-inf"), 12], "age": [27, float("inf")]}],
    },
    {
        "prior": {
            "kind": "EditTree",
            "edit_probability": 0.8,
            "base": {"kind": "LeafPenalty", "log_phi": 2.0, "rules": "cuts"},
            "tree": {"column": "age", "below": 27, "right": {"column": "hue", "level": "red"}},
        },
    },
    {"prior": {"kind": "LeafCount", "max_leaves": 9}, "leaf": {"kind": "NormalInverseGamma"}},
]


@subject
def prior_files(folder: Path) -> Subject:
    """Prior files, damaged as text or as values."""
    from bdtppl.models.data.design import Design
    from bdtppl.prior_files import read_prior_file

    design = Design.from_matrix(np.arange(30.0).reshape(10, 3), names=("age", "start", "hue=red"))

    def damage(rng: np.random.Generator) -> Path:
        values, path = _PRIORS[int(rng.integers(len(_PRIORS)))], folder / "prior.toml"
        if rng.random() < 0.5:
            changed = mutated_value(rng, values)
            text = to_toml(changed if isinstance(changed, dict) else {"prior": changed})
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        else:
            path.write_bytes(mutated_bytes(rng, to_toml(values).encode()))
        return path

    def read(path: Path) -> None:
        file = read_prior_file(path)
        file.make_leaf(np.arange(10.0))
        if file.prior is not None:
            file.prior.resolve(design)
        file.constraints.allows(design.names)

    return Subject(damage, read)


@subject
def trees(folder: Path) -> Subject:
    """Trees as JSON that the prior of an edited tree names."""
    from bdtppl.prior_files import read_tree

    inner = {"column": "hue", "level": "red", "left": {}, "right": {}}
    tree = {"column": "age", "below": 2.5, "missing": "left", "left": {}, "right": inner}

    def damage(rng: np.random.Generator) -> Path:
        path = folder / "tree.json"
        if rng.random() < 0.5:
            path.write_text(json.dumps(mutated_value(rng, {"tree": tree})), encoding="utf-8")
        else:
            path.write_bytes(mutated_bytes(rng, json.dumps({"tree": tree}).encode()))
        return path

    return Subject(damage, lambda path: read_tree(str(path)))


def _table(rng: np.random.Generator, separator: str = ",") -> str:
    """Write a table in which some cells are extreme."""
    rows = [["age", "hue", "size"]]
    rows += [[i, "red" if i % 3 else "blue", f"{i / 7:.4g}"] for i in range(int(rng.integers(9)))]
    for _ in range(int(rng.integers(3))):
        row = rows[int(rng.integers(len(rows)))]
        row[int(rng.integers(3))] = EXTREMES[int(rng.integers(len(EXTREMES)))]
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _use_table(path: Path) -> None:
    """Read a table as the commands do."""
    from bdtppl.models.data.schema import Schema
    from bdtppl.table_files import read_table

    table = read_table(path)
    list(table.doubts(table.columns))
    Schema.read(table.features(table.columns))


@subject
def tables(folder: Path) -> Subject:
    """CSV and TSV files."""

    def damage(rng: np.random.Generator) -> Path:
        ending, separator = [("csv", ","), ("csv", ";"), ("tsv", "\t")][int(rng.integers(3))]
        path = folder / f"table.{ending}"
        text = _table(rng, separator).encode("utf-8", "surrogatepass")
        path.write_bytes(mutated_bytes(rng, text) if rng.random() < 0.8 else text)
        return path

    return Subject(damage, _use_table)


@subject
def parquet(folder: Path) -> Subject:
    """Parquet files."""
    from bdtppl.table_files import write_table

    columns = {"age": [1.0, 2.0, 3.5], "hue": ["red", "blue", "red"], "n": [1, 2, 3]}
    write_table(folder / "whole.parquet", columns)
    whole = (folder / "whole.parquet").read_bytes()

    def damage(rng: np.random.Generator) -> Path:
        path = folder / "table.parquet"
        path.write_bytes(mutated_bytes(rng, whole))
        return path

    return Subject(damage, _use_table)


@subject
def command_line(folder: Path) -> Subject:
    """A command: its exit status, and what it says of damaged tables."""
    from typer.testing import CliRunner

    import bdtppl
    from bdtppl.cli import app

    columns = {"age": np.arange(12.0), "hue": np.array(["red", "blue"] * 6, object)}
    bdtppl.GreedyModalTreeRegressor(min_leaf=3).fit(columns, columns["age"]).save(folder / "model")
    table_of = tables(folder).damage

    def damage(rng: np.random.Generator) -> list[str]:
        return ["predict", str(folder / "model"), str(table_of(rng))]

    def read(arguments: list[str]) -> None:
        result = CliRunner().invoke(app, arguments)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
        if result.exit_code not in (0, 2):
            raise RuntimeError(f"exit status {result.exit_code}: {lines}")
        if result.exit_code and (len(lines) != 1 or not lines[0].startswith("Error: ")):
            raise RuntimeError(f"no error of one line: {lines}")

    return Subject(damage, read)


def _damaged_container(rng: np.random.Generator, whole: bytes) -> bytes:
    """Damage a file of `bdtppl.array_files`: bytes, or contents with all checksums right."""
    if rng.random() < 0.2:
        return mutated_bytes(rng, whole)
    first, rest = whole.split(b"\n", 1)
    length = int(first.split()[-1])
    header, arrays = json.loads(rest[:length]), bytearray(rest[length:])
    kind = rng.random()
    if kind < 0.5:
        header = mutated_value(rng, header)
    elif kind < 0.6:
        header["arrays"] = mutated_value(rng, header["arrays"])
    else:
        for _ in range(int(rng.integers(1, 4))):
            _edit_array(rng, header["arrays"], arrays)
    text = json.dumps(header).encode()
    digest = hashlib.sha256(text + arrays).hexdigest()
    line = first.split(b", sha256 ")[0] + f", sha256 {digest}, header {len(text)}\n".encode()
    return line + text + bytes(arrays)


def _edit_array(rng: np.random.Generator, described: dict[str, Any], arrays: bytearray) -> None:
    """Change a value of one of the arrays that lie one after the other."""
    chosen, start = list(described)[int(rng.integers(len(described)))], 0
    for name, (code, shape) in described.items():
        dtype, count = np.dtype(code), math.prod(shape)
        if name == chosen and count and dtype.kind in "biuf":
            values = np.frombuffer(arrays, dtype, count, start)
            place = int(rng.integers(count))
            old = values[place].item()
            others = [old + 1, -old, 1.5 * old, 0, 100, 2**30, 2**63 - 1, 1e300, np.nan, np.inf]
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values[place] = np.array(others[int(rng.integers(len(others)))], float).astype(
                    dtype
                )
        start += count * dtype.itemsize


@subject
def models(folder: Path) -> Subject:
    """Saved models of every kind; what is loaded must predict as a valid model can."""
    import bdtppl
    from bdtppl.storage.fitted import FILE

    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20.0)
    few = {"trees": 3, "chains": 2, "warmup": 5, "draws": 4, "extensions": 0}
    made = [bdtppl.load(path) for path in sorted(_KEPT.iterdir())]
    made.append(bdtppl.BARTRegressor(noise_trees=2, **few).fit(X, y))
    made.append(bdtppl.BARTClassifier(**few).fit(X, y > 9))
    made.append(bdtppl.ExactTreeRegressor(bins=3, max_depth=2).fit(lambda: [(X, y)]))
    wholes = []
    for number, model in enumerate(made):
        model.save(folder / str(number))
        wholes.append((folder / str(number) / FILE).read_bytes())

    def damage(rng: np.random.Generator) -> Path:
        whole = wholes[int(rng.integers(len(wholes)))]
        (folder / "damaged").mkdir(exist_ok=True)
        (folder / "damaged" / FILE).write_bytes(_damaged_container(rng, whole))
        return folder / "damaged"

    def read(path: Path) -> None:
        _use_model(bdtppl.load(path))

    for number in range(len(made)):  # compiles
        read(folder / str(number))
    return Subject(damage, read)


def _use_model(model: Any) -> None:
    """Predict two rows; what is wrong is no refusal here, for the model was loaded."""
    columns = model.schema_.columns
    rows: Any = np.array([[0.5] * len(columns), [1.5] * len(columns)])
    if hasattr(model, "feature_names_in_"):
        levels = [column.levels or (0.5, 1.5) for column in columns]
        rows = {
            c.name: [(2 * own)[0], (2 * own)[1]] for c, own in zip(columns, levels, strict=True)
        }
    try:
        found = model.predict_proba(rows) if model.is_classifier else model.predict(rows)
        if model.is_classifier and not np.allclose(found.sum(axis=1), 1):
            raise RuntimeError(f"probabilities {found}")
        if not np.isfinite(found).all() or (model.is_classifier and (found < 0).any()):
            raise RuntimeError(f"predictions {found}")
        str(model)
    except ValueError as error:
        raise RuntimeError(f"a model that was loaded does not predict: {error}") from error


@subject
def checkpoints(folder: Path) -> Subject:
    """Checkpoints of sums of trees and of chains, from which fits go on."""
    import bdtppl

    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20.0)
    few = {"trees": 3, "chains": 2, "warmup": 5, "draws": 4, "extensions": 0}
    short = {"chains": 2, "warmup": 20, "draws": 4, "thin": 5, "temperatures": 1, "extensions": 0}
    made = [
        bdtppl.BARTRegressor(**few, random_state=0, checkpoint=folder / "sums"),
        bdtppl.MetropolisTreeRegressor(**short, random_state=0, checkpoint=folder / "chains"),
    ]
    wholes = []
    for model in made:
        model.fit(X, y)
        (file,) = Path(model.checkpoint).glob("*.checkpoint")
        wholes.append((file, file.read_bytes()))

    def damage(rng: np.random.Generator) -> int:
        number = int(rng.integers(len(made)))
        file, whole = wholes[number]
        file.write_bytes(_damaged_container(rng, whole))
        return number

    return Subject(damage, lambda number: made[number].fit(X, y))


# --------------------------------------------------------------------------------------- driver


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _serve(name: str, pipe: Any) -> None:
    """Answer seeds by findings, "" for none and None for what was refused."""
    with tempfile.TemporaryDirectory() as folder:
        made = SUBJECTS[name](Path(folder))
        warnings.simplefilter("ignore")
        pipe.send("")
        for seed in iter(pipe.recv, None):
            base = _peak()
            pipe.send(_try(made, seed) or _excess(_peak() - base))


def _try(made: Subject, seed: int) -> str:
    given = made.damage(np.random.default_rng(seed))
    try:
        made.read(given)
    except made.refusals as error:
        # A refusal is a sentence: a bare message of Python's own says nothing to a user.
        return "" if str(error) else f"{type(error).__name__} without a word"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {str(error)[:300]}"
        return f"{said} ({Path(where.filename).name}:{where.lineno})"
    return ""


def _excess(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB of memory" if num_bytes > BYTES else ""


class _Server:
    """A process that tries cases of a subject."""

    def __init__(self, name: str):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._warm = False
        if (said := self._answer(_START_SECONDS)) != "":
            raise RuntimeError(f"{name} does not start: {said}")

    def ask(self, seed: int) -> str:
        self._pipe.send(seed)
        answer = self._answer(SECONDS if self._warm else _START_SECONDS)
        self._warm = True
        return answer

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def _answer(self, seconds: float) -> str:
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
            found = f"more than {seconds:g} seconds"
        except EOFError:
            self._process.join()
            return f"the process died (exit code {self._process.exitcode})"
        self.stop()
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def fuzz(name: str, seeds: range) -> dict[int, str]:
    """Try cases of a subject; findings by their seeds."""
    server, findings = _Server(name), {}
    for seed in seeds:
        if not server.is_alive:
            server = _Server(name)
        if answer := server.ask(seed):
            findings[seed] = answer
            if server.is_alive:  # its memory and its caches are no longer those of a fresh one
                server.stop()
    server.stop()
    return findings


def main() -> None:
    """Fuzz the subjects that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], help="default: all")
    parser.add_argument("--cases", type=int, default=2000, help="of each subject")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    options = parser.parse_args()
    has_found = False
    for name in options.subjects or SUBJECTS:
        findings = fuzz(name, range(options.first, options.first + options.cases))
        print(f"{name}: {options.cases} cases, {len(findings)} findings", flush=True)
        of_kind = Counter(findings.values())
        for said, count in of_kind.most_common(20):
            seed = next(seed for seed, each in findings.items() if each == said)
            print(f"  {count} times, first with seed {seed}: {said}")
        has_found |= bool(findings)
    sys.exit(has_found)


if __name__ == "__main__":
    main()
