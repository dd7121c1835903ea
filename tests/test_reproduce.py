"""The papers' experiments: tasks are kept, and the page of results is that of the kept numbers."""

import json

import numpy as np
import pytest

from bdtppl import ExactTreeClassifier, MetropolisTreeClassifier
from bdtppl.models.priors import DepthDecay
from bdtppl.presets import plain_chains
from benchmarks.gflownet.models import inference
from benchmarks.markov_chains import fit_chains
from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce import catalogue, running
from benchmarks.reproduce.catalogue import EXPERIMENTS
from benchmarks.reproduce.error_against_exact import _total_variation
from benchmarks.reproduce.experiments import (
    Cell,
    Experiment,
    Printed,
    Table,
    Task,
    key_of,
    summed_up,
)
from benchmarks.reproduce.figures import draw_figures
from benchmarks.reproduce.overview import mean_ranks
from benchmarks.reproduce.rendering import agreement, render, table_lines
from benchmarks.reproduce.results import FOLDER, PAGES, environment, read_results, write_results
from benchmarks.reproduce.running import run_experiments
from benchmarks.soft.rivals import _rival

CALLS: list[int] = []
TABLE = Table(
    "Table 1",
    "Table 1: numbers",
    ("a", "b"),
    ("mean",),
    {("a", "mean"): Printed(1.5, 0.1), ("b", "mean"): Printed(9.0)},
    quoted=("b",),
)


def _number(number: int) -> dict[str, float]:
    CALLS.append(number)
    return {key_of("Table 1", "a", "mean"): number}


def _once() -> dict[str, float]:
    return {key_of("Table 1", "b", "mean"): 1.0}


def _missing() -> dict[str, float]:
    raise ImportError("no such package")


def _experiment(**options) -> Experiment:
    tasks = [Task(f"task {i}", _number, (i,), is_quick=i == 1) for i in (1, 2)]
    return Experiment(
        "numbers",
        "A paper",
        "As it is.",
        lambda: [*tasks, Task("peer", _missing)],
        [TABLE],
        seconds=1.0,
        **options,
    )


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_the_pages_of_results_are_those_of_the_kept_numbers():
    for name, text in command.rendered(FOLDER).items():
        assert text == (PAGES / name).read_text(encoding="utf-8")


def test_a_system_that_ran_on_few_tables_has_no_mean_rank():
    ranks = np.array([[1.0, 2.0, 1.0], [2.0, 1.0, np.nan], [np.nan, np.nan, 2.0]])
    np.testing.assert_allclose(mean_ranks(ranks), [1.5, 1.5, np.nan])  # without the third table


def test_names_of_experiments_and_of_their_cells_are_their_own():
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    for experiment in EXPERIMENTS:
        cells = {
            key_of(table.name, row, column)
            for table in experiment.tables
            for row in table.rows
            for column in table.columns
        } | set(experiment.curves)
        for task in read_results(FOLDER, experiment.name)["tasks"].values():
            assert set(task["values"]) <= cells
        for table in experiment.tables:
            assert {key_of(table.name, *place) for place in table.printed} <= cells
            assert set(table.quoted) <= set(table.rows)
        for start in experiment.reasons:
            assert any(cell.startswith(start) for cell in cells)


def test_tasks_are_kept_and_not_run_again(tmp_path, capsys):
    experiment = _experiment()
    run_experiments([experiment], tmp_path, quick=True, jobs=1, seconds=np.inf)
    assert CALLS == [1]
    run_experiments([experiment], tmp_path, quick=False, jobs=1, seconds=np.inf)
    assert CALLS == [1, 2]
    kept = read_results(tmp_path, "numbers")
    assert set(kept["tasks"]) == {"task 1", "task 2"}
    assert "no such package" in capsys.readouterr().err
    run_experiments([experiment], tmp_path, quick=False, jobs=1, seconds=0.0)
    cell = summed_up(kept["tasks"])[key_of("Table 1", "a", "mean")]
    assert cell == Cell(1.5, 0.5, 2)
    page = render([experiment], tmp_path)
    assert "| a | 1.500 ± 0.500 [1.5] |" in page
    assert "| b (quoted) | [9] |" in page
    assert "We compare 1 printed numbers with ours: 1 agree within" in page


def test_an_experiment_without_its_data_is_left_out(tmp_path, capsys):
    def tasks():
        raise FileNotFoundError("get it there")

    experiment = Experiment("one", "A paper", "", tasks, [TABLE], seconds=1.0)
    run_experiments([experiment], tmp_path, quick=False, jobs=1, seconds=np.inf)
    assert "get it there" in capsys.readouterr().err
    assert "has not been run" in render([experiment], tmp_path)


@pytest.mark.parametrize(
    ("cell", "printed", "agrees"),
    [
        (Cell(1.0, 0.1, 5), Printed(1.1), True),
        (Cell(1.0, 0.1, 5), Printed(1.3), False),
        (Cell(1.0, 0.1, 5), Printed(1.3, 0.2), True),
        (Cell(0.8749, np.nan, 1), Printed(0.875), True),  # as the paper rounds
        (Cell(0.88, np.nan, 1), Printed(0.875), False),
        (Cell(0.042, np.nan, 1), Printed(0.04), False),  # printed as .040
        (Cell(0.042, np.nan, 1), Printed(0.04, digits=2), True),
        (Cell(-347.02, np.nan, 1), Printed(-347.0, digits=0), True),
        (Cell(1.0, 0.1, 5), Printed(1.4, 0.6, 4), True),  # errors .1 and .3
        (Cell(1.0, 0.1, 5), Printed(1.4, 0.6, 100), False),  # errors .1 and .06
        (Cell(1.0, np.nan, 1), Printed(1.4, 0.3, 100), True),  # one run is as uncertain as theirs
    ],
)
def test_numbers_agree_within_two_standard_errors(cell, printed, agrees):
    table = Table("T", "T", ("a",), ("b",), {("a", "b"): printed})
    assert agreement(table, {"T | a | b": cell}) == {"T | a | b": agrees}
    assert agreement(Table("T", "T", ("a",), ("b",), table.printed, is_compared=False), {}) == {}


def test_what_differs_has_its_reason(tmp_path):
    reasons = {"Table 1": "Other folds.", "Table 1 | a": "Other rows."}
    table = Table("Table 1", "T", ("a",), ("mean",), {("a", "mean"): Printed(9.0)})
    experiment = _experiment(reasons=reasons)
    experiment = Experiment(**(vars(experiment) | {"tables": [table]}))
    run_experiments([experiment], tmp_path, quick=True, jobs=1, seconds=np.inf)
    page = render([experiment], tmp_path)
    assert "- a, mean: Other rows." in page
    assert "0 of these have no explanation" in page
    assert list(table_lines(table, {}))[2:] == ["| a | [9] |"]


def test_rows_of_fewer_runs_are_named(tmp_path):
    tasks = [*(Task(f"task {i}", _number, (i,)) for i in (1, 2)), Task("other row", _once)]
    experiment = Experiment(**(vars(_experiment()) | {"tasks": lambda: tasks}))
    run_experiments([experiment], tmp_path, quick=False, jobs=1, seconds=np.inf)
    assert "- Means of fewer runs than other rows: b (1 of 2)." in render([experiment], tmp_path)


def test_each_task_keeps_on_what_it_ran(tmp_path):
    experiment = _experiment()
    run_experiments([experiment], tmp_path, quick=False, jobs=1, seconds=np.inf)
    tasks = read_results(tmp_path, "numbers")["tasks"]
    assert tasks["task 1"]["environment"] == tasks["task 2"]["environment"] == environment()
    tasks["task 2"]["environment"] = {"machine": "Plan 9, vax, 1 cores", "jax": "0.1"}
    write_results(tmp_path, experiment, tasks)
    assert read_results(tmp_path, "numbers")["tasks"] == tasks
    assert "; on Plan 9, vax, 1 cores, with jax 0.1: task 2.)" in render([experiment], tmp_path)


def test_expected_seconds_are_those_of_other_seeds(tmp_path, monkeypatch):
    experiment = _experiment()
    monkeypatch.setattr(running, "FOLDER", tmp_path)
    kept = {
        f"{name}, seed {seed}": {"values": {}, "cpu_seconds": seconds, "environment": environment()}
        for name, seed, seconds in (("a", 1, 10.0), ("a", 2, 30.0), ("T = 2", 1, 5.0))
    }
    write_results(tmp_path, experiment, kept)
    tasks = [Task(f"{name}, seed 7", _once) for name in ("a", "T = 2", "T = 20")]
    assert running._expected(tasks, experiment) == 20.0 + 5.0 + experiment.seconds


def test_check_runs_the_quickest_task_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "EXPERIMENTS", (_experiment(),))
    run_experiments(command.EXPERIMENTS, tmp_path, quick=False, jobs=1, seconds=np.inf)
    assert command.main(["--check", "--out", str(tmp_path)]) == 0
    assert "the same" in capsys.readouterr().out
    path = tmp_path / "numbers.json"
    results = json.loads(path.read_text())
    for task in results["tasks"].values():
        task["values"] = {key: value + 1 for key, value in task["values"].items()}
    path.write_text(json.dumps(results))
    assert command.main(["--check", "--out", str(tmp_path)]) == 1
    with pytest.raises(SystemExit):
        command.main(["no such paper"])


def test_total_variation_is_that_of_all_trees():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (30, 2)).astype(float)
    model = ExactTreeClassifier(prior=DepthDecay(), method="chart", bins=None, random_state=0)
    model.fit(X, X[:, 0] > 0)
    ranked = model.posterior_.ranked.by_rows(X)
    listed = model.k_best(100_000)
    assert listed.probability.sum() == pytest.approx(1, abs=1e-6)
    shares = dict(zip(np.round(ranked.log_joint, 9), ranked.probability, strict=True))
    if len(shares) == len(ranked):  # all log joints differ
        wanted = sum(
            abs(p - shares.get(key, 0.0))
            for key, p in zip(np.round(listed.log_joint, 9), listed.probability, strict=True)
        )
        assert _total_variation(ranked, model.log_partition_) == pytest.approx(wanted / 2, abs=1e-4)


@pytest.mark.slow
def test_chains_of_papers_walk_alone_over_all_cuts_and_no_longer_than_asked():
    X, y = np.arange(60.0)[:, None], np.arange(60) % 7 % 2
    model = fit_chains(X, y, chains=2, warmup=0, draws=20, thin=10, random_state=0)
    assert model.powers_.tolist() == [1.0]
    assert model.trajectory_steps_[-1] == 200
    assert model.design_.num_codes.tolist() == [60]
    plain, default = plain_chains(), MetropolisTreeClassifier().get_params()
    assert all(default[name] != value for name, value in plain.items())
    rivals = _rival("CGM", "wu", 0), _rival("WU", "iris", 0)
    for chains in (*rivals, inference("MCMC", X, np.arange(2), max_depth=4)):
        given = chains.get_params()
        assert {name: given[name] for name in plain} == plain


@pytest.mark.slow
def test_figures_are_drawn_of_what_there_is(tmp_path):
    assert draw_figures(tmp_path, tmp_path / "images") == []
    for path in draw_figures(FOLDER, tmp_path / "images"):
        assert path.read_text(encoding="utf-8").startswith("<?xml")
    assert catalogue.EXPERIMENTS is EXPERIMENTS
