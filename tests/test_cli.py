"""The command line fits, prints, saves and predicts, and says in one sentence what is wrong."""

import csv
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from sklearn.datasets import load_iris
from typer.testing import CliRunner

import bdtppl
from bdtppl import files
from bdtppl.cli import app, results
from bdtppl.cli.console import notes_after, readable_json
from bdtppl.cli.fit_options import fit_options
from bdtppl.cli.specification import make_leaf, parse_prior
from bdtppl.estimators import all_inferences
from bdtppl.inference.metropolis.proposals import KERNELS
from bdtppl.inference.particle.proposals import PROPOSALS
from bdtppl.inference.predictive import many_rows
from bdtppl.models.data.schema import TableWarning
from bdtppl.models.leaf_count_priors import LeafCount, Pinball
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty

EXACT = ("--model", "exact")
WRITTEN = {"model.bdtppl", "structures.png", "summary.json", "tree.png"}


def run(*arguments, status=0):
    """Run the command line; results on one stream, all else on the other."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def refusal(*arguments, status=2):
    """Run what must be refused; its one sentence."""
    result = run(*arguments, status=status)
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "Traceback" not in result.output
    return line.removeprefix("Error: ")


def write_table(path, columns):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Half of iris as a file, with a category and a missing value."""
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    columns = {
        "length": [f"{v:.1f}" for v in X[::2, 2]],
        "width": ["" if row == 3 else f"{v:.1f}" for row, v in enumerate(X[::2, 3])],
        "[bold]site": np.where(X[::2, 1] > 3, "north", "south").tolist(),
        "species": names[::2].tolist(),
    }
    return write_table(tmp_path_factory.mktemp("flowers") / "flowers.csv", columns)


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A table for regression, as tabs."""
    rng = np.random.default_rng(0)
    age = rng.integers(1, 9, 40)
    path = tmp_path_factory.mktemp("trees") / "trees.tsv"
    lines = [f"{a}\t{a // 4 + h:.2f}" for a, h in zip(age, rng.normal(size=40) / 4, strict=True)]
    path.write_text("\n".join(["age\theight", *lines]))
    return path


@pytest.fixture(scope="module")
def classifier(flowers, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "model"
    result = run("fit", flowers, "--target", "species", *EXACT, "--bins", 3, "--out", out)
    return out, result


@pytest.fixture(scope="module")
def regressor(trees, tmp_path_factory):
    out = tmp_path_factory.mktemp("regressor") / "model"
    result = run(
        "fit",
        trees,
        "--target",
        "height",
        *EXACT,
        "--prior",
        "leaf-penalty:log_phi=3",
        "--out",
        out,
        "--json",
    )
    return out, result


# ------------------------------------------------------------------------------------------ fit


def test_fit_prints_a_summary_within_80_columns(classifier, flowers):
    out, result = classifier
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"species in {flowers.name}"
    model = bdtppl.load(out)
    said = "\n".join(lines)
    assert "setosa, versicolor, virginica" in said
    assert "classification (guessed: words are classes; see --task)" in said
    assert f"log evidence     {model.log_evidence_:.3f}" in said
    assert f"{model.exact_.grammar.num_subproblems} sets of rows" in said.replace(",", "")
    assert not re.search(r"\b(chart|subproblem|production|nat|twin)s?\b", said)
    assert f"probability {model.map_probability_:.3g}" in said
    for line in model.rules().splitlines():
        assert f"  {line}" in lines
    for name, probability in zip(model.design_.names, model.exact_.split_inclusion, strict=True):
        shown = [*name.split(), f"{probability:.3f}"]
        assert any(line.split()[: len(shown)] == shown for line in lines)


def test_fit_writes_what_it_says(classifier):
    out, result = classifier
    assert {path.name for path in out.iterdir()} == WRITTEN
    assert all(name in result.stdout for name in WRITTEN)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["target"] == "species"
    assert summary["classes"] == ["setosa", "versicolor", "virginica"]
    assert summary["rows"] == 75
    assert summary["log_evidence"] == bdtppl.load(out).log_evidence_
    for path in out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_that_are_not_finite_become_null():
    said = readable_json({"ess": np.nan, "r_hat": [np.float64(np.inf), 1.5], "draws": 3})
    assert json.loads(said) == {"ess": None, "r_hat": [None, 1.5], "draws": 3}


def test_fit_prints_json_and_nothing_else(regressor):
    out, result = regressor
    assert result.stderr.startswith("Note: The evidence still rises") or not result.stderr
    assert json.loads(result.stdout) == json.loads((out / "summary.json").read_text())
    assert json.loads(result.stdout)["prior"] == "LeafPenalty(log_phi=3)"
    assert {path.name for path in out.iterdir()} == WRITTEN | {"predictive.png"}


def test_fit_hands_on_the_settings_of_the_model(trees, tmp_path, monkeypatch):
    handed = []
    monkeypatch.setattr(results, "report_fit", lambda *given, **options: handed.append(given))
    settings = ["--binning", "uniform", "--min-leaf", 5, "--max-depth", 1, "--draws", 10]
    settings += ["--max-subproblems", 500, "--seed", 7, "--leaf", "normal-inverse-gamma:shape=3"]
    settings += ["--bins", 4, "--prior", "greedy-partition:p=0.9", "--drop", "age"]
    table = write_table(tmp_path / "t.csv", {"age": [1, 2], "width": [1, 2], "height": [0, 2]})
    run("fit", table, "--target", "height", "--task", "regression", *EXACT, *settings)
    ((problem, inference, settings, _),) = handed
    assert inference == "exact"
    leaf, prior = settings.pop("leaf"), settings.pop("prior")
    assert settings == {
        "bins": 4,
        "binning": "uniform",
        "max_depth": 1,
        "min_leaf": 5,
        "max_subproblems": 500,
        "draws": 10,
        "random_state": 7,
    }
    assert leaf == NormalInverseGamma(1.0, 1.0, 3.0, 1.0, centre=1.0)
    assert prior == GreedyPartition(0.9)
    assert list(problem.features) == ["width"]
    assert problem.target.task == "regression"


@pytest.mark.slow
def test_fit_takes_a_grid_and_no_bins(trees):
    for options, points in (
        (["--grid", 3], "3 evenly spaced ones"),
        (["--bins", "none"], "between any two values"),
        (["--bins", 3], "between at most 3 quantile bins"),
    ):
        result = run("fit", trees, "--target", "height", *EXACT, *options)
        assert points in result.stdout
        assert "Nothing was saved" in result.stdout


@pytest.mark.slow
def test_fit_leaves_other_files_alone(classifier, flowers, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "tree.png").write_text("old")
    run("fit", flowers, "--target", "species", *EXACT, "--bins", 2, "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN | {"notes.txt"}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_constant_columns_fit(tmp_path):
    table = write_table(tmp_path / "t.csv", {"a": [1, 1, 1], "b": ["", "", ""], "y": list("uvv")})
    result = run("fit", table, "--target", "y", *EXACT, "--out", tmp_path / "out")
    assert "always: v (0.60, 3 rows)" in result.stdout
    assert result.stderr.count("No cut in 'a' and 'b'") == 1
    assert run("predict", tmp_path / "out", table).stdout.count("v,0.4,0.6,") == 3


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        (["1", "2", "2"], [], "classification (guessed: whole numbers of 2 values"),
        (["1", "2", "2"], ["--task", "regression"], "regression\n"),
        (["1.5", "2", "2"], [], "regression (guessed: numbers are quantities"),
        (["1.5", "2", "2"], ["--task", "classification"], "y: 1.5, 2\n"),
        ([str(v) for v in range(11)], [], "regression (guessed"),
        (["u", "2", "2", "v"], [], "classification (guessed: words"),
    ],
)
def test_the_task_is_guessed_from_the_target(tmp_path, cells, options, said):
    table = write_table(tmp_path / "t.csv", {"a": [1] * len(cells), "y": cells})
    assert said in run("fit", table, "--target", "y", *EXACT, *options).stdout


@pytest.mark.slow
def test_notes_go_to_the_error_stream(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(",a,y\n" + "".join(f"{row},{row / 7},{row % 2}\n" for row in range(40)))
    result = run("fit", table, "--target", "y", *EXACT, "--json")
    assert json.loads(result.stdout)["features"] == 1
    assert result.stderr == f"Note: Column 1 of {table} has no name and was left out.\n"


def test_fits_a_greedy_modal_tree(flowers, tmp_path):
    out = tmp_path / "greedy"
    options = ["--model", "greedy-modal", "--num-roots", 2, "--out", out]
    printed = run("fit", flowers, "--target", "species", *options).stdout
    assert "Feature importance" in printed
    assert "log evidence     at least" in printed
    assert isinstance(bdtppl.load(out), bdtppl.GreedyModalTreeClassifier)
    assert run("predict", out, flowers).stdout.count("\n") > 10


@pytest.mark.slow
def test_fits_by_particle_filters(flowers, tmp_path):
    out = tmp_path / "particle"
    options = ["--model", "particle", "--particles", 20, "--runs", 3, "--out", out]
    printed = run("fit", flowers, "--target", "species", *options).stdout
    assert "3 runs of 20, effectively" in printed
    assert " +- " in printed
    model = bdtppl.load(out)
    assert isinstance(model, bdtppl.ParticleTreeClassifier)
    assert model.bins is None
    assert run("predict", out, flowers).stdout.count("\n") > 10


# -------------------------------------------------------------------------------------- predict


@pytest.mark.slow
def test_fits_by_metropolis(flowers, tmp_path):
    options = ["--chains", 2, "--draws", 20, "--warmup", 100, "--temperatures", 2]
    options += ["--proposal", "denison", "--seed", 3]
    arguments = ["fit", flowers, "--target", "species", "--model", "metropolis", "--bins", 3]
    result = run(*arguments, *options, "--out", tmp_path, "--json")
    summary = json.loads(result.stdout)
    assert (summary["chains"], summary["draws"]) == (2, 20)
    assert summary["log_evidence_se"] > 0
    model = bdtppl.load(tmp_path)
    assert type(model).__name__ == "MetropolisTreeClassifier"
    assert np.isfinite(model.acceptance_["shift"]).all()
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN | {"trajectories.png"}


def test_predict_gives_what_the_model_gives(classifier, flowers, tmp_path):
    out, _ = classifier
    rows = list(csv.DictReader(run("predict", out, flowers).stdout.splitlines()))
    model = bdtppl.load(out)
    with flowers.open() as file:
        cells = list(csv.DictReader(file))
    X = {
        "length": [float(row["length"]) for row in cells],
        "width": [float(row["width"] or "nan") for row in cells],
        "[bold]site": [row["[bold]site"] for row in cells],
    }
    assert [row["prediction"] for row in rows] == model.predict(X).tolist()
    names = [f"probability_{label}" for label in model.classes_]
    found = np.array([[float(row[name]) for name in names] for row in rows])
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=1e-9)

    answer = json.loads(run("predict", out, flowers, "--json").stdout)
    assert [[row[name] for name in names] for row in answer["predictions"]] == (
        model.predict_proba(X).tolist()
    )
    written = tmp_path / "new" / "predictions.csv"
    result = run("predict", out, flowers, "--out", written)
    assert result.stdout == f"Wrote predictions for 75 rows to {written}.\n"
    assert list(csv.DictReader(written.read_text().splitlines())) == rows


def test_predict_reads_other_columns_in_another_order(classifier, flowers, tmp_path):
    out, _ = classifier
    with flowers.open() as file:
        cells = list(csv.DictReader(file))
    names = ["extra", "[bold]site", "width", "length"]
    columns = {name: [row.get(name, "x") for row in cells] for name in names}
    turned = write_table(tmp_path / "turned.csv", columns)
    assert run("predict", out, turned).stdout == run("predict", out, flowers).stdout


def test_predict_keeps_an_id_and_else_numbers_the_rows(regressor, tmp_path):
    def last_column(columns, *options):
        table = write_table(tmp_path / "t.csv", {"age": [1, 2, 3]} | columns)
        lines = run("predict", regressor[0], table, *options).stdout.splitlines()
        return [line.rpartition(",")[2] for line in lines]

    numbered = ["row", "1", "2", "3"]
    named = {"plot": ["n", "s", "w"], "tree_id": ["07", "08", "09"]}
    assert last_column({"height": [7, 8, 9], "humid": [1, 2, 3]}) == numbered
    assert last_column({"tree_id": ["07", "08", "08"]}) == numbered
    assert last_column(named) == ["tree_id", "07", "08", "09"]
    assert last_column({"TreeId": [7, 8, 9]}) == ["TreeId", "7", "8", "9"]
    assert last_column(named, "--id", "plot") == ["plot", "n", "s", "w"]
    table = write_table(tmp_path / "t.csv", {"age": [1], "prediction": ["a"]})
    said = refusal("predict", regressor[0], table, "--id", "prediction")
    assert said == f"Column 'prediction' of {table} has the name of a prediction: rename it."
    assert "Column 'tree' is not in" in refusal("predict", regressor[0], table, "--id", "tree")


def test_predict_gives_intervals(regressor, trees, monkeypatch):
    out, _ = regressor
    plain = run("predict", out, trees).stdout
    assert plain.splitlines()[0] == "prediction,row"
    monkeypatch.setattr(many_rows, "_BYTES_AT_ONCE", 7)
    rows = list(csv.DictReader(run("predict", out, trees, "--interval", 0.5).stdout.splitlines()))
    assert [f"{row['prediction']},{row['row']}" for row in rows] == plain.splitlines()[1:]
    model = bdtppl.load(out)
    age = [float(line.split("\t")[0]) for line in trees.read_text().splitlines()[1:]]
    found = [[float(row["lower"]), float(row["upper"])] for row in rows]
    np.testing.assert_allclose(found, model.predict_interval({"age": age}, 0.5), rtol=1e-6)


@pytest.mark.slow
def test_predict_finds_columns_by_position_for_a_model_without_names(tmp_path):
    X, y = np.array([[0.0, 5], [1, 6], [2, 5], [3, 6]] * 3), np.array([0, 0, 1, 1] * 3)
    model = bdtppl.ExactTreeClassifier().fit(X, y)
    model.save(tmp_path / "model")
    table = write_table(tmp_path / "t.csv", {"first": X[:, 0], "second": X[:, 1]})
    rows = list(csv.DictReader(run("predict", tmp_path / "model", table).stdout.splitlines()))
    assert [int(row["prediction"]) for row in rows] == model.predict(X).tolist()
    few = write_table(tmp_path / "few.csv", {"first": X[:, 0]})
    assert "1 columns, but the model was fitted with 2" in refusal(
        "predict", tmp_path / "model", few
    )


# ------------------------------------------------------------------------------------ bad input

GOOD = "a,b,y\n1,2,u\n2,1,v\n3,4,u\n"
WIDE = "a,y\n" + "".join(f"{row},{row % 2}\n" for row in range(50))


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (None, [], "does not exist"),
        ("a,b,y\n", [], "has no rows"),
        ("", [], "is empty"),
        ("y\nu\nv\n", [], "has no column besides the target 'y'"),
        (GOOD.replace("y", "z"), [], "Column 'y' is not in"),
        (GOOD.replace("v", ""), [], "Column 'y', line 3: the target is missing"),
        (GOOD.replace("v", "nan"), [], "Column 'y', line 3: the target is missing"),
        (GOOD.replace("v", "u"), [], "Column 'y': the target has only one class, 'u'"),
        ("a,y\n1,u\n", [], "The table has only one row"),
        ("a,y\n1,1\n2,inf\n3,2\n", [], "Column 'y', line 3: 'inf' is infinite"),
        ("a,y\n1,1\n2,1\n3,x\n", [], "Column 'y', line 4: 'x' is not a number but most"),
        (GOOD, ["--task", "regression"], "Column 'y', line 2: 'u' is not a number"),
        (GOOD.replace("4", "-inf"), [], "Column 'b', line 4: '-inf' is infinite"),
        (GOOD + "5,6\n", [], "line 5: there are 2 cells"),
        (GOOD, ["--drop", "c"], "Column 'c' is not in"),
        (GOOD, ["--drop", "y"], "--drop y names the target"),
        (GOOD, ["--drop", "a", "--drop", "b"], "has no column besides the target"),
        (GOOD, ["--bins", "1"], "--bins must be auto, none or an integer of at least 2; got '1'"),
        (GOOD, ["--bins", "5", "--grid", "5"], "--bins 5 and --grid 5 exclude each other"),
        (GOOD, ["--grid", "0"], "'--grid'"),
        (GOOD, ["--min-leaf", "0"], "'--min-leaf'"),
        (GOOD, ["--max-depth", "-1"], "'--max-depth'"),
        (GOOD, ["--seed", "x"], "'--seed'"),
        (GOOD, ["--lookahead", "2"], "--lookahead is for --model greedy-modal, not exact."),
        (GOOD, ["--binning", "log"], "'--binning'"),
        (GOOD, ["--model", "forest"], "'--model'"),
        (GOOD, ["--prior", "flat"], "--prior: 'flat' is not known; use one of depth-decay, "),
        (GOOD, ["--leaf", "normal-inverse-gamma"], "--leaf (for classification): "),
        (GOOD, ["--colour"], "No such option: --colour"),
        (
            WIDE,
            ["--max-subproblems", "2", "--max-seconds", "1e-9"],
            "even with 2 bins a feature. Use fewer columns (--drop)",
        ),
        (
            WIDE,
            ["--bins", "30", "--method", "chart", "--max-subproblems", "50"],
            "more than --max-subproblems 50",
        ),
    ],
)
def test_fit_refuses_in_one_sentence_and_writes_nothing(tmp_path, text, options, said):
    table = tmp_path / "t.csv"
    if text is not None:
        table.write_text(text)
    out = tmp_path / "new" / "out"
    assert said in refusal("fit", table, "--target", "y", "--out", out, *EXACT, *options)
    assert not out.parent.exists()


def test_wrong_usage_is_one_sentence(tmp_path):
    assert refusal("fit") == "Missing argument 'TABLE'."
    assert refusal("fit", tmp_path) == "Missing option '--target'."
    assert refusal("fitt").startswith("No such command 'fitt'.")


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_that_cannot_be_written_is_named(trees, tmp_path, monkeypatch, late):
    if late:  # as where the disk fills up
        monkeypatch.setattr(files, "require_writable", lambda *_: None)
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        said = refusal("fit", trees, "--target", "height", *EXACT, "--out", out)
        assert said.startswith(f"--out {out} cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
@pytest.mark.parametrize("write", ["--out=~/q", "--out ~/q"])
def test_home_is_where_it_is_called(trees, tmp_path, monkeypatch, write):
    """A shell leaves it to us behind an equals sign and in quotes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run("fit", trees, "--target", "height", "--model", "greedy-modal", *write.split())
    assert (tmp_path / "q" / "model.bdtppl").is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(trees, tmp_path):
    tmp_path.chmod(0o500)
    said = refusal("fit", trees, "--target", "height", "--out", tmp_path / "out")
    tmp_path.chmod(0o700)
    assert said == f"--out {tmp_path / 'out'} cannot be written: {tmp_path} is read-only."


def test_a_figure_that_fails_leaves_nothing(trees, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nink")

    monkeypatch.setattr(results, "plot_tree", fail)
    said = refusal("fit", trees, "--target", "height", *EXACT, "--out", tmp_path / "out", status=1)
    assert said.startswith("Unexpected failure, RuntimeError: no ink; set BDTPPL_TRACEBACK=1")
    assert list(tmp_path.iterdir()) == []


def test_predict_notes_a_gap_that_fit_did_not_see(classifier, tmp_path):
    table, out = tmp_path / "new.csv", tmp_path / "answers.csv"
    table.write_text("length,width,[bold]site\n1,1,north\n,1,north\n")
    result = run("predict", classifier[0], table, "--out", out)
    assert "missing (NaN) in 'length', where no training row misses" in result.output
    assert len(out.read_text().splitlines()) == 3


def test_predict_notes_a_level_that_fit_did_not_see(classifier, tmp_path):
    table, out = tmp_path / "new.csv", tmp_path / "answers.csv"
    table.write_text("length,width,[bold]site\n1,1,east\n")
    result = run("predict", classifier[0], table, "--out", out)
    assert (
        "Column '[bold]site': level 'east' was not seen when the model was fitted" in result.output
    )
    assert len(out.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("length,width\n1,1\n", "Column '[bold]site' is not in"),
        ("length,width,[bold]site\n", "has no rows"),
        ("length,width,[bold]site\n1,x,north\n", "Column 'width', line 2: 'x' is not a number"),
        ("length,width,[bold]site\n1,inf,north\n", "Column 'width', line 2: 'inf' is infinite"),
    ],
)
def test_predict_refuses_in_one_sentence_and_writes_nothing(classifier, tmp_path, text, said):
    table, answers = tmp_path / "t.csv", tmp_path / "answers.csv"
    if text is not None:
        table.write_text(text)
    assert said in refusal("predict", classifier[0], table, "--out", answers)
    assert not answers.exists()


def test_predict_refuses_what_does_not_fit_the_model(classifier, regressor, flowers, trees):
    said = refusal("predict", classifier[0], flowers, "--interval", 0.9)
    assert said == f"--interval is for regression, but {classifier[0]} is a classifier."
    said = refusal("predict", regressor[0], trees, "--interval", 1)
    assert said == "--interval must be between 0 and 1; got 1."
    assert "is the table itself" in refusal("predict", regressor[0], trees, "--out", trees)
    said = refusal("predict", regressor[0], trees, "--out", trees / "answers.csv")
    assert said == f"--out {trees / 'answers.csv'} cannot be written: Not a directory."


def test_damaged_models_are_refused(classifier, flowers, tmp_path):
    assert "is not a saved model" in refusal("predict", tmp_path / "nowhere", flowers)
    for path in classifier[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.bdtppl").write_bytes(b"torn")
    assert "model.bdtppl is damaged" in refusal("predict", tmp_path, flowers)


# ------------------------------------------------------------------------------- specifications


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("leaf-penalty", LeafPenalty()),
        ("leaf-penalty:log-phi=3", LeafPenalty(3.0)),
        ("depth-decay:alpha=0.9, beta=1.5", DepthDecay(0.9, 1.5)),
        ("depth-decay:cut_weights=gap,rules=cuts", DepthDecay(cut_weights="gap", rules="cuts")),
        ("description-length", DescriptionLength()),
        ("description-length:beta=3", DescriptionLength(3.0)),
        ("greedy-partition:p=0.8", GreedyPartition(0.8)),
        ("leaf-count:rate=3,rules=cuts", LeafCount(3.0, rules="cuts")),
        ("pinball:balance=2,max-leaves=9", Pinball(balance=2.0, max_leaves=9)),
    ],
)
def test_priors_are_parsed(text, prior):
    assert parse_prior(text) == prior


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leaf-penalty:phi=2", "leaf-penalty has no 'phi'; it has log_phi, rules"),
        ("leaf-penalty:log_phi", "log_phi lacks its value"),
        ("leaf-penalty:log_phi=__import__('os')", "log_phi must be a finite number"),
        ("leaf-penalty:log_phi=inf", "log_phi must be a finite number"),
        ("depth-decay:alpha=.5,alpha=.6", "alpha is given twice"),
        ("depth-decay:alpha=2", "alpha must be in"),
        ("depth-decay:rules=all", "rules must be"),
        ("greedy-partition:num_features=3", "has no 'num_features'"),
        ("leaf-count:log_num_trees=3", "leaf-count has no 'log_num_trees'"),
        ("pinball:max_leaves=2.5", "max_leaves must be a whole number; got '2.5'"),
        ("pinball:max_leaves=0", "max_leaves must be"),
    ],
)
def test_priors_that_are_not_known_are_refused(text, said):
    with pytest.raises(ValueError, match=f"^--prior: .*{re.escape(said)}"):
        parse_prior(text)


def test_leaf_families_are_parsed():
    y = np.array([0.0, 1.0, 5.0])
    assert make_leaf(None, "regression", y) is None
    family = make_leaf("normal-inverse-gamma:scale=3", "regression", y)
    assert family == NormalInverseGamma(2.0, 1.0, 2.0, 3.0, centre=2.0)
    family = make_leaf("dirichlet-categorical:concentration=0.5", "classification", y)
    assert isinstance(family, DirichletCategorical)
    assert family.concentration.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="--leaf: scale must be positive"):
        make_leaf("normal-inverse-gamma:scale=-3", "regression", y)


# ----------------------------------------------------------------------------------- all in all


@pytest.mark.slow
def test_the_demo_draws_its_pictures_without_a_folder_of_data(tmp_path, monkeypatch):
    monkeypatch.delenv("BDTPPL_DATA", raising=False)
    shown = run("demo", "--out", tmp_path).stdout
    pictures = ["1-exact-posterior", "2-sum-of-trees", "3-comparison", "4-soft-tree"]
    pictures = [f"{name}.png" for name in pictures]
    assert all(str(tmp_path / name) in shown for name in pictures)
    assert {path.name for path in tmp_path.iterdir()} == {*pictures, "diabetes.csv", "iris.csv"}
    assert "has probability 0.415" in shown
    assert not re.search(r"\w\(\w+=", shown)  # no representation of an object


def test_the_demo_needs_a_folder(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "is not a folder" in refusal("demo", "--out", tmp_path / "file")


def test_soft_trees_have_settings_of_their_own(trees):
    assert "--bins is for --model bart or bcf or exact" in refusal(
        "fit", trees, "--target", "height", "--model", "dcc", "--bins", 3
    )
    assert "--h-final is for --model dcc or rjhmc" in refusal(
        "fit", trees, "--target", "height", *EXACT, "--h-final", 0.1
    )


def test_an_interrupted_fit_says_so_and_leaves_nothing(trees, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bdtppl.ExactTreeRegressor, "fit", interrupted)
    arguments = ("fit", trees, "--target", "height", *EXACT, "--json", "--out", tmp_path / "out")
    assert refusal(*arguments, status=130) == "Interrupted."
    assert not list(tmp_path.iterdir())


_SHORT_WALK = ["--iterations", 1, "--initial-trees", 9, "--patience", 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "few"),
    [
        ("gflownet", ["--steps", 4, "--max-depth", 2, "--grid", 3, "--draws", 9]),
        ("dcc", [*_SHORT_WALK, "--chains", 2, "--warmup", 40, "--max-splits", 1]),
    ],
)
def test_a_long_fit_keeps_a_checkpoint_and_is_saved(model, few, trees, tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "out"
    options = ["--target", "height", "--model", model, *few]
    evidence = []
    for _ in range(2):  # the second one finds that all is done
        run("fit", trees, *options, "--checkpoint", kept, "--out", out)
        loaded = bdtppl.load(out)
        evidence.append(loaded.posterior_.log_evidence)
    assert loaded.checkpoint is None
    assert evidence[0] == evidence[1] or np.isnan(evidence).all()
    (tmp_path / "file").write_text("in the way")
    said = refusal("fit", trees, *options, "--checkpoint", tmp_path / "file")
    assert said.startswith(f"--checkpoint {tmp_path / 'file'} cannot be written")


def test_warnings_become_notes(capsys):
    with notes_after():
        warnings.warn("mind\nthis", TableWarning, stacklevel=1)
        warnings.warn_explicit("rows are few", UserWarning, bdtppl.__file__, 1)
        warnings.warn_explicit("slow here", UserWarning, np.__file__, 1)  # of another package
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr() == ("", "Note: mind this\nNote: rows are few\n")


def test_advice_names_options(capsys):
    with notes_after():
        warnings.warn("Raise extensions, warmup, draws or thin.", TableWarning, stacklevel=1)
    said = "Note: Raise --extensions, --warmup, --draws or --thin.\n"
    assert capsys.readouterr() == ("", said)


def test_an_error_stands_alone(capsys):
    def warn_and_fail():
        with notes_after():
            warnings.warn("mind this", UserWarning, stacklevel=1)
            raise ValueError("worse")

    with pytest.raises(ValueError, match="worse"):
        warn_and_fail()
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_console_script_answers_at_once(tmp_path):
    script = Path(sys.executable).parent / "bdtppl"
    command = (
        [script] if script.exists() else [sys.executable, "-c", "from bdtppl.cli import *; main()"]
    )

    def start(*arguments):
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )

    shown = start()
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("demo", "fit", "predict"))
    assert run("--version").stdout == f"bdtppl {bdtppl.__version__}\n"
    wrong = start("fit", "missing.csv", "--target", "y")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert wrong.stderr == "Error: The table missing.csv does not exist.\n"


def test_every_proposal_of_a_chain_is_offered():
    said = fit_options()["proposal"].kind
    assert set(KERNELS) < set(get_args(said))


@pytest.mark.parametrize(("model", "own"), [("metropolis", KERNELS), ("particle", PROPOSALS)])
def test_help_of_a_model_lists_its_own_proposals_alone(model, own):
    arguments = ["fit", "--model", model, "--help"]
    said = CliRunner(env={"COLUMNS": "400"}).invoke(app, arguments).stdout
    assert set(re.search(r" --proposal +<(.*?)>", said)[1].split("|")) == set(own)


def test_every_parameter_has_an_option_with_its_default_and_choices():
    options = fit_options()
    for model in all_inferences():
        said = run("fit", "--model", model, "--help").stdout
        for name, option in options.items():
            assert option.said.help, name
            listed = re.search(rf"│ +--{name.replace('_', '-')} ", said)
            assert bool(listed) == (model in option.default_of), (model, name)
    assert options["chains"].default_of["dcc"] == 16


def test_help_of_fit_has_the_common_options_alone():
    said = run("fit", "--help").stdout
    assert len(re.findall(r"│ [ *]  ?--", said)) <= 15
    for name in ("target", "model", "prior", "bins", "max-depth", "report", "seed"):
        assert f"--{name} " in said
    assert "All options of one model: bdtppl fit --model NAME --help." in said


# ------------------------------------------------------------------------------ prior, data sets


@pytest.mark.slow
def test_prior_draws_trees_of_simulated_columns(tmp_path):
    arguments = ["prior", "--prior", "depth-decay:alpha=0.5,beta=1", "--draws", 400, "--grid", 3]
    result = run(*arguments, "--show", 2, "--out", tmp_path)
    assert "DepthDecay(alpha=0.5, beta=1)" in result.stdout
    assert result.stdout.count("as drawn") == 2
    assert max(map(len, result.stdout.splitlines())) <= max(80, len(str(tmp_path)) + 50)
    assert {p.name for p in tmp_path.iterdir()} == {"sizes.png", "tree-1.png", "tree-2.png"}
    drawn = json.loads(run(*arguments, "--json").stdout)
    assert drawn["features"] == ["x0", "x1", "x2"]
    assert sum(drawn["leaves"].values()) == pytest.approx(1)
    # A root stops with probability 1/2, within 5 standard errors (rate 6e-7).
    assert abs(drawn["leaves"]["1"] - 0.5) < 5 * 0.5 / np.sqrt(400)
    assert drawn["leaves"]["1"] == drawn["depth"]["0"]
    assert len(drawn["trees"]) == 3
    # The twin: another prior's trees are others.
    other = json.loads(run("prior", "--draws", 400, "--grid", 3, "--json").stdout)
    assert abs(other["leaves"]["1"] - 0.5) > 5 * 0.5 / np.sqrt(400)


@pytest.mark.slow
def test_prior_draws_trees_by_their_number_of_leaves():
    """Under a Poisson(2) law given 1 to 3 leaves, within 5 standard errors (rate 1e-6)."""
    arguments = ["prior", "--rows", 20, "--columns", 1, "--draws", 500]
    given = "leaf-count:rate=2,max_leaves=3"
    drawn = json.loads(run(*arguments, "--prior", given, "--json").stdout)
    share = np.array([drawn["leaves"][name] for name in "123"])
    wanted = np.array([6, 6, 4]) / 16
    error = np.sqrt(wanted * (1 - wanted) / 500)
    assert (abs(share - wanted) < 5 * error).all()
    assert (abs(share - [0.6, 0.3, 0.1]) > 5 * error).any()  # of Poisson(1)
    message = refusal(*arguments, "--prior", given, "--max-subproblems", 10)
    assert "more than --max-subproblems 10" in message


@pytest.mark.slow
def test_prior_says_what_the_table_fills_in():
    result = run("prior", "--rows", 20, "--columns", 2, "--prior", "description-length")
    assert f"DescriptionLength(beta={np.log(4 * 2 * 19):.4f})" in result.stdout


def test_prior_reads_a_table_and_a_file(flowers, tmp_path):
    file = tmp_path / "prior.toml"
    file.write_text('[prior]\nkind = "LeafPenalty"\nlog_phi = 1.0\n[constraints]\nmax_depth = 1\n')
    arguments = ["prior", flowers, "--drop", "species", "--bins", 3, "--prior-file", file]
    drawn = json.loads(run(*arguments, "--draws", 50, "--json").stdout)
    assert drawn["prior"] == "LeafPenalty(log_phi=1)"
    assert drawn["constraints"] == "max_depth=1"
    assert drawn["features"] == ["length", "width", "[bold]site=south", "width=missing"]
    assert set(drawn["depth"]) == {"0", "1"}
    assert "exclude each other" in refusal(*arguments, "--prior", "leaf-penalty")
    weights = 'feature_weights = { "[bold]site" = 0.0, length = 0.0 }'
    file.write_text(f'[prior]\nkind = "DepthDecay"\n{weights}\n')
    drawn = json.loads(run(*arguments, "--draws", 50, "--json").stdout)
    assert all("site" not in tree and "length" not in tree for tree in drawn["trees"])
    file.write_text("[constraints]\nfeatures = ['hue']\n")
    assert f"{file}, line 2: features names 'hue'" in refusal(*arguments)
    assert "--drop y requires a table" in refusal("prior", "--drop", "y")
    assert "--bins 3 and --grid 2 exclude" in refusal("prior", "--bins", 3, "--grid", 2)
    assert "did you mean 'length'?" in refusal("prior", flowers, "--drop", "lenth")


def test_datasets_says_what_is_here_and_where_the_rest_is(tmp_path, monkeypatch):
    from bdtppl.dataset_sources import SOURCES

    monkeypatch.delenv("BDTPPL_DATA", raising=False)
    result = run("datasets")
    assert "BDTPPL_DATA is not set" in result.stdout
    assert "here" not in result.stdout.split()[:-40]
    monkeypatch.setenv("BDTPPL_DATA", str(tmp_path))
    (tmp_path / "pima.csv").write_text("a,b\n1,2\n")
    found = json.loads(run("datasets", "--json").stdout)
    assert found["folder"] == str(tmp_path)
    states = {each["name"]: each["state"] for each in found["datasets"]}
    assert states.pop("pima") == "altered"
    assert set(states.values()) == {"missing"}
    assert {each["name"]: each["origin"] for each in found["datasets"]} == {
        name: source.origin for name, source in SOURCES.items()
    }
    result = run("datasets")
    assert "not the known file" in result.stdout
    assert f"contains 0 of {len(SOURCES)} tables" in " ".join(result.stdout.split())


# ------------------------------------------------------------------------------ files and the shell


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_predictions_are_written_by_the_ending(classifier, flowers, tmp_path, ending):
    from bdtppl.table_files import read_table

    written = tmp_path / f"predicted.{ending}"
    result = run("predict", classifier[0], flowers, "--out", written)
    assert result.stdout.startswith("Wrote predictions for 75 rows")
    table = read_table(written)
    printed = list(csv.DictReader(run("predict", classifier[0], flowers).stdout.splitlines()))
    assert table.columns == list(printed[0])
    assert list(table.cells["prediction"]) == [row["prediction"] for row in printed]
    np.testing.assert_allclose(
        table.numbers("probability_setosa"), [float(r["probability_setosa"]) for r in printed]
    )


def test_parquet_without_a_reader_says_what_to_install(classifier, flowers, tmp_path, monkeypatch):
    monkeypatch.setattr("bdtppl.table_files.find_spec", lambda name: None)
    said = refusal("predict", classifier[0], flowers, "--out", tmp_path / "p.parquet")
    assert "run `python -m pip install 'bdtppl[parquet]'`, or use a CSV file" in said
    assert not list(tmp_path.iterdir())


def test_dates_are_refused_with_advice(tmp_path):
    table = write_table(tmp_path / "t.csv", {"day": ["2024-02-29", "2024-3-1"], "y": [1, 2]})
    said = refusal("fit", table, "--target", "y")
    assert said.startswith("Column 'day' contains dates, such as '2024-02-29'")
    assert "leave the column out with --drop" in said


def test_targets_that_are_no_quantity_and_no_class_are_refused(tmp_path):
    names = [f"Ann {place}" for place in range(30)]
    columns = {"a": [*range(30)], "name": names, "day": [f"2024-02-{d % 28}" for d in range(1, 31)]}
    table = write_table(tmp_path / "t.csv", columns)
    said = refusal("fit", table, "--target", "name", "--model", "greedy-modal")
    assert said.startswith("Column 'name' has 30 classes in 30 rows, like row identifiers")
    said = refusal("fit", table, "--target", "day", "--model", "greedy-modal")
    assert said.startswith("Column 'day' contains dates, such as '2024-02-1': replace them by")


def test_a_target_with_a_decimal_comma_is_a_quantity(tmp_path):
    cells = [f"{place},{place % 4}" for place in range(12)]
    table = write_table(tmp_path / "t.csv", {"a": [*range(12)], "y": cells})
    result = run("fit", table, "--target", "y", "--model", "greedy-modal")
    assert "regression (guessed: numbers are quantities" in result.stdout
    assert "Column 'y' is read as numbers with a decimal comma: '0,0' is 0." in result.stderr


def test_every_command_has_json_and_every_model_a_name():
    for command in app.registered_commands:
        said = run(command.callback.__name__, "--help").stdout
        assert "--json" in said, command
    models = {
        name.removesuffix("Classifier").removesuffix("Regressor").removesuffix("Tree").lower()
        for name in bdtppl.__all__
        if name.endswith(("Classifier", "Regressor"))
    }
    assert {name.replace("-", "") for name in all_inferences()} == models


def test_a_column_says_how_often_rows_count(tmp_path):
    columns = {"a": [1, 2, 1, 2], "often": [3, 4, 0, 2], "y": list("uvvv")}
    table = write_table(tmp_path / "t.csv", columns)
    result = run("fit", table, "--target", "y", *EXACT, "--weight", "often", "--json")
    said = json.loads(result.stdout)
    assert (said["rows"], said["features"]) == (9, 1)
    columns["often"][1] = -0.5
    table = write_table(tmp_path / "t.csv", columns)
    said = refusal("fit", table, "--target", "y", "--weight", "often")
    assert said.startswith("Column 'often', line 3: -0.5 is not a weight")


def test_a_slip_among_numbers_is_noted(tmp_path):
    columns = {"a": ["1.5", "2-5", "3.5", "4.5"], "b": ["?", "1", "2", "null"], "y": list("uvuv")}
    table = write_table(tmp_path / "t.csv", columns)
    said = run("fit", table, "--target", "y", *EXACT).stderr
    assert (
        "Column 'a' is read as a category of 4 levels, though most cells are numbers: line 3 has "
        "'2-5'." in " ".join(said.split())
    )
    assert "Column 'b'" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    [
        "leaf-count:max_leaves=4",
        pytest.param("pinball:max_leaves=4", marks=pytest.mark.slow),
    ],
)
def test_priors_on_leaves_leave_all_behind(prior, trees, tmp_path):
    options = [*EXACT, "--bins", 4, "--prior", prior, "--report"]
    run("fit", trees, "--target", "height", *options, "--out", tmp_path / "out")
    assert {"model.bdtppl", "report.html", "tree.png"} <= {
        f.name for f in (tmp_path / "out").iterdir()
    }


def test_exit_statuses_are_documented():
    said = " ".join(run("--help").stdout.split())
    assert "Exit status: 0 done, 1 an unexpected failure, 2 an error that you can correct" in said


@pytest.mark.parametrize(
    ("words", "offered"),
    [("bdtppl pr", {"predict", "prior"}), ("bdtppl fit t.csv --model me", {"metropolis"})],
)
def test_the_shell_completes_commands_and_choices(monkeypatch, capsys, words, offered):
    monkeypatch.setenv("_BDTPPL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        app(prog_name="bdtppl")
    assert ended.value.code == 0
    assert set(capsys.readouterr().out.split()) == offered


def test_workers_are_asked_for_by_one_option(flowers):
    fit = ("fit", flowers, "--target", "species")
    assert refusal(*fit, "--n-jobs", "0").startswith("n_jobs must be None or an integer other")
    both = refusal(*fit, "--n-jobs", "2", "--dask", "tcp://127.0.0.1:9")
    assert both == "--n-jobs and --dask exclude each other; pass one."


def test_ordered_levels_are_named_on_the_command_line(tmp_path):
    table = tmp_path / "t.csv"
    rows = [f"{'SML'[n % 3]},{n % 7},{9.0 * (n % 3 == 2) + n % 5 / 9}" for n in range(60)]
    table.write_text("\n".join(["size,z,y", *rows]))
    result = run("fit", table, "--target", "y", *EXACT, "--ordered", "size=S,M,L", "--json")
    assert json.loads(result.stdout)["map_rules"].startswith("size < L: ")
    assert "must read as size=S,M,L" in refusal("fit", table, "--target", "y", "--ordered", "size")
    assert "'w', which is no column" in refusal("fit", table, "--target", "y", "--ordered", "w=S,M")
