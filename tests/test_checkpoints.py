"""Fits that are interrupted go on to the same bits, and nothing that was kept is lost."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from contextlib import contextmanager, suppress

import every_estimator
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from test_cli import refusal, run, write_table
from tiers import slow_but

from bdtppl import BARTClassifier, BARTRegressor, MetropolisTreeRegressor, load
from bdtppl.array_files import read_arrays, write_arrays
from bdtppl.estimators import all_inferences, checkpoints
from bdtppl.estimators.checkpoints import KEPT_EVERY, Run, keeping
from bdtppl.estimators.long_fits import HasCheckpoint
from bdtppl.interruption import Terminated, terminable
from bdtppl.models.constraints import Constraints

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FEW = {"trees": 5, "chains": 2, "warmup": 20, "draws": 20, "extensions": 0, "random_state": 0}
X, Y = every_estimator.X, every_estimator.Y
LABELS = every_estimator.LABELS
ARRAYS = {
    "numbers": np.arange(12.0).reshape(3, 4).T,
    "flags": np.array([True, False]),
    "one": np.uint64(2**63),
    "none": np.empty((0, 3), np.float32),
    "text": np.array([["a", "leaf ✓"]]),
    "last": np.empty((4, 0, 900)),  # longer than what is left of the file
}


KIND = "bdtppl checkpoint"


def files_in(folder):
    return sorted(folder.glob("*.checkpoint"))


class Stop(KeyboardInterrupt):
    """An interruption."""


def stopped_after(number, monkeypatch):
    """Let every state be written, and interrupt the fit after so many of them."""
    left = [number]

    def keep(run, own=Run.keep):
        had = run._offered is not None
        own(run)
        left[0] -= had
        if had and left[0] == 0:
            raise Stop

    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(Run, "keep", keep)


# ------------------------------------------------------------------------------------------- files


def test_arrays_are_read_as_they_were_written(tmp_path):
    write_arrays(tmp_path / "it", "kind of file", {"a": [1, None]}, ARRAYS)
    header, read = read_arrays(tmp_path / "it", "kind of file")
    assert header["a"] == [1, None]
    assert list(read) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    with pytest.raises(ValueError, match="is damaged or no other kind"):
        read_arrays(tmp_path / "it", "other kind")


def mutated(whole, rng):
    """Damage a file: bits, a cut, a hole, a piece twice, or bytes put in."""
    kind, at = rng.integers(5), int(rng.integers(len(whole)))
    piece = int(rng.integers(1, 50))
    if kind == 0:
        changed = whole[at] ^ (1 << int(rng.integers(8)))
        return whole[:at] + bytes([changed]) + whole[at + 1 :]
    return {
        1: whole[:at],
        2: whole[:at] + whole[at + piece :],
        3: whole[: at + piece] + whole[at:],
        4: whole[:at] + rng.bytes(piece) + whole[at:],
    }[int(kind)]


def test_any_damage_is_told(tmp_path):
    path, rng = tmp_path / "it", np.random.default_rng(0)
    write_arrays(path, "kind of file", {}, ARRAYS)
    whole = path.read_bytes()
    for _ in range(500):
        path.write_bytes(damaged := mutated(whole, rng))
        if damaged != whole:
            with pytest.raises(ValueError, match=r"is damaged|format version"):
                read_arrays(path, "kind of file")


@pytest.mark.parametrize(
    "described",
    [
        {"a": ["<U500000000", [1]]},
        {"a": ["<f8", [10**12]]},
        {"a": ["<f8", [10**12, 10**12, 0]]},
        {"a": ["|O", [1]]},
        {"a": ["<U0", [10**12]]},
        {"a": ["f8,f8", [1]]},
        {"a": ["(9,9)f8", [1]]},
        {"a": ["<f8", [-1]]},
        {"a": ["<f8", [True]]},
        {"a": ["<f8", [1] * 99]},
        {"a": [8, [1]]},
        {"a": 1},
        [1],
    ],
    ids=lambda described: str(described)[:20],
)
def test_a_hostile_header_with_a_right_checksum_takes_no_memory(described, tmp_path):
    rest = json.dumps({"arrays": described}).encode() + bytes(8)
    first = f"kind of file, format 2, sha256 {hashlib.sha256(rest).hexdigest()}"
    (tmp_path / "it").write_bytes(f"{first}, header {len(rest) - 8}\n".encode() + rest)
    tracemalloc.start()
    with pytest.raises(ValueError, match="was not written by bdtppl"):
        read_arrays(tmp_path / "it", "kind of file")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    "kind", ["junk", "empty", "foreign", "other", "truncated", "folder", "pipe"]
)
def test_a_file_that_is_no_checkpoint_is_refused(kind, tmp_path):
    with keeping(tmp_path, lambda: "one", 3) as run:
        run.offer(lambda: {"a": np.arange(300)})
    file = tmp_path / "one.checkpoint"
    whole = file.read_bytes()
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "foreign":
        write_arrays(file, "bdtppl model", {}, {"a": np.arange(3)})
    elif kind == "other":
        (tmp_path / "two.checkpoint").write_bytes(whole)
    else:
        half = whole[: len(whole) // 2]
        file.write_bytes({"junk": b"junk", "empty": b"", "truncated": half}[kind])
    name = "two" if kind == "other" else "one"
    said = r"is not a checkpoint, or is damaged .*: remove it"
    with pytest.raises(ValueError, match=said), keeping(tmp_path, lambda: name, 3):
        pass


def test_arrays_of_another_shape_are_refused(tmp_path):
    model = BARTRegressor(**FEW, checkpoint=tmp_path).fit(X, Y)
    (file,) = files_in(tmp_path)
    header, arrays = read_arrays(file, KIND)
    for change in (
        {".sweep": np.arange(5)},
        {".extensions": np.int64(10**9)},
        {".chains.rule": 1},
    ):
        changed = {name: np.asarray(array) for name, array in (arrays | change).items()}
        write_arrays(file, KIND, header, changed)
        with pytest.raises(ValueError, match="is not a checkpoint, or is damaged"):
            model.fit(X, Y)


# ---------------------------------------------------------------------------------- runs and names


@pytest.mark.slow
def test_each_run_has_a_file_of_its_own(tmp_path):
    model = BARTRegressor(**FEW, checkpoint=tmp_path).fit(X, Y)
    assert len(files_in(tmp_path)) == 1
    for same in (model, clone(model), clone(model).set_params(extensions=0, progress=True)):
        same.fit(X, Y)
        assert len(files_in(tmp_path)) == 1
    others = [
        (clone(model), X, Y + 1),
        (clone(model), X[::-1], Y),
        (clone(model).set_params(k=3.0), X, Y),
        (clone(model).set_params(random_state=1), X, Y),
        (BARTClassifier(**FEW, checkpoint=tmp_path), X, LABELS),
    ]
    for number, (other, rows, targets) in enumerate(others):
        other.fit(rows, targets)
        assert len(files_in(tmp_path)) == 2 + number
    scores = cross_val_score(model, X, Y, cv=3)
    assert len(files_in(tmp_path)) == 2 + len(others) + 2
    np.testing.assert_array_equal(
        scores, cross_val_score(model.set_params(checkpoint=None), X, Y, cv=3)
    )


@pytest.mark.slow
def test_names_of_columns_tell_runs_apart(tmp_path):
    """Priors and constraints name them: under other names the same numbers are another problem."""
    few = {"warmup": 20, "draws": 10, "thin": 5, "temperatures": 1, "extensions": 0}
    constraints = Constraints(monotone={"a": 1})
    model = MetropolisTreeRegressor(**few, constraints=constraints, checkpoint=tmp_path)
    for names in ("ab", "ba"):
        clone(model).fit(dict(zip(names, X.T, strict=True)), Y)
    assert len(files_in(tmp_path)) == 2


def test_home_is_where_it_is_called(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with keeping("~/kept", lambda: "run", 0) as run:
        run.offer(lambda: {"a": 1})
    assert len(files_in(tmp_path / "kept")) == 1


def test_without_a_seed_a_fit_goes_on_by_the_one_that_it_began_with(tmp_path):
    model = BARTRegressor(**(FEW | {"random_state": None}), checkpoint=tmp_path)
    one, two = (clone(model).fit(X, Y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    generator = np.random.RandomState(0)  # each fit draws another seed from it
    model.set_params(random_state=generator)
    assert not np.array_equal(model.fit(X, Y).predict(X), model.fit(X, Y).predict(X))


def test_a_saved_model_does_not_know_the_folder(tmp_path):
    model = BARTRegressor(**FEW, checkpoint=tmp_path / "kept").fit(X, Y)
    model.save(tmp_path / "model")
    assert str(tmp_path) not in (tmp_path / "model" / "model.bdtppl").read_text("latin-1")
    assert load(tmp_path / "model").checkpoint is None


def test_every_inference_that_can_take_long_keeps_checkpoints():
    without = {
        name
        for name, of_task in all_inferences().items()
        for kind in of_task.values()
        if not issubclass(kind, HasCheckpoint)
    }
    assert without == {"greedy-modal", "map"}  # the latter stops after time_limit


CASES = (
    "MetropolisTreeClassifier",
    "ParticleTreeRegressor",
    "RJHMCTreeRegressor",
    "ExactTreeClassifier",
)


@pytest.mark.parametrize("name", slow_but(("bart",), ("bart", *CASES), few=2))
def test_a_fit_that_is_interrupted_comes_to_the_same_bits(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bdtppl.inference.particle.sample._WORK_AT_ONCE", 1.0)
    model = BARTRegressor(**FEW) if name == "bart" else every_estimator.new(name)
    if name.startswith("Exact"):
        model.set_params(bins="auto", method="boxes")  # a search, by evidence
    targets = LABELS if name.endswith("Classifier") else Y
    whole = clone(model).fit(X, targets)
    resumed, stops = clone(model).set_params(checkpoint=tmp_path), 0
    while not hasattr(resumed, "posterior_"):
        with monkeypatch.context() as patch, suppress(Stop):
            stopped_after(2 if stops < 3 else np.inf, patch)
            resumed.fit(X, targets)
        stops += 1
    assert stops > 1
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    assert resumed._seed == whole._seed


# ------------------------------------------------------------------------------------------- locks


def test_a_run_is_made_by_one_process_alone(tmp_path):
    with keeping(tmp_path, lambda: "run", 0) as run:
        run.offer(lambda: {})
        with keeping(tmp_path, lambda: "other", 0):
            pass
        said = rf"is being made by process {os.getpid()} on .* since 2.*: wait for its end"
        with pytest.raises(BlockingIOError, match=said), keeping(tmp_path, lambda: "run", 0):
            pass
    with keeping(tmp_path, lambda: "run", 0):
        pass


KILLED = """
import os, signal, sys
from bdtppl.estimators.checkpoints import keeping
with keeping(sys.argv[1], lambda: "run", 0) as run:
    run.offer(lambda: {"a": 1})
    run.keep()
    os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
    run.offer(lambda: {"a": 2})
    run.keep()
"""


def test_what_a_killed_process_has_left_is_taken_over(tmp_path):
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert process.returncode == -signal.SIGKILL
    (unfinished,) = tmp_path.glob(".*.partial")
    os.utime(unfinished, (0, 0))  # as if time had passed
    with keeping(tmp_path, lambda: "run", 0) as run:
        assert run.resumed(lambda arrays: int(arrays["a"])) == 1
        run.offer(lambda: {"a": 3})
    assert not [*tmp_path.glob(".*.partial")]
    assert not [*tmp_path.glob(".*.owner")]


# ---------------------------------------------------------------------------------------- failures


def test_a_checkpoint_that_cannot_be_written_is_tried_again(tmp_path, monkeypatch):
    folder, fails = tmp_path / "kept", True

    def write(*arguments, own=write_arrays):
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        own(*arguments)

    monkeypatch.setattr(checkpoints, "write_arrays", write)
    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    with warnings.catch_warnings(record=True) as said, keeping(folder, lambda: "run", 0) as run:
        warnings.simplefilter("always")
        run.offer(lambda: {"a": 1})
        run.offer(lambda: {"a": 2})
        assert len(said) == 1
        assert "cannot be written (No space left on device); the fit continues" in str(
            said[0].message
        )
        assert not [*folder.glob(".*.partial")]
        fails = False
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        run.offer(lambda: {"a": 3})
    with keeping(folder, lambda: "run", 0) as run:
        assert run.resumed(lambda arrays: int(arrays["a"])) == 3
    assert KEPT_EVERY >= 1


def test_the_older_state_stays_where_writing_fails(tmp_path, monkeypatch):
    with keeping(tmp_path, lambda: "run", 0) as run:
        run.offer(lambda: {"a": 1})
    with keeping(tmp_path, lambda: "run", 0) as run:
        run.offer(lambda: {"a": 2})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda number: os.close(-1))
            with pytest.warns(UserWarning, match="cannot be written"):
                run.keep()
        run._offered = None
    with keeping(tmp_path, lambda: "run", 0) as run:
        assert run.resumed(lambda arrays: int(arrays["a"])) == 1


def test_a_state_half_made_is_not_written(tmp_path):
    def fail():
        with keeping(tmp_path, lambda: "run", 0) as run:
            run.offer(lambda: {"a": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not files_in(tmp_path)


@pytest.mark.parametrize("kind", ["file", "dangling", "under a file"])
def test_a_folder_that_cannot_be_made_is_refused(kind, tmp_path):
    folder = tmp_path / "kept"
    if kind == "dangling":
        folder.symlink_to(tmp_path / "nowhere")
    else:
        folder.write_text("in the way")
    given = folder / "below" if kind == "under a file" else folder
    said = "is a dangling link" if kind == "dangling" else "is not a folder"
    with pytest.raises(OSError, match=f"checkpoint .* cannot be written: .* {said}"):
        BARTRegressor(**FEW, checkpoint=given).fit(X, Y)
    with pytest.raises(TypeError, match="checkpoint must be the path of a folder; got 3"):
        BARTRegressor(**FEW, checkpoint=3).fit(X, Y)


# ----------------------------------------------------------------------------------------- SIGTERM


def test_sigterm_keeps_what_is_done(tmp_path, monkeypatch):
    whole = BARTRegressor(**FEW).fit(X, Y)
    model = BARTRegressor(**FEW, checkpoint=tmp_path)

    @contextmanager
    def terminating(*_, **__):
        yield lambda progress: os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("bdtppl.estimators.long_fits.following", terminating)
        with pytest.raises(Terminated) as raised:
            model.fit(X, Y)
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    (file,) = files_in(tmp_path)
    assert 0 < read_arrays(file, KIND)[1][".log_likelihood"].shape[1] < 40
    np.testing.assert_array_equal(model.fit(X, Y).predict(X), whole.predict(X))


def test_a_handler_of_the_program_is_left_alone():
    def own(*_):
        pass

    signal.signal(signal.SIGTERM, own)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    seen = []

    def in_a_thread():
        with terminable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_command_that_is_terminated_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    table = write_table(tmp_path / "t.csv", {"a": X[:, 0], "y": Y})
    monkeypatch.setattr(
        "bdtppl.BARTRegressor.fit", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    arguments = ("fit", table, "--target", "y", "--json", "--out", tmp_path / "out")
    assert refusal(*arguments, status=143) == "Terminated."
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_command_tells_of_another_process(tmp_path):
    table = write_table(tmp_path / "t.csv", {"a": X[:, 0], "y": Y})
    few = ["--trees", 5, "--warmup", 20, "--draws", 20, "--extensions", 0]
    arguments = ("fit", table, "--target", "y", "--model", "bart", *few, "--json")
    arguments += ("--checkpoint", tmp_path / "kept")

    run(*arguments)
    (file,) = files_in(tmp_path / "kept")
    with keeping(file.parent, lambda: file.stem, 0):
        assert "is being made by process" in refusal(*arguments)
