"""The benchmarks run, and their peer agrees with the exact posterior; no time is tested."""

from types import SimpleNamespace

import numpy as np
import pytest
from joblib import parallel_config

from bdtppl import ExactTreeClassifier
from bdtppl.datasets import make_hidden_xor, make_wu
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import LeafPenalty
from bdtppl.models.soft.topology import Topology
from benchmarks import amortised, exact, greedy_modal, metropolis
from benchmarks.gflownet import agreement, training
from benchmarks.gflownet.models import SCORINGS, scorings
from benchmarks.gflownet.problems import divided, hidden_xor
from benchmarks.pcfg import problems
from benchmarks.pcfg.numpy_recursion import numpy_recursion
from benchmarks.pcfg.tables import score_fold
from benchmarks.processes import in_jobs
from benchmarks.reproduce import (
    dcc_tree_figures,
    defaults,
    dt_gfn,
    dt_gfn_figures,
    dt_gfn_published,
    peers,
)
from benchmarks.reproduce.experiments import key_of
from benchmarks.soft import dismissals, rivals, samplers, scores, sets, sharpness

_ONE = sets.Runs(seeds=(0,), iterations=1, initial_trees=20)


@pytest.mark.parametrize("seed", range(5))
def test_numpy_recursion_agrees_with_the_chart(seed):
    rng = np.random.default_rng(seed)
    codes, y = rng.integers(0, 4, (70, 3)), rng.integers(0, 3, 70)
    grammar = compile_grammar(Design.from_matrix(codes.astype(float)))
    found = numpy_recursion(codes, y, log_phi=1.5, concentration=0.7)
    ours = ExactPosterior(
        grammar, LeafPenalty(1.5), DirichletCategorical.symmetric(3, 0.7), y
    ).log_evidence
    assert found.log_evidence == pytest.approx(ours, abs=1e-9)
    assert found.num_subproblems == grammar.num_subproblems
    assert found.num_rules == grammar.num_productions
    assert found.num_partitions == grammar.is_first_of_partition.sum()


@pytest.mark.slow
def test_command_line_prints_times(monkeypatch, capsys):
    matrix, y = make_hidden_xor(60, 4, 2, random_state=0)
    tiny = problems.Problem("tiny", matrix.astype(float), y, None)
    monkeypatch.setattr(problems, "problem", lambda name, **_: tiny)
    exact.main(["--sets", "iris", "--repeats", "1", "--draws", "10"])
    printed = capsys.readouterr().out
    for heading in ("From arrays to evidence", "DepthDecay", "a second"):
        assert heading in printed
    (agreement,) = (line for line in printed.splitlines() if "<= 1e-09" in line)
    assert agreement.endswith(": met")


@pytest.mark.slow
def test_models_of_the_exact_tables_are_scored():
    matrix, y = make_hidden_xor(100, 4, 2, random_state=0)
    scores = score_fold(problems.Problem("tiny", matrix.astype(float), y, None), "quantile", 0, 0)
    assert set(scores) == {"MAP tree", "posterior", "CART", "forest"}
    assert all(0 <= score.accuracy <= 1 < score.nodes for score in scores.values())


def test_missing_set_is_named_with_its_source(monkeypatch, capsys):
    monkeypatch.delenv("BDTPPL_DATA", raising=False)
    found = problems.available_problems(["iris", "haberman"])
    assert [problem.name for problem in found] == ["iris"]
    assert "doi:10.24432/C5XK51" in capsys.readouterr().out


@pytest.mark.slow
def test_greedy_benchmark_prints_its_bound(capsys):
    greedy_modal.main(["--rows", "200", "--repeats", "1"])
    printed = capsys.readouterr().out
    assert "warm/CART" in printed
    assert "<= 0.15, 3 GB" in printed


@pytest.mark.slow
def test_metropolis_benchmark_measures_steps():
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 4, (40, 2)).astype(float)
    speed = metropolis.measure(matrix, (matrix[:, 0] > 1).astype(int), Regrow(), 4, 4, 2)
    assert speed.steps > 0
    assert 0 < speed.acceptance < 1
    assert speed.effective > 0


@pytest.mark.slow
def test_amortised_benchmark_compares_policies(monkeypatch, capsys):
    some = dict(list(agreement._POLICIES.items())[-2:])
    monkeypatch.setattr(agreement, "_POLICIES", some)
    amortised.main(["policies", "--seeds", "1", "--depth", "2", "--steps", "20"])
    rows = [line for line in capsys.readouterr().out.splitlines() if "pooled" in line]
    assert len(rows) == 2
    assert all(0 < float(row.split()[-1]) <= 1 for row in rows)


@pytest.mark.slow
def test_amortised_trees_are_timed_and_scored_by_their_seconds_of_training():
    data = divided("iris", 1)
    assert min(training.step_and_draw(data, 2, 10, repeats=2)) > 0
    found = training.accuracy_by_budget(data, 1, (10,), (0.0, 1.0))
    assert set(found) == {(0.0, 10), (1.0, 10)}
    assert all(0 <= accuracy <= 1 for accuracy in found.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In .*% of the runs:sklearn.exceptions.ConvergenceWarning")
def test_tasks_of_amortised_trees_fill_cells_of_their_tables():
    """The same cells as the tables name, without a policy's training."""
    for function, arguments, tables in (
        (dt_gfn._inferred, ("iris", 1, "SMC", 4), dt_gfn.TABLES_1_2.tables),
        (dt_gfn._packaged, ("iris", 1, "random forest"), dt_gfn.TABLES_1_2.tables),
        (dt_gfn._inferred_10, ("iris", 1, "SMC", 4), dt_gfn.TABLE_10.tables),
        (dt_gfn_figures._hidden_bits, ("real", 2, 1, "SMC"), dt_gfn_figures.FIGURES.tables),
    ):
        known = {
            key_of(each.name, row, column)
            for each in tables
            for row in each.rows
            for column in each.columns
        }
        found = function(*arguments)
        assert set(found) <= known
        assert all(np.isfinite(value) for value in found.values())


@pytest.mark.slow
def test_other_scorings_of_a_tree_keep_their_order():
    """Leaves of the test rows' labels cannot do worse on these, nor the best choice of all."""
    data = divided("iris", 1)
    model = ExactTreeClassifier(
        leaf=DirichletCategorical.symmetric(3, 0.1), bins=4, max_depth=2, random_state=0
    ).fit(data.X, data.y)
    found = scorings(model, data)
    assert set(found) == set(SCORINGS)
    for chosen in ("most probable", "best in training"):
        assert found[f"{chosen}, test leaves"] >= found[f"{chosen}, training leaves"]
        assert found["best on test rows, training leaves"] >= found[f"{chosen}, training leaves"]
    # A twin: trained on labels that are permuted, trees are right by test leaves alone.
    shuffled = data._replace(y=np.random.default_rng(0).permutation(data.y))
    twin = scorings(model.fit(shuffled.X, shuffled.y), shuffled)
    assert twin["most probable, training leaves"] < 0.6 < found["most probable, training leaves"]


def test_printed_figures_of_amortised_trees_have_places():
    for experiment in (*dt_gfn.DT_GFN_TABLES, dt_gfn_figures.TABLE_7):
        for each in experiment.tables:
            assert all(row in each.rows and column in each.columns for row, column in each.printed)
            assert set(each.quoted) <= {row for row, _ in each.printed}
    printed = dt_gfn.TABLES_1_2.tables[0].printed["DT-GFN, 5 levels", "raisin nodes"]
    assert printed.value == 27
    assert printed.error == pytest.approx(2.83 / 5**0.5)


def test_amortised_divisions_have_the_papers_sizes():
    """Rows to train on and to be judged by, as in its Table 8."""
    for name, train, test in (("iris", 120, 30), ("wine", 142, 36), ("breast cancer", 455, 114)):
        data = divided(name, 1)
        assert (len(data.y), len(data.y_test)) == (train, test)
    data = hidden_xor(3, "real", 0, (50, 20))
    assert data.X.shape == (50, 5)
    np.testing.assert_array_equal(data.y, (data.X[:, 0] != data.X[:, 1]).astype(int))


@pytest.fixture
def small_wu(monkeypatch):
    """WU with few rows and short runs, in the benchmarks of soft trees."""
    data = sets.Split(*make_wu(60, random_state=0)[:2], *make_wu(30, random_state=1)[:2])
    for module in (dcc_tree_figures, rivals, scores, sets, sharpness):
        monkeypatch.setattr(module, "split", lambda name: data)
    monkeypatch.setitem(sets.SETTINGS, "wu", sets.Setting(0.3, 0.1, 60))
    monkeypatch.setattr(samplers, "_DRAWS", 60)
    monkeypatch.setattr(samplers, "_WARMUP", 60)


@pytest.mark.slow
def test_soft_benchmark_compares_samplers(small_wu, monkeypatch, capsys):
    monkeypatch.setattr(samplers, "_TOPOLOGIES", ("10100",))
    samplers.print_samplers("wu", _ONE)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.lstrip().startswith("1")]
    (code, *rates), *stages = rows
    assert code == "10100"
    assert all(float(rate) > 0 for rate in rates)
    assert [row[1] for row in stages] == ["lanes", "blackjax"]


@pytest.mark.slow
def test_soft_benchmark_counts_dismissals(small_wu, capsys):
    dismissals.print_dismissals("wu", _ONE)
    assert "of them should not have been" in capsys.readouterr().out


@pytest.fixture
def short_jumps(monkeypatch):
    """Soft trees whose topology jumps, a few times."""
    for name, value in (("warmup", 60), ("burn_in", 10), ("draws", 30)):
        monkeypatch.setitem(rivals._OF_JUMPS, name, value)


@pytest.mark.slow
def test_figures_of_soft_trees_have_densities_and_the_true_splits(
    small_wu, short_jumps, monkeypatch
):
    monkeypatch.setattr(dcc_tree_figures, "length_of", lambda name, is_short: (2, 60))
    values = dcc_tree_figures._figures("wu", 0)
    for table in dcc_tree_figures.DCC_TREE_FIGURES.tables:
        of_it = [key.split(" | ") for key in values if key.startswith(f"{table.name} | ")]
        assert of_it
        assert all(row in table.rows and column in table.columns for _, row, column in of_it)
    grid = dcc_tree_figures.GRID["wu"]
    for place in dcc_tree_figures.PLACES["wu"]:
        for sampler in dcc_tree_figures.SAMPLERS:
            row = f"{place}, {sampler}"
            low, middle, high, apart = (
                values[key_of("Figure 2", row, column)]
                for column in ("5%", "50%", "95%", "from DCC-Tree")
            )
            assert low < middle < high
            assert (apart == 0) if sampler == "DCC-Tree" else (0 < apart <= 1)
            density = np.array(values[dcc_tree_figures.curve_of(place, sampler)])
            inside = (low <= grid) & (grid <= high)
            assert np.trapezoid(density[inside], grid[inside]) == pytest.approx(0.9, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["CGM", "HMC-DF"])
def test_soft_benchmark_scores_other_samplers(row, small_wu, short_jumps, monkeypatch):
    monkeypatch.setitem(rivals._LENGTH, "warmup", 200)
    found = rivals.score_rival("wu", row, 0)
    assert 0 < found.of_mean <= found.test  # squared errors are convex
    assert found.train > 0
    assert (found.per_proposal is None) == (row == "CGM")


@pytest.mark.slow
def test_soft_benchmark_chooses_sharpness(small_wu, monkeypatch, capsys):
    monkeypatch.setattr(sharpness, "_CHOICES", (0.1, 100.0))
    sharpness.print_sharpness("wu", _ONE)
    chosen = capsys.readouterr().out.split("chosen: ")[1]
    assert chosen.startswith("0.1;")  # splits as soft as 100 nearly predict a constant


@pytest.mark.slow
def test_soft_benchmark_scores_a_run(small_wu):
    found = scores.score("wu", 0, _ONE)
    assert min(found.train, found.test, found.hard, found.by_draw) > 0
    assert found.balanced is None
    assert found.topologies[0].probability == max(each.probability for each in found.topologies)


def test_jobs_find_what_one_process_finds():
    tasks = [(10, 3), (7, 2)]
    with parallel_config("threading"):
        assert in_jobs(divmod, tasks, 2) == in_jobs(divmod, tasks, 1) == [(3, 1), (3, 1)]


def test_published_code_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.delenv("DT_GFN_CODE", raising=False)
    with pytest.raises(FileNotFoundError, match="clone GFNOrg/dt-gfn"):
        dt_gfn_published.DT_GFN_PUBLISHED.tasks()


def test_published_code_reads_the_rows_of_a_division(tmp_path):
    data = divided("iris", 1)
    dt_gfn_published._written(data, tmp_path / "data.csv")
    header, *lines = (tmp_path / "data.csv").read_text().splitlines()
    assert header == "0,1,2,3,class,Split"
    cells = [line.split(",") for line in lines]
    for part, X, y in (("train", data.X, data.y), ("test", data.X_test, data.y_test)):
        rows = np.array([row[:-1] for row in cells if row[-1] == part], float)
        np.testing.assert_array_equal(rows, np.column_stack([X, y]))


def test_crps_of_few_draws_has_no_bias():
    """Ten normal draws; the mean of 20,000 has an error of .002, a false alarm in 10^-6."""
    draws = np.random.default_rng(0).normal(size=(10, 20_000))
    exact = (np.sqrt(2) - 1) / np.sqrt(np.pi)  # Gneiting and Raftery 2007, equation 5, at 0
    found = defaults._crps(draws, np.zeros(20_000))
    assert found == pytest.approx(exact, abs=0.01)
    # A twin: where draws are repeated, as many seem to be known, and the score is too large.
    twin = defaults._crps(np.repeat(draws, 10, axis=0), np.zeros(20_000))
    assert twin > exact + 0.04


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    shares = np.tile([0.8, 0.2], (1000, 1))
    labels = (np.arange(1000) % 5 == 0).astype(int)  # right in four rows of five
    assert defaults._calibration_error(shares, labels) == pytest.approx(0.0, abs=1e-12)
    labels = (np.arange(1000) % 2).astype(int)
    assert defaults._calibration_error(shares, labels) == pytest.approx(0.3)


def test_sums_of_peers_are_asked_for_no_draw_twice():
    class Few(peers._SumOfTrees):
        def _sample(self, X, y):
            pass

        def _predict(self, X):
            return np.arange(7.0)[:, None] + np.zeros((7, len(X)))

    model = Few(False).fit(np.zeros((3, 1)), np.zeros(3))
    assert model.sample_predictive(np.zeros((2, 1)), 1000)[:, 0].tolist() == [*range(7)]
    assert len(model.sample_predictive(np.zeros((2, 1)), 4)) == 4


def test_cuts_of_soft_splits_are_in_units_of_their_feature():
    """A cut of .25 on a feature that runs from 10 to 14 lies at 11."""
    direction = np.zeros((1, 4, 2, 3))
    direction[..., 0, 2] = direction[..., 1, 0] = 1.0
    threshold = np.full((1, 4, 2), 0.25)
    posterior = SimpleNamespace(
        topologies=(Topology("10100"), Topology("11000")),
        probability=np.array([0.9, 0.1]),
        topology=np.zeros((1, 4), int),  # no draw of the second
        trees=SimpleNamespace(direction=direction, threshold=threshold),
        scaling=np.array([[0.0, 0.0, 10.0], [2.0, 1.0, 4.0]]),
    )
    found = dcc_tree_figures._figures_3_4("wu", posterior)
    row = "wu, 10100, split 1"
    assert found[key_of("Figures 3 and 4", row, "feature")] == 3
    assert found[key_of("Figures 3 and 4", row, "cut")] == 11.0
    assert found[key_of("Figures 3 and 4", "wu, 10100, split 2", "cut")] == 0.5
    assert not any("11000" in key for key in found)


def test_weights_that_vanish_in_single_precision_are_zero():
    parts = [
        SimpleNamespace(probability=1.0, weight=np.array([1.0 - 1e-37, 1e-37])),
        SimpleNamespace(probability=1e-45, weight=np.array([0.5, 0.5])),
    ]
    assert scores._weighted(parts) == 0.5
