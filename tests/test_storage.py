"""Saved models come back to the last bit, or are refused in one sentence."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import arviz as az
import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from answers import answers
from every_estimator import FITS, NEW, fitted
from handmade import HandmadeTree, LazyHandmadeTree, some_posterior
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from sklearn.exceptions import NotFittedError
from tiers import slow_but

from bdtppl.estimators.base import INFERENCES
from bdtppl.estimators.exact import ExactTreeClassifier, ExactTreeRegressor
from bdtppl.files import staged
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import Schema
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty
from bdtppl.storage import fitted as storage
from bdtppl.storage.encoding import decode, encode

ROOT = Path(__file__).resolve().parent.parent
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
    saved.schema_ = Schema.read(np.array([["a", "x"], ["b", "y"]], object))[0]
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
    two = replace(
        posterior,
        leaf=DirichletCategorical.symmetric(2),
        statistics=posterior.statistics[..., :2],
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


def test_saving_a_loaded_model_writes_the_same(tmp_path):
    handmade().save(tmp_path / "first")
    storage.load(tmp_path / "first").save(tmp_path / "second")
    first, second = (
        json.loads((tmp_path / name / "model.json").read_text()) for name in ("first", "second")
    )
    assert first["model"] == second["model"]
    arrays = [xr.open_datatree(tmp_path / name / "posterior.nc") for name in ("first", "second")]
    xr.testing.assert_identical(*arrays)
    for tree in arrays:
        tree.close()


def test_arrays_are_read_by_arviz(tmp_path):
    saved = handmade()
    saved.save(tmp_path)
    data = az.from_netcdf(tmp_path / "posterior.nc")
    assert "num_leaves" in az.summary(data, kind="stats").index
    np.testing.assert_array_equal(
        data["sample_stats"]["lp"], saved.posterior_.sample_stats["log_joint"]
    )
    data.close()


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
    with pytest.raises(ValueError, match=r"^prior_ cannot be saved: it is a .*MyPrior"):
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


# Saving renames four files where it replaces a model (both old and both new ones), else two.
@pytest.mark.parametrize(
    ("is_new", "renamed"), [(True, 0), (True, 1), *((False, done) for done in range(4))]
)
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


@pytest.mark.parametrize("writer", ["to_netcdf", "write_text"])
def test_a_failing_write_leaves_no_trace(tmp_path, monkeypatch, writer):
    def fill_the_disk(target, *arguments, **options):
        path = target if isinstance(target, Path) else Path(arguments[0])
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xr.DataTree if writer == "to_netcdf" else Path, writer, fill_the_disk)
    with pytest.raises(OSError, match=r"cannot be saved in .*: No space left on device"):
        handmade().save(tmp_path / "a" / "model")
    assert entries(tmp_path) == {}


def test_a_target_that_is_a_folder_is_left_alone(tmp_path):
    (tmp_path / "model.json").mkdir()
    before = entries(tmp_path)
    with pytest.raises(OSError, match=r"^The model cannot be saved in"):
        handmade().save(tmp_path)
    assert entries(tmp_path) == before


def test_a_model_is_replaced_and_other_files_stay(tmp_path):
    handmade("regression").save(tmp_path)
    (tmp_path / "figure.png").write_bytes(b"not ours")
    handmade("classification").save(tmp_path)
    assert isinstance(storage.load(tmp_path).leaf_, DirichletCategorical)
    assert sorted(entries(tmp_path)) == ["figure.png", "model.json", "posterior.nc"]


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


def rewrite(folder: Path, change, *, with_checksum: bool = False) -> None:
    """Change ``model.json``, on request with the checksum that then belongs to it."""
    document = json.loads((folder / "model.json").read_text())
    change(document)
    if with_checksum:
        document["sha256"]["model"] = storage._checksum_of_json(document["model"])
    (folder / "model.json").write_text(json.dumps(document))


def test_a_missing_folder_or_file_is_named(model, tmp_path):
    for path in (tmp_path / "nowhere", model / "model.json"):
        assert "does not exist" in refusal(path, FileNotFoundError)
    (model / "posterior.nc").unlink()
    assert "posterior.nc does not exist" in refusal(model, FileNotFoundError)
    (model / "model.json").unlink()
    assert "model.json does not exist" in refusal(model, FileNotFoundError)


def test_an_unreadable_file_is_named(model):
    (model / "posterior.nc").unlink()
    (model / "posterior.nc").mkdir()
    assert "cannot be read: Is a directory." in refusal(model, OSError)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_file_is_refused(model, share):
    for name in ("posterior.nc", "model.json"):
        whole = (model / name).read_bytes()
        (model / name).write_bytes(whole[: int(share * len(whole))])
        assert f"{name} is damaged" in refusal(model)
        (model / name).write_bytes(whole)


def test_one_changed_bit_of_the_arrays_is_refused(model):
    content = bytearray((model / "posterior.nc").read_bytes())
    content[len(content) // 2] ^= 1
    (model / "posterior.nc").write_bytes(content)
    assert "posterior.nc is damaged, was altered or belongs to another model" in refusal(model)


def test_an_altered_description_is_refused(model):
    def weaken(document):
        document["model"]["attributes"]["prior_"]["log_phi"] = 1.5

    rewrite(model, weaken)
    assert "damaged or was altered" in refusal(model)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"{'format'", b"\x89HDF"])
def test_what_is_not_json_is_refused(model, content):
    (model / "model.json").write_bytes(content)
    assert "it is not JSON" in refusal(model)


@pytest.mark.parametrize("content", ["[]", "1", "{}", '{"format": "another program"}'])
def test_a_foreign_description_is_refused(model, content):
    (model / "model.json").write_text(content)
    assert "was not written by bdtppl" in refusal(model)


def test_a_newer_format_is_refused(model):
    def age(document):
        document["format_version"], document["bdtppl_version"] = 2, "9.1.0"

    rewrite(model, age)
    sentence = refusal(model)
    assert "format version 2, written by bdtppl 9.1.0" in sentence
    assert sentence.endswith("install a newer bdtppl.")


@pytest.mark.parametrize("key", ["format_version", "sha256", "model"])
def test_a_description_without_its_parts_is_refused(model, key):
    rewrite(model, lambda document: document.pop(key))
    assert "is damaged" in refusal(model)


def _replace_estimator(model):
    model["estimator"] = "Popen"


def _forget_posterior(model):
    del model["posterior"]


def _add_parameter(model):
    model["parameters"]["depth_of_field"] = 1


def _name_another_group(model):
    model["attributes"]["map_tree_"]["group"] = "nowhere"


def _set_method(model):
    model["attributes"]["predict"] = 1


def _set_class(model):
    model["attributes"]["__class__"] = 1


def _become_list(model):
    model["attributes"] = []


@pytest.mark.parametrize(
    "change",
    [
        _replace_estimator,
        _forget_posterior,
        _add_parameter,
        _name_another_group,
        _set_method,
        _set_class,
        _become_list,
    ],
)
def test_a_well_formed_description_of_something_else_is_refused(model, change):
    rewrite(model, lambda document: change(document["model"]), with_checksum=True)
    assert "is not a model that this version of bdtppl can rebuild" in refusal(model)


def test_arrays_of_something_else_are_refused(model):
    (model / "posterior.nc").unlink()
    xr.Dataset({"y": ("row", [1.0])}).to_netcdf(model / "posterior.nc", engine="h5netcdf")

    def adopt(document):
        content = (model / "posterior.nc").read_bytes()
        document["sha256"]["posterior.nc"] = hashlib.sha256(content).hexdigest()

    rewrite(model, adopt)
    assert "'training' is missing" in refusal(model)
    (model / "posterior.nc").write_text("not netCDF")
    rewrite(model, adopt)
    assert "can rebuild" in refusal(model)


# ------------------------------------------------------------------------- in another process


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
    model.fit(X, y, sample_weight=rng.integers(0, 3, 40)).save(tmp_path / "model")
    _require_same_answers(model, rows, tmp_path)


@pytest.mark.parametrize("name", slow_but((), FITS))
def test_every_estimator_predicts_the_same_bits_in_a_fresh_process(name, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model")
    _require_same_answers(model, pd.DataFrame(NEW), tmp_path)


def _require_same_answers(model, rows: pd.DataFrame, folder: Path) -> None:
    """Ask the model saved in a folder in a process of its own."""
    rows.to_csv(folder / "rows.csv", index=False)
    script = [ROOT / "tests" / "answers.py", folder / "model", folder / "rows.csv", folder]
    subprocess.run([sys.executable, *script], check=True, timeout=300)
    wanted = answers(model, rows if hasattr(model, "feature_names_in_") else rows.to_numpy())
    with np.load(folder / "model.npz") as found:
        assert set(found) == set(wanted)
        for name in wanted:
            same(found[name], wanted[name])


# -------------------------------------------------------------------------------- files of old


KEPT = ["hard-classes", "greedy-classes", "chain-values", "weighted-classes", "flow-values"]
KEPT += ["soft-values", "layered-values"]


@pytest.mark.parametrize("name", KEPT)
def test_a_file_of_version_1_is_still_read(name):
    """Written by a version that is gone; its answers were written beside it."""
    folder = ROOT / "tests" / "data" / name
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
