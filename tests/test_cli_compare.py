"""``bdtppl compare`` reads saved models, holds them to one table, and says what it cannot do."""

import json
import shutil

import numpy as np
import pytest
from test_cli import refusal, run, write_table

from bdtppl import ExactTreeClassifier, GreedyModalTreeClassifier, compare

RNG = np.random.default_rng(0)
SIZE = RNG.integers(0, 6, 30)
KIND = np.where((SIZE > 2) ^ (RNG.random(30) < 0.1), "plum", "cherry")
SITE = np.where(RNG.random(30) < 0.5, "north", "south")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two models, of which one looks at a single column, and their table."""
    folder = tmp_path_factory.mktemp("saved")
    features = {"size": SIZE.astype(float), "site": SITE}
    models = {
        "exact": ExactTreeClassifier(random_state=0).fit(features, KIND),
        "greedy": GreedyModalTreeClassifier().fit({"size": features["size"]}, KIND),
    }
    for name, model in models.items():
        model.save(folder / name)
    columns = {"site": SITE.tolist(), "size": SIZE.tolist(), "kind": KIND.tolist()}
    table = write_table(folder / "fruit.csv", columns)
    return folder, table, compare(models, features, KIND, cv=2)


@pytest.mark.slow
def test_saved_models_are_compared_as_in_python(saved):
    folder, table, wanted = saved
    models = [folder / "exact", folder / "greedy"]
    options = ["--table", table, "--target", "kind", "--folds", "2", "--json"]
    found = json.loads(run("compare", *models, *options).stdout)
    for row, same in zip(found["models"], wanted.rows(), strict=True):
        assert row.keys() == same.keys()
        for name, value in same.items():
            assert row[name] == (pytest.approx(value) if isinstance(value, float) else value)
    assert found["notes"] == wanted.notes()


@pytest.mark.slow
def test_the_table_and_the_figure_are_made(saved, tmp_path):
    folder, _, _ = saved
    models = [folder / "exact", folder / "greedy"]
    text = run("compare", *models, "--figure", tmp_path / "models.png").stdout
    assert "log evidence" in text
    assert "greedy: no PSIS-LOO" in text
    assert "pass X and y to cross-validate" in text
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_figure_of_bounds_alone_is_drawn(saved, tmp_path):
    """Greedy trees have a lower bound of the evidence, and no leave-one-out scores."""
    folder, _, _ = saved
    again = tmp_path / "again"
    shutil.copytree(folder / "greedy", again)
    text = run("compare", folder / "greedy", again, "--figure", tmp_path / "models.png").stdout
    assert "≥" in text
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")


def test_weighted_models_are_held_to_weighted_rows(tmp_path):
    count = 1 + np.arange(30) % 2
    model = GreedyModalTreeClassifier().fit({"size": SIZE}, KIND, sample_weight=count)
    model.save(tmp_path / "greedy")
    columns = {"size": SIZE.tolist(), "count": count.tolist(), "kind": KIND.tolist()}
    of_table = ["--table", write_table(tmp_path / "fruit.csv", columns), "--target", "kind"]
    options = [tmp_path / "greedy", *of_table, "--folds", "2", "--json"]
    (found,) = json.loads(run("compare", *options, "--weight", "count").stdout)["models"]
    (wanted,) = compare({"greedy": model}, {"size": SIZE}, KIND, sample_weight=count, cv=2).rows()
    assert found["log_score"] == pytest.approx(wanted["log_score"])
    assert "with their weights" in refusal("compare", *options)
    assert "--weight requires --table" in refusal(
        "compare", tmp_path / "greedy", "--weight", "count"
    )


def test_what_cannot_be_compared_is_said_in_one_sentence(saved, tmp_path):
    folder, table, _ = saved
    exact = folder / "exact"
    assert "--table and --target must be used together" in refusal(
        "compare", exact, "--table", table
    )
    assert "is not a saved model" in refusal("compare", exact, folder / "nowhere")
    other = tmp_path / "other"
    ExactTreeClassifier(random_state=0).fit({"size": SIZE + 1.0}, KIND).save(other)
    assert "feature 'size' differs first in row 0" in refusal("compare", exact, other)
    columns = {"size": SIZE.tolist(), "site": SITE.tolist(), "kind": KIND[::-1].tolist()}
    wrong = write_table(tmp_path / "wrong.csv", columns)
    sentence = refusal("compare", exact, "--table", wrong, "--target", "kind")
    assert "'exact' was not fitted to these targets y" in sentence
