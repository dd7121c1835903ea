"""Saved models come back to the last bit, or are refused in one sentence."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import every_estimator
import jax
import numpy as np
import pandas as pd
import pytest
from answers import answers
from every_estimator import FITS, NEW, fitted
from handmade import HandmadeTree, LazyHandmadeTree, some_posterior
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from sklearn.exceptions import NotFittedError
from tiers import slow_but

from bdtppl.array_files import read_arrays, write_arrays
from bdtppl.estimators import INFERENCES
from bdtppl.estimators.exact import ExactTreeClassifier, ExactTreeRegressor
from bdtppl.estimators.greedy_modal import GreedyModalTreeRegressor
from bdtppl.files import staged
from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import Schema
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty
from bdtppl.storage import fitted as storage
from bdtppl.storage.encoding import decode, encode

ROOT = Path(__file__).resolve().parent.parent
OLD = ROOT / "tests" / "data"  # models of earlier versions
TASKS = ["classification", "regression"]


@pytest.fixture(autouse=True)
def _handmade_is_known(monkeypatch):
    for kind in (HandmadeTree, LazyHandmadeTree):
        monkeypatch.setitem(INFERENCES, kind.__name__, {"classification": kind})


def handmade(task: str = "classification", **parameters) -> HandmadeTree:
    return HandmadeTree(**parameters).fit(some_posterior(task))


def same(found, wanted) -> None:
    """Hold two values to be equal to the last bit, dtypes included."""
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        if wanted.dtype.kind == "O":
            for a, b in zip(found.ravel(), wanted.ravel(), strict=True):
                same(a, b)
        else:
            np.testing.assert_array_equal(found, wanted)
    elif hasattr(wanted, "__dataclass_fields__"):
        for field in fields(wanted):
            same(getattr(found, field.name), getattr(wanted, field.name))
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name in wanted:
            same(found[name], wanted[name])
    elif isinstance(wanted, list | tuple):
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    else:
        assert repr(found) == repr(wanted)


def through_json(value):
    return decode(json.loads(json.dumps(encode(value, "it"), allow_nan=False)))


# ------------------------------------------------------------------------------------- values


@given(st.floats() | st.integers() | st.booleans() | st.text() | st.none())
def test_plain_values_come_back(value):
    same(through_json(value), value)


@given(
    st_numpy.arrays(
        st.sampled_from(["bool", "int8", "int64", "uint64", "float32", "float64", "U5"]),
        st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3),
    )
)
def test_arrays_come_back(array):
    same(through_json(array), array)


@pytest.mark.parametrize(
    "value",
    [
        Constraints(min_leaf=3, max_depth=4, features=("age", 2)),
        LeafPenalty(0.1 + 0.2),
        LeafPenalty(np.float32(0.3)),
        DescriptionLength(),
        DescriptionLength(2.5, rules="gaps"),
        DepthDecay(0.9, 0.5, cut_weights="gap"),
        GreedyPartition(0.99, num_features=7),
        DirichletCategorical(np.array([1.0, 1 / 3])),
        NormalInverseGamma(1e-300, 0.1, 2.0, 1e300, centre=-0.0),
        Schema.read(np.array([["a", "x"], ["b", "y"]], object))[0],
        np.array(["no", 1, 2.5, True, None], object),
        [1, (2.0, "three", [None])],
        {"age": 1, 2: (0.5,)},
        np.float32(0.1),
    ],
    ids=repr,
)
def test_parts_come_back(value):
    same(through_json(value), value)


def test_what_is_like_an_array_comes_back_as_one():
    same(through_json(jax.numpy.arange(3)), np.arange(3, dtype=np.int32))
    same(through_json(pd.Index([1.5, 2.5])), np.array([1.5, 2.5]))
    same(through_json(range(3)), [0, 1, 2])


@dataclass(frozen=True)
class MyPrior:
    strength: float = 1.0


# A class of one's own that goes by the name of one of bdtppl's.
Impostor = type("LeafPenalty", (LeafPenalty,), {})


@pytest.mark.parametrize(
    "value",
    [MyPrior(), Impostor(), len, np.array([1j]), np.array([MyPrior()])],
    ids=["prior", "impostor", "function", "complex", "objects"],
)
def test_what_is_not_known_is_refused(value):
    with pytest.raises(ValueError, match=r"^prior cannot be saved: it is an? "):
        encode(value, "prior")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Popen", "args": ["true"]}',
        '{"name": "LeafPenalty", "log_psi": 2.0}',
        '{"name": "LeafPenalty", "log_phi": {"name": "float", "value": "nan"}}',
        '{"name": "array", "dtype": "V8", "shape": [1], "values": [0]}',
        '{"name": "array", "dtype": "<f8", "shape": [3], "values": [0]}',
        '{"name": ["float"]}',
        '{"log_phi": 2.0}',
    ],
)
def test_what_was_not_encoded_is_not_decoded(text):
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(json.loads(text))


# -------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("task", slow_but(TASKS[:1], TASKS))
def test_estimator_comes_back(task, tmp_path):
    saved = handmade(
        task,
        prior=DepthDecay(0.9),
        constraints=Constraints(max_depth=2),
        bins=7,
        random_state=3,
    )
    saved.schema_ = Schema.read(dict.fromkeys(("age", "dose", "size"), np.arange(2.0)))[0]
    saved.feature_names_in_ = np.array(["age", "dose", "size"], object)
    saved.log_partition_ = np.float64(-1 / 3)
    saved.n_iter_ = np.int64(4)
    saved.missing_ = None
    saved.exact_ = object()
    saved.save(tmp_path / "model")

    loaded = storage.load(tmp_path / "model")
    assert type(loaded) is HandmadeTree
    same(loaded.get_params(), saved.get_params())
    assert set(vars(loaded)) == set(vars(saved)) - {"exact_"}
    assert loaded.design_ is loaded.posterior_.design
    for field in fields(saved.posterior_):
        same(getattr(loaded.posterior_, field.name), getattr(saved.posterior_, field.name))
    for name in ("map_tree_", "leaf_", "prior_", "schema_", "feature_names_in_", "missing_"):
        same(getattr(loaded, name), getattr(saved, name))
    assert loaded.log_partition_ == saved.log_partition_
    assert loaded.n_iter_ == 4
    rows = np.random.default_rng(1).normal(size=(50, 3))
    np.testing.assert_array_equal(loaded.predict(rows), saved.predict(rows))
    key = jax.random.key(0)
    np.testing.assert_array_equal(
        loaded.posterior_.sample_predictive(key, rows),
        saved.posterior_.sample_predictive(key, rows),
    )


def test_what_an_estimator_keeps_to_itself_comes_back(tmp_path):
    saved = LazyHandmadeTree().fit(some_posterior())
    saved.save(tmp_path)
    loaded = storage.load(tmp_path)
    assert set(vars(loaded)) == set(vars(saved))
    assert loaded._private[1] == 9
    same(loaded.posterior_.trees, saved.posterior_.trees)


@pytest.mark.parametrize(
    "classes",
    [
        np.array([0, 2, 7]),
        np.array([1, 2, 3], np.uint8),
        np.array([0.1, 0.2, 0.3]),
        np.array(["low", "middle", "high µ"]),
        np.array(["low", "middle", "high"], object),
    ],
    ids=lambda classes: classes.dtype.str,
)
def test_class_labels_keep_their_type(classes, tmp_path):
    handmade().fit(some_posterior(), classes_=classes).save(tmp_path)
    same(storage.load(tmp_path).classes_, classes)


def test_boolean_labels_keep_their_type(tmp_path):
    posterior = some_posterior()
    counts = posterior.statistics
    two = replace(
        posterior,
        leaf=DirichletCategorical.symmetric(2),
        statistics=counts[..., :2] + [1, 0] * counts[..., 2:],
        y=posterior.y % 2,
    )
    classes = np.array([False, True])
    HandmadeTree().fit(two, classes_=classes).save(tmp_path)
    same(storage.load(tmp_path).classes_, classes)


def test_importance_weights_come_back(tmp_path):
    log_weights = np.random.default_rng(0).normal(size=(2, 8))
    saved = HandmadeTree().fit(some_posterior(log_weights=log_weights))
    saved.save(tmp_path)
    loaded = storage.load(tmp_path)
    same(loaded.posterior_.log_weights, log_weights)
    assert "log_weight" not in loaded.posterior_.sample_stats


def test_row_weights_come_back(tmp_path):
    weights = np.arange(1, 13)
    saved = HandmadeTree().fit(some_posterior(weights=weights))
    saved.save(tmp_path)
    same(storage.load(tmp_path).design_.weights, saved.design_.weights)


@pytest.mark.slow
def test_a_smoothed_tree_comes_back(tmp_path):
    """Its nodes have parts of the rows of nodes above."""
    model = GreedyModalTreeRegressor(smoothing=0.5).fit(every_estimator.X, every_estimator.Y)
    model.save(tmp_path)
    rows = every_estimator.NEW
    np.testing.assert_array_equal(storage.load(tmp_path).predict(rows), model.predict(rows))


def test_saving_a_loaded_model_writes_the_same(tmp_path):
    handmade().save(tmp_path / "first")
    storage.load(tmp_path / "first").save(tmp_path / "second")
    first, second = ((tmp_path / name / storage.FILE).read_bytes() for name in ("first", "second"))
    assert first == second


def test_a_generator_is_saved_as_none_with_a_warning(tmp_path):
    for generator in (np.random.RandomState(0), np.random.default_rng(0)):
        with pytest.warns(UserWarning, match="random_state is a generator") as caught:
            handmade(random_state=generator).save(tmp_path)
        assert caught[0].filename == __file__
        assert storage.load(tmp_path).random_state is None


# ------------------------------------------------------------------------- refusals, no traces


def entries(folder: Path) -> dict[str, bytes]:
    """Everything under a folder, hidden files too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in folder.rglob("*")
    }


def test_an_estimator_must_be_fitted(tmp_path):
    with pytest.raises(NotFittedError):
        storage.save(HandmadeTree(), tmp_path / "model")
    assert entries(tmp_path) == {}


def test_a_prior_of_ones_own_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^prior cannot be saved: it is a .*MyPrior"):
        handmade(prior=MyPrior()).save(tmp_path / "model")
    own = HandmadeTree().fit(some_posterior(prior=MyPrior()))
    with pytest.raises(ValueError, match=r"^the prior cannot be saved: it is a .*MyPrior"):
        own.save(tmp_path / "model")
    assert entries(tmp_path) == {}


def test_an_estimator_of_ones_own_is_refused(tmp_path):
    class MyTree(HandmadeTree):
        pass

    with pytest.raises(
        ValueError, match=r"MyTree cannot be saved: only estimators that are registered"
    ):
        MyTree().fit(some_posterior()).save(tmp_path / "model")
    assert entries(tmp_path) == {}


def test_an_attribute_that_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"^history_ cannot be saved: it is a builtins\.set"):
        HandmadeTree().fit(some_posterior(), history_={1}).save(tmp_path / "model")
    assert entries(tmp_path) == {}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    before = entries(tmp_path)
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(OSError, match=r"^The model cannot be saved in") as caught:
            handmade().save(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert entries(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=f"^The model cannot be saved in {tmp_path}"):
        handmade().save(tmp_path)
    tmp_path.chmod(0o700)
    assert entries(tmp_path) == {}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("renamed", [0, 1])  # into the place of an unfinished file, and of the old
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        pytest.param(KeyboardInterrupt(), marks=pytest.mark.slow),
    ],
)
def test_a_failing_rename_leaves_everything_as_it_was(
    saved_model, tmp_path, monkeypatch, is_new, renamed, error
):
    folder = tmp_path / "some" / "model"
    if not is_new:
        shutil.copytree(saved_model, folder)
        (folder / "figure.png").write_bytes(b"not ours")
    before = entries(tmp_path)
    replace_file, calls = os.replace, iter(range(100))

    def fail_once(*arguments):
        if next(calls) == renamed:
            raise error
        replace_file(*arguments)

    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises((OSError, KeyboardInterrupt)) as caught:
        handmade(bins=6).save(folder)
    if isinstance(error, OSError):
        assert str(caught.value) == f"The model cannot be saved in {folder}: {error.strerror}."
    assert entries(tmp_path) == before
    if not is_new:
        storage.load(folder)


def in_a_process(script: str, *arguments: object, **options) -> subprocess.CompletedProcess:
    """Run a script in a process of its own, with the tests' modules at hand."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, timeout=120, check=False, **options
    )


_SAVE_AND_DIE = """
import os, signal, sys
from bdtppl import load
kept, folder, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = load(kept, trusted=True).set_params(random_state=7)
calls = iter(range(1000))
def dying(function):
    def call(*arguments, **options):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
for name in ("replace", "fsync", "link", "unlink", "open", "mkdir"):
    setattr(os, name, dying(getattr(os, name)))
model.save(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", slow_but([4], [0, 2, 4, 7, 9]))
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_model(at, tmp_path):
    model = storage.load(OLD / "greedy-classes", trusted=True)
    model.save(tmp_path)
    ended = in_a_process(_SAVE_AND_DIE, OLD / "greedy-classes", tmp_path, at)
    assert ended.returncode in (0, -9)
    is_old = storage.load(tmp_path).random_state == model.random_state
    assert is_old == (at < 8 and ended.returncode == -9)  # moved into place by the eighth call
    for path in tmp_path.glob(".*.partial"):  # as if time had passed
        os.utime(path, (0, 0))
    model.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [storage.FILE]


_SAVE_ON_A_FULL_DISK = """
import resource, signal, sys
from bdtppl import load
model = load(sys.argv[2], trusted=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
try:
    model.save(sys.argv[1])
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
model.save(sys.argv[1] + "-elsewhere")
"""


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_fit_is_kept(tmp_path):
    """The HDF5 library, which wrote models before, crashed the process."""
    model, folder = storage.load(OLD / "chain-values", trusted=True), tmp_path / "model"
    model.save(folder)
    given = folder, OLD / "greedy-classes"
    ended = in_a_process(_SAVE_ON_A_FULL_DISK, *given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"The model cannot be saved in {folder}: ")
    assert [path.name for path in folder.iterdir()] == [storage.FILE]
    assert type(storage.load(folder)) is type(model)
    assert storage.load(tmp_path / "model-elsewhere").is_classifier


def test_home_is_where_it_is_called(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    handmade().save("~/model")
    assert (tmp_path / "model" / storage.FILE).is_file()
    storage.load("~/model")


def test_a_target_that_is_a_folder_is_left_alone(tmp_path):
    (tmp_path / storage.FILE).mkdir()
    before = entries(tmp_path)
    with pytest.raises(OSError, match=r"^The model cannot be saved in"):
        handmade().save(tmp_path)
    assert entries(tmp_path) == before


def test_a_model_is_replaced_and_other_files_stay(tmp_path):
    handmade("regression").save(tmp_path)
    (tmp_path / "figure.png").write_bytes(b"not ours")
    handmade("classification").save(tmp_path)
    assert isinstance(storage.load(tmp_path).leaf_, DirichletCategorical)
    assert sorted(entries(tmp_path)) == ["figure.png", storage.FILE]


# ---------------------------------------------------------------------------- what is not loaded


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INFERENCES, "HandmadeTree", {"classification": HandmadeTree})
        handmade().save(folder)
    return folder


@pytest.fixture
def model(saved_model, tmp_path):
    """Copy the saved model, for a test to damage."""
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


def refusal(folder: Path, kind: type[Exception] = ValueError) -> str:
    """Return the one sentence that loading a folder is refused with."""
    with pytest.raises(kind) as caught:
        storage.load(folder)
    sentence = str(caught.value)
    assert str(folder) in sentence
    assert "\n" not in sentence
    return sentence


def rewrite(folder: Path, change) -> None:
    """Change header and arrays, and write them with the checksum that then belongs to them."""
    header, arrays = read_arrays(folder / storage.FILE, "bdtppl model")
    change(header, arrays)
    write_arrays(folder / storage.FILE, "bdtppl model", header, arrays)


def test_a_missing_folder_or_file_is_named(model, tmp_path):
    for path in (tmp_path / "nowhere", model / storage.FILE):
        assert "does not exist" in refusal(path, FileNotFoundError)
    (model / storage.FILE).unlink()
    assert f"{storage.FILE} does not exist" in refusal(model, FileNotFoundError)


def test_what_is_no_file_is_named(model):
    (model / storage.FILE).unlink()
    (model / storage.FILE).mkdir()
    assert "is not a regular file." in refusal(model, OSError)
    (model / storage.FILE).rmdir()
    os.mkfifo(model / storage.FILE)
    assert "is not a regular file." in refusal(model, OSError)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_file_is_refused(model, share):
    whole = (model / storage.FILE).read_bytes()
    (model / storage.FILE).write_bytes(whole[: int(share * len(whole))])
    assert f"{storage.FILE} is damaged" in refusal(model)


@pytest.mark.parametrize("place", [0.0, 0.02, 0.5, 1.0])
def test_one_changed_bit_is_refused(model, place):
    content = bytearray((model / storage.FILE).read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    (model / storage.FILE).write_bytes(content)
    assert f"{storage.FILE} is damaged" in refusal(model)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"{'format'", b"\x89HDF"])
def test_another_file_is_refused(model, content):
    (model / storage.FILE).write_bytes(content)
    assert "is damaged or no bdtppl model: its first line is different." in refusal(model)


def test_a_newer_format_is_refused(model):
    content = (model / storage.FILE).read_bytes()
    (model / storage.FILE).write_bytes(content.replace(b"format 2", b"format 9", 1))
    sentence = refusal(model)
    assert "has format version 9" in sentence
    assert sentence.endswith("install a newer bdtppl.")


def with_header(content: bytes, header: bytes) -> bytes:
    """Replace a model's header, all checksums being right."""
    first, rest = content.split(b"\n", 1)
    rest = header + rest[int(first.split()[-1]) :]
    digest = hashlib.sha256(rest).hexdigest()
    return f"bdtppl model, format 2, sha256 {digest}, header {len(header)}\n".encode() + rest


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"[" * 100_000, "recursion"),
        (b"{", "Expecting property name"),
        (b"[]", "as an integer"),
        (b"{}", "'arrays' is missing"),
        (b'{"arrays": {"y": ["<f8", [1000000000000]]}}', "is larger than the file"),
        (b'{"arrays": {"y": ["<f8", [1000, 1000, 1000]]}}', "is larger than the file"),
        (b'{"arrays": {"y": ["<U500000000", [2]]}}', "is larger than the file"),
        (b'{"arrays": {"y": ["|O", [1]]}}', "arrays of |O are not supported"),
        (b'{"arrays": {"y": ["|b1", [9]]}}', "neither true nor false"),
        (b'{"arrays": {"y": ["|i1", [-1]]}}', "has the shape"),
        (b'{"arrays": {}}', "bytes after its arrays belong to none"),
        (b'{"arrays": NaN}', "NaN is not JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_a_header_that_was_not_written_by_bdtppl_is_refused(model, header, said):
    content = (model / storage.FILE).read_bytes()
    (model / storage.FILE).write_bytes(with_header(content, header))
    sentence = refusal(model)
    assert "was not written by bdtppl" in sentence
    assert any(each in sentence for each in [said])


def _replace_estimator(header, arrays):
    header["estimator"] = "Popen"


def _forget_posterior(header, arrays):
    del header["posterior"]


def _add_parameter(header, arrays):
    header["parameters"]["depth_of_field"] = 1


def _add_to_the_posterior(header, arrays):
    header["posterior"]["depth_of_field"] = 1


def _set_method(header, arrays):
    header["attributes"]["predict"] = 1


def _set_class(header, arrays):
    header["attributes"]["__class__"] = 1


def _become_list(header, arrays):
    header["attributes"] = []


def _hide_an_array(header, arrays):
    arrays["secret"] = np.arange(3)


def _lose_an_array(header, arrays):
    del arrays["design.weights"]


def _repeat_a_class(header, arrays):
    header["attributes"]["classes_"]["values"] = ["a", "a", "b"]


def _declare_wide_text(header, arrays):
    header["attributes"]["classes_"]["dtype"] = "<U500000000"


def _edited(name, edit):
    def change(header, arrays):
        edit(arrays[name])

    change.__name__ = f"{name}_{edit.__name__}"
    return change


def first_is_far(array):
    array.flat[0] = 1000


def first_is_negative(array):
    array.flat[0] = -2


def root_is_its_own_child(array):
    array[..., 0] = 0


def last_moves_by_one(array):
    array.flat[np.flatnonzero(array)[-1]] += 1


def first_number_moves(array):
    array.flat[np.flatnonzero(np.isfinite(array))[0]] += 1


def last_is_no_number(array):
    array.flat[np.flatnonzero(array)[-1]] = np.nan


def two_change_places(array):
    """Counts move from one sibling to the other: they still add up to their parent's."""
    tree = np.argwhere(array[..., 1, :].sum(-1) > 0)[0]
    array[(*tree, 1)], array[(*tree, 2)] = array[(*tree, 2)].copy(), array[(*tree, 1)].copy()


@pytest.mark.parametrize(
    "change",
    [
        _replace_estimator,
        _forget_posterior,
        _add_parameter,
        _add_to_the_posterior,
        _set_method,
        _set_class,
        _become_list,
        _hide_an_array,
        _lose_an_array,
        _repeat_a_class,
        _declare_wide_text,
        _edited("trees.feature", first_is_far),
        _edited("trees.feature", first_is_negative),
        _edited("trees.left", last_moves_by_one),
        _edited("trees.right", root_is_its_own_child),
        _edited("trees.num_nodes", last_moves_by_one),
        _edited("trees.threshold", first_number_moves),
        _edited("statistics", last_moves_by_one),
        _edited("statistics", last_is_no_number),
        _edited("statistics", two_change_places),
        _edited("y", first_is_negative),
        _edited("design.weights", first_is_negative),
        _edited("design.num_codes", last_moves_by_one),
        _edited("map_tree_.left", last_moves_by_one),
    ],
    ids=lambda change: change.__name__,
)
def test_what_no_fit_could_have_made_is_refused(change, tmp_path):
    handmade().fit(some_posterior(), classes_=np.array(["a", "b", "c"])).save(tmp_path)
    storage.load(tmp_path)
    rewrite(tmp_path, change)
    assert "is not a model that this version of bdtppl can rebuild" in refusal(tmp_path)


def test_an_older_file_may_lack_a_parameter(model):
    rewrite(model, lambda header, arrays: header["parameters"].pop("bins"))
    assert storage.load(model).bins == 5


# ------------------------------------------------------------------------- in another process


@pytest.mark.slow
@pytest.mark.parametrize("task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)])
def test_a_fresh_process_gives_the_same_bits(task, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["age", "dose"]).round(3)
    table["colour"] = rng.choice(["red", "green", "blue"], 60)
    X, rows = table[:40].copy(), table[40:]
    X.loc[[3, 7], "age"] = np.nan
    signal = X["dose"] + (X["colour"] == "red") + rng.normal(size=40) / 2
    if task == "classification":
        y = signal > 0.5
        model = ExactTreeClassifier(bins=3, prior=LeafPenalty(1.3))
    else:
        y = signal
        model = ExactTreeRegressor(bins=3, prior=DepthDecay(0.8), max_depth=3, random_state=1)
    model.fit(X, y, sample_weight=rng.integers(0, 3, 40))
    _require_same_answers({"model": model}, rows, tmp_path)


@pytest.mark.slow
def test_every_estimator_predicts_the_same_bits_in_a_fresh_process(tmp_path):
    models = {name: fitted(name) for name in FITS}
    _require_same_answers(models, pd.DataFrame(NEW), tmp_path)


def _require_same_answers(models: dict[str, Any], rows: pd.DataFrame, folder: Path) -> None:
    """Save models, and ask them in a process of their own."""
    for name, model in models.items():
        model.save(folder / name)
    rows.to_csv(folder / "rows.csv", index=False)
    saved = [folder / name for name in models]
    script = [ROOT / "tests" / "answers.py", *saved, folder / "rows.csv", folder]
    subprocess.run([sys.executable, *script], check=True, timeout=300)
    for name, model in models.items():
        wanted = answers(model, rows if hasattr(model, "feature_names_in_") else rows.to_numpy())
        with np.load(folder / f"{name}.npz") as found:
            assert set(found) == set(wanted)
            for question in wanted:
                same(found[question], wanted[question])


# -------------------------------------------------------------------------------- files of old


KEPT = ["hard-classes", "greedy-classes", "chain-values", "weighted-classes", "flow-values"]
KEPT += ["soft-values", "layered-values", "sums-values"]


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_file_is_still_read(name):
    """Written by an earlier version; its answers were written beside it."""
    folder = OLD / name
    wanted = json.loads((folder / "answers.json").read_text())
    model, rows = storage.load(folder), wanted["rows"]
    rows = {name: np.array(column) for name, column in rows.items()} if "age" in rows else rows
    assert type(model).__name__ == wanted["estimator"]
    np.testing.assert_allclose(model._mixture(rows).mean(), wanted["mean"], rtol=1e-9)
    np.testing.assert_array_equal(model.posterior_.num_leaves, wanted["num_leaves"])
    if "log_evidence" in wanted:
        assert model.log_evidence_ == pytest.approx(wanted["log_evidence"])
    assert str(model.summary())
    assert str(model)
    assert all(model.cautions())
    assert model.feature_importances_.sum() == pytest.approx(1)


def test_obsolete_files_go_away_unless_written_or_the_block_fails(tmp_path):
    for name in ("old.png", "kept.png", "other.txt"):
        (tmp_path / name).write_text("before")
    with pytest.raises(RuntimeError), staged(tmp_path, obsolete=("old.png", "kept.png")):
        raise RuntimeError
    assert (tmp_path / "old.png").exists()
    with staged(tmp_path, obsolete=("old.png", "kept.png")) as folder:
        (folder / "kept.png").write_text("after")
    assert {path.name for path in tmp_path.iterdir()} == {"kept.png", "other.txt"}
    assert (tmp_path / "kept.png").read_text() == "after"


def test_settings_of_older_policies_are_read():
    """They named the balance; what it is now alone is read, the others are refused."""
    written = encode(PolicySettings(num_steps=7), "settings")
    assert decode(written | {"balance": "trajectory"}) == PolicySettings(num_steps=7)
    with pytest.raises(TypeError, match="balance"):
        decode(written | {"balance": "detailed"})
