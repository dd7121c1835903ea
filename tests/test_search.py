"""The search holds the exact posterior in its intervals, and ends with it."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from exact_problems import FALSE_ALARM
from scipy.stats import binomtest, chi2
from sklearn.datasets import load_iris
from tiers import slow_but

import bdtppl
from bdtppl.inference.exact_cost import exact_of
from bdtppl.inference.pcfg.search import bounds as search_bounds
from bdtppl.inference.pcfg.search import search as search_module
from bdtppl.inference.pcfg.search.counting import hash_of
from bdtppl.inference.pcfg.search.search import TreeSearch
from bdtppl.models.arrays.bitsets import pack
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.leaves import DirichletCategorical, Leaf, NormalInverseGamma, PoissonGamma
from bdtppl.models.priors import (
    DepthDecay,
    DescriptionLength,
    GreedyPartition,
    LeafPenalty,
    NodePrior,
    Program,
)
from bdtppl.models.pytrees import pytree_dataclass

TIGHT = 1e-9
NUM_TABLES = 14
PRIORS = {
    "leaf penalty": LeafPenalty(1.3),
    "description length": DescriptionLength(2.0),
    "depth decay": DepthDecay(0.95, 1.0),
    "greedy partition": GreedyPartition(0.8),
}
FURTHER = {
    "leaf penalty by cuts": LeafPenalty(1.0, rules="cuts"),
    "all rules alike": DepthDecay(0.95, 0.5, over="rules"),
    "all cuts alike": DepthDecay(0.95, 0.5, over="rules", rules="cuts"),
    "cuts": DepthDecay(0.9, 1.0, rules="cuts"),
    "by gap": DepthDecay(0.9, 1.0, cut_weights="gap"),
    "splits for certain": DepthDecay(1.0, 1.0),
    "a program": Program(lambda node: node.num_rows / (node.num_rows + 9.0)),
    "a program of the box": Program(lambda node: 0.5 + 0.0 * node.least[..., 0]),
}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """Look at bounds often: few nodes at once, and few rules kept."""
    monkeypatch.setattr(search_module, "_FEWEST", 2)
    monkeypatch.setattr(search_module, "_KEPT", 2)


def table(number: int) -> TreeModel:
    """A small table: classes, numbers or counts, some with missing values and repeated rows."""
    rng = np.random.default_rng(number)
    rows, features = int(rng.integers(4, 22)), int(rng.integers(1, 4))
    X = rng.integers(0, rng.integers(2, 6), (rows, features)).astype(float)
    if number % 5 == 4:
        X[rng.random(X.shape) < 0.15] = np.nan
    weights = rng.integers(1, 4, rows) if number % 7 == 3 else None
    kind = number % 4
    if kind < 2:
        y, leaf = (
            rng.integers(0, 2, rows),
            DirichletCategorical.symmetric(2, rng.choice([0.5, 2.5])),
        )
    elif kind == 2:
        y, leaf = rng.integers(0, 3, rows), DirichletCategorical.symmetric(3)
    elif number % 8 == 3:
        y = rng.poisson(2, rows).astype(float)
        leaf = PoissonGamma.of_targets(y)
    else:
        y = rng.normal(size=rows)
        leaf = NormalInverseGamma.of_targets(y)
    limits = [
        Constraints(),
        Constraints(max_depth=2),
        Constraints(min_leaf=2),
        Constraints(features=[0]),
    ]
    return TreeModel(
        Design.from_matrix(X, weights=weights), y, LeafPenalty(2.0), leaf, limits[number // 4 % 4]
    )


def with_prior(model: TreeModel, prior) -> TreeModel:
    return TreeModel(model.design, model.y, prior, model.leaf, model.constraints)


def faults(model: TreeModel, goal: str) -> list[str]:
    """Say where a search is at odds with the chart, at any moment or at its end."""
    exact, found = exact_of(model, "chart"), []
    best = exact.k_best(1)

    first_high: dict[int, np.ndarray] = {}

    def see(search: TreeSearch) -> None:
        for node in range(len(first_high), search.graph.num_nodes):
            first_high[node] = search.graph.nodes.high[:, node].copy()
        truth = {"best": best.log_joint[0]}
        if goal == "sum":
            truth |= {name: getattr(exact, name) for name in ("log_partition", "log_evidence")}
        for name, value in truth.items():
            interval, slack = getattr(search, name), TIGHT * (1 + abs(value))
            if not interval.low - slack <= value <= interval.high + slack:
                found.append(f"{name} {value} outside {interval}")

    search = TreeSearch(model, goal).run(on_step=see)
    see(search)
    if not search.is_closed:
        found.append("not closed")
    # What a tree below a set is worth is at most what was said before its rules were known.
    said = np.array([first_high[node] for node in range(search.graph.num_nodes)]).T
    low = search.graph.nodes.low[:, : search.graph.num_nodes]
    if (low > said + TIGHT * (1 + abs(said))).any():
        found.append(f"a first bound is too low by {(low - said).max():.3g}")
    tree = search.best_tree()
    value = best.log_joint[0]
    if abs(log_joint(tree.trees, model).log_joint[0] - value) > TIGHT * (1 + abs(value)):
        found.append("the tree is not as good as the best one")
    ranked = exact.k_best(2).log_joint
    is_alone = len(ranked) < 2 or ranked[0] - ranked[1] > TIGHT
    names = list(model.design.names)
    if is_alone and tree.trees[0].rules(names) != best.trees[0].rules(names):
        found.append("another tree")
    return found


@pytest.mark.parametrize("number", slow_but([0], range(NUM_TABLES), few=5))
def test_intervals_hold_the_exact_values_and_close_on_them(number):
    """At every moment, for best trees and for sums, and the best tree is the chart's."""
    for name, prior in PRIORS.items():
        model = with_prior(table(number), prior)
        for goal in ("best", "sum"):
            assert faults(model, goal) == [], (name, goal)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("all rules alike",), FURTHER, few=3))
def test_any_prior_that_weighs_nodes_is_searched(name):
    for number in (0, 6, 9, 12):
        model = with_prior(table(number), FURTHER[name])
        for goal in ("best", "sum"):
            assert faults(model, goal) == [], (number, goal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    [
        Constraints(keep_together=[KeepTogether({"x0": (1, 2)})]),
        Constraints(features_at_depth={0: ("x1",)}),
        Constraints(before=(("x0", "x1"),), max_depth=3),
        Constraints(refused=(("x0", 0.5),), min_leaf=2),
    ],
    ids=["boxes", "depths", "order", "refused"],
)
def test_constraints_on_paths_and_cuts_are_kept(limits):
    rng = np.random.default_rng(3)
    X, y = rng.integers(0, 4, (25, 2)).astype(float), rng.integers(0, 2, 25)
    prior = DepthDecay(0.95, 0.5, rules="cuts")
    model = TreeModel(Design.from_matrix(X), y, prior, DirichletCategorical.symmetric(2), limits)
    for goal in ("best", "sum"):
        assert faults(model, goal) == []


def _tight(name: str, change: float):
    """Make a table of bounds lower than it is."""

    def tables(*arguments):
        made = search_bounds.weight_tables(*arguments)
        return made._replace(**{name: getattr(made, name) + change})

    return {"weight_tables": tables}


def _tight_scores(statistics, each, total):
    scores = search_bounds.score_counts(statistics, each, total)
    scores[2] -= 1.0
    return scores


@pytest.mark.parametrize(
    ("change", "prior", "goal"),
    [
        (_tight("rule_most", -5.0), "depth decay", "best"),
        (_tight("below", -5.0), "depth decay", "best"),
        (_tight("log_least", 2.0), "all rules alike", "best"),
        (_tight("split_most", -3.0), "depth decay", "sum"),
        (_tight("mass", -3.0), "leaf penalty", "sum"),
        ({"score_counts": _tight_scores}, "leaf penalty", "best"),
    ],
    ids=["a rule", "what is below", "fewest rules", "all rules", "mass of trees", "leaves"],
)
def test_bounds_that_are_too_tight_are_found_out(monkeypatch, change, prior, goal):
    """Twin of the tests above: with a wrong bound an interval misses the exact value."""
    for name, value in change.items():
        monkeypatch.setattr(search_module, name, value)
    models = [with_prior(_separable(), (PRIORS | FURTHER)[prior])]
    if prior == "all rules alike":  # rules are told apart where every feature has one cut
        models = [_binary(seed, 14, 3) for seed in range(12)]
    assert any(faults(model, goal) for model in models)


def _separable() -> TreeModel:
    """A table of which the best tree has pure leaves, of two cells each, so that bounds are met."""
    X = np.repeat(np.arange(6.0), 8)[:, None]
    y = ((X[:, 0] >= 2) & (X[:, 0] < 4)).astype(int)
    return TreeModel(Design.from_matrix(X), y, LeafPenalty(1.3), DirichletCategorical.symmetric(2))


def _binary(seed: int, rows: int = 40, features: int = 5) -> TreeModel:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (rows, features)).astype(float)
    y = (X[:, 0] != X[:, 1]) ^ (rng.random(rows) < 0.2)
    leaf = DirichletCategorical.symmetric(2, 2.5)
    return TreeModel(Design.from_matrix(X), y.astype(int), FURTHER["all rules alike"], leaf)


def test_a_mixed_set_of_three_cells_is_charged_for_two_splits_alone():
    """The bound is met where the second split ends in single cells, which stop for certain."""
    model = _binary(0)
    tables, low, high = TreeSearch(model).tables, np.empty(1), np.empty(1)
    search_bounds.bound_set(1, 3, 2, True, -9.0, -8.0, -0.5, tables, low, high)
    log_p = np.log(0.95) - 0.5 * np.log(np.array([2.0, 3.0]))
    worth = log_p[0] - np.log(2) + log_p[1] - tables.log_least - 0.5
    assert high[0] == pytest.approx(worth, abs=TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_two_splits_that_peel_single_cells_off_are_not_charged_for_more(rows):
    """Below the first split lie three cells that no one rule parts by class, and that take two."""
    cells = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1], [1, 0, 1]], float)
    X, y = np.repeat(cells, rows, axis=0), np.repeat([0, 1, 0, 1, 1, 1], rows)
    leaf = DirichletCategorical.symmetric(2, 2.5)
    for prior in (FURTHER["all rules alike"], DepthDecay(0.6, 1.0), DepthDecay(0.95, 0.5)):
        for goal in ("best", "sum"):
            assert faults(TreeModel(Design.from_matrix(X), y, prior, leaf), goal) == []


@pytest.mark.parametrize("seed", range(6))
def test_binary_tables_with_cells_of_both_classes(seed):
    for goal in ("best", "sum"):
        assert faults(_binary(seed), goal) == []


@functools.cache
def _wide() -> TreeModel:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(150, 6))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    return TreeModel(
        Design.from_matrix(X, bins=8), y, DepthDecay(0.95, 0.5), DirichletCategorical.symmetric(2)
    )


@pytest.mark.parametrize("goal", ["best", "sum"])
def test_intervals_narrow_from_step_to_step(goal):
    seen = []
    search = TreeSearch(_wide(), goal).run(
        num_expansions=400, on_step=lambda s: seen.append((s.best, s.num_expansions))
    )
    lows, highs = (np.array([getattr(each, end) for each, _ in seen]) for end in ("low", "high"))
    assert (np.diff(lows) >= 0).all()
    assert (np.diff(highs) <= 0).all()
    assert not search.is_closed
    assert len(seen) > 10
    tree = search.best_tree()
    assert log_joint(tree.trees, _wide()).log_joint[0] == pytest.approx(search.best.low, abs=TIGHT)
    before = search.best
    search.run(num_expansions=800)  # goes on
    assert search.num_expansions >= 800
    assert search.best.gap <= before.gap


def test_draws_follow_the_law_of_the_trees_that_are_written_down():
    """Chi-square of the 20 most probable trees and the rest; false alarm 1e-4."""
    model = with_prior(table(0), PRIORS["depth decay"])
    search = TreeSearch(model, "sum").run()
    assert 0 <= search.total_variation < 1e-9
    drawn = search.sample(np.random.default_rng(0), chains=4, draws=1000)
    np.testing.assert_array_equal(drawn.statistics[:, :, 0].sum(-1), model.design.weights.sum())
    scored = log_joint(drawn.trees, model)
    for name in ("log_joint", "log_likelihood"):
        np.testing.assert_allclose(drawn.sample_stats[name], getattr(scored, name), atol=TIGHT)
    log_joints = np.round(scored.log_joint.ravel(), 9)
    ranked = exact_of(model, "chart").k_best(20)
    values = np.unique(np.round(ranked.log_joint, 9))
    shares = np.array(
        [ranked.probability[np.round(ranked.log_joint, 9) == v].sum() for v in values]
    )
    counts = np.array([(log_joints == v).sum() for v in values])
    # Trees of one log joint may be split between the list and the rest: leave the last value out.
    shares, counts = shares[1:], counts[1:]
    shares, counts = np.append(shares, 1 - shares.sum()), np.append(counts, 4000 - counts.sum())
    statistic = ((counts - 4000 * shares) ** 2 / (4000 * shares)).sum()
    assert statistic < chi2.isf(FALSE_ALARM, len(shares) - 1)
    twin = shares[::-1] / shares.sum()
    assert ((counts - 4000 * twin) ** 2 / (4000 * twin)).sum() > chi2.isf(1e-9, len(shares) - 1)


def test_draws_of_a_search_that_was_stopped_name_what_they_may_miss():
    search = TreeSearch(_wide(), "sum").run(num_expansions=300)
    assert 0 < search.total_variation <= 1
    drawn = search.sample(np.random.default_rng(1), chains=1, draws=50)
    assert np.isnan(drawn.log_evidence_se)
    leaves = np.where(drawn.trees.is_leaf, drawn.statistics.sum(-1), 0.0).sum(axis=-1)
    np.testing.assert_array_equal(leaves, 150)
    with pytest.raises(ValueError, match="goal='sum'"):
        TreeSearch(_wide()).sample(np.random.default_rng(0))


def test_limits_of_time_and_memory_stop_a_search():
    assert not TreeSearch(_wide()).run(seconds=1e-9).is_closed
    small = TreeSearch(_wide()).run(num_bytes=1e5)
    assert not small.is_closed
    assert small.graph.num_bytes < 1e6


@pytree_dataclass
class _Unbounded(NodePrior):
    """A prior of a user's own that does not say how much its rules weigh."""

    rules: str = "gaps"

    def log_stop(self, node):
        return 0.0 * node.depth

    def log_split(self, node, rule):
        return 0.0 * rule.feature - 1.0


@pytree_dataclass
class _Densities(Leaf):
    """A leaf family of a user's own for densities, without a bound."""

    def statistics(self, y, weight):
        return jnp.stack([weight, weight * y], axis=-1)

    def log_marginal(self, statistics):
        return -(statistics[..., 1] ** 2)

    def predictive(self, statistics):
        raise NotImplementedError


def test_what_cannot_be_bounded_is_refused():
    model = table(0)
    with pytest.raises(TypeError, match="_Unbounded has no method weight_bounds"):
        TreeSearch(with_prior(model, _Unbounded()))
    with pytest.raises(ValueError, match="rule weights of at most 1"):
        TreeSearch(with_prior(model, LeafPenalty(-1.0)))
    with pytest.raises(TypeError, match="_Densities has no method log_marginal_bound"):
        TreeSearch(TreeModel(model.design, model.y, model.prior, _Densities())).run()
    limits = Constraints(monotone={"x0": 1})
    model = TreeModel(model.design, model.y, model.prior, model.leaf, limits)
    with pytest.raises(ValueError, match="monotone"):
        TreeSearch(model)


def test_estimators_find_the_exact_map_tree():
    X, y = load_iris(return_X_y=True)
    prior = DepthDecay(0.95, 0.5)
    exact = bdtppl.ExactTreeClassifier(prior=prior, bins=5, method="chart").fit(X, y)
    model = bdtppl.MAPTreeClassifier(bins=5).fit(X, y)
    assert model.map_gap_ == 0.0
    assert model.map_log_joint_ == pytest.approx(exact.map_log_joint_, abs=TIGHT)
    assert model.rules() == exact.rules()
    assert "map_gap" in model.summary()
    posterior = model.posterior_
    scored = log_joint(posterior.trees, TreeModel(model.design_, posterior.y, prior, model.leaf_))
    for name in ("log_joint", "log_likelihood"):
        np.testing.assert_allclose(posterior.sample_stats[name], getattr(scored, name), atol=TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Classifier", pytest.param("Regressor", marks=pytest.mark.slow)])
def test_an_exact_estimator_answers_by_a_search_as_by_a_chart(task, tmp_path):
    rng = np.random.default_rng(3)
    X = rng.integers(0, 4, (60, 3)).astype(float)
    X[rng.random(X.shape) < 0.05] = np.nan
    y = X[:, 0] > 1 if task == "Classifier" else np.nan_to_num(X[:, 0]) + rng.normal(size=60)
    kind = getattr(bdtppl, f"ExactTree{task}")
    chart = kind(method="chart", bins=4, max_depth=3, random_state=0).fit(X, y)
    settings = {"bins": 4, "max_depth": 3, "leaf": chart.leaf_, "random_state": 0}
    model = kind(method="search", max_seconds=600, **settings).fit(X, y)
    assert (model.method_, model.draws_are, model.exact_) == ("search", "independent", None)
    assert model.log_evidence_bounds_ == (model.log_evidence_, model.log_evidence_)
    assert (model.map_gap_, model.total_variation_, model.log_evidence_se_) == (0.0, 0.0, 0.0)
    for name in ("log_evidence_", "log_partition_", "map_log_joint_", "map_probability_"):
        assert getattr(model, name) == pytest.approx(getattr(chart, name), abs=1e-8)
    assert not list(model.cautions())
    np.testing.assert_allclose(
        model.feature_importances_, chart.feature_importances_, atol=0.05
    )  # of 1,000 draws: 3 standard errors
    model.save(tmp_path)
    loaded = bdtppl.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.summary() == model.summary()
    assert loaded.rules() == model.rules()


@pytest.mark.slow
def test_an_exact_estimator_answers_with_bounds_where_the_chart_is_too_large(tmp_path):
    X, y = load_iris(return_X_y=True)
    settings = {"prior": DepthDecay(), "bins": 5, "random_state": 0}
    exact = bdtppl.ExactTreeClassifier(method="chart", **settings).fit(X, y)
    model = bdtppl.ExactTreeClassifier(max_subproblems=50, max_seconds=1e-6, **settings)
    with pytest.warns(UserWarning, match="The log evidence lies between"):
        model.fit(X, y)
    low, high = model.log_evidence_bounds_
    assert low == model.log_evidence_ < exact.log_evidence_ < high
    assert model.map_log_joint_ <= exact.map_log_joint_ <= model.map_log_joint_ + model.map_gap_
    assert 0 < model.total_variation_ <= 1
    attributes = model.to_arviz().posterior.attrs
    np.testing.assert_array_equal(attributes["log_evidence_bounds"], [low, high])
    assert attributes["map_gap"] == model.map_gap_
    assert f"between {low:.2f} and {high:.2f}" in str(model.summary())
    model.save(tmp_path)
    assert bdtppl.load(tmp_path).log_evidence_bounds_ == (low, high)
    counting = bdtppl.ExactTreeClassifier(prior=LeafCount(), max_subproblems=50, bins=None)
    with pytest.raises(ValueError, match="more than max_subproblems=50"):
        counting.fit(X, y)  # a prior that no search bounds
    with pytest.raises(ValueError, match="more than max_subproblems=50"):
        bdtppl.ExactTreeClassifier(method="chart", max_subproblems=50, **settings).fit(X, y)


@pytest.mark.slow
def test_a_stopped_estimator_says_how_much_better_another_tree_may_be():
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60.0) % 7
    with pytest.warns(UserWarning, match="another tree may have a log joint larger by up to"):
        model = bdtppl.MAPTreeRegressor(time_limit=0.01).fit(X, y)
    assert model.map_gap_ > 0
    assert list(model.cautions())


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_counts_of_rows_do_not_depend_on_how_cells_are_gone_through(rows):
    """Bit planes and cells one by one count the same: statistics that are no counts go by cells."""
    rng = np.random.default_rng(rows)
    X, y = rng.integers(0, 3, (rows, 3)).astype(float), rng.integers(0, 2, rows)
    weights = rng.integers(1, 200, rows)  # more bits than planes are made of
    model = TreeModel(
        Design.from_matrix(X, weights=weights),
        y,
        LeafPenalty(1.3),
        DirichletCategorical.symmetric(2),
    )
    assert faults(model, "sum") == []


# ------------------------------------------------ what a second reader has found: once wrong


def test_sets_that_differ_in_high_bits_of_neighbouring_words_have_other_hashes():
    """A product with a random odd number a word gives {63, 98, 127} and nothing one hash."""
    for seed in range(3):
        keys = TreeSearch._hash_keys(np.random.default_rng(seed), 3)
        seen = {}
        for cells in ([], [63, 98, 127], [62, 97, 126], [63], [127], [62, 98], [127, 162, 191]):
            bits = np.zeros((1, 192), bool)
            bits[0, cells] = True
            seen[tuple(cells)] = _hash(pack(bits)[0], keys)
        assert len(set(seen.values())) == len(seen)
        # The hash is linear: that of a set is the sum of those of its parts.
        assert _hash(pack(bits)[0], keys) != 0


@numba.njit
def _hash(members, keys):
    return hash_of(members, keys, np.uint64(0))


def test_a_table_of_129_cells_has_its_exact_sum():
    rng = np.random.default_rng(129)
    X = np.stack([np.arange(129), rng.integers(0, 2, 129)], axis=1).astype(float)
    leaf = DirichletCategorical.symmetric(2)
    model = TreeModel(
        Design.from_matrix(X),
        rng.integers(0, 2, 129),
        DepthDecay(0.95, 0.5),
        leaf,
        Constraints(max_depth=2),
    )
    found = TreeSearch(model, "sum").run()
    assert found.log_partition.low == pytest.approx(
        exact_of(model, "chart").log_partition, abs=1e-9
    )


@pytest.mark.parametrize("seed", [0, 4])
def test_a_column_of_one_value_with_some_missing_parts_nothing(seed):
    rng = np.random.default_rng(seed)
    known = np.where(rng.random(16) < 0.5, np.nan, 1.0)
    X = np.stack([known, rng.integers(0, 3, 16), rng.integers(0, 2, 16)], axis=1)
    leaf = DirichletCategorical.symmetric(2, 0.5)
    model = TreeModel(Design.from_matrix(X), rng.integers(0, 2, 16), DepthDecay(0.95, 1.0), leaf)
    assert faults(model, "best") == []
    assert faults(model, "sum") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_but((0,), range(3)))
def test_pure_sets_are_told_by_counts_alone(seed):
    """Of more than a million rows scores are not tabled, and differ from bounds by rounding."""
    X = np.array([[0] * 6 + [0], [0] * 6 + [1], [1] * 6 + [0], [1] * 6 + [1]], float)
    weights = np.random.default_rng(seed).integers(100_000, 900_000, 4)
    model = TreeModel(
        Design.from_matrix(X, weights=weights),
        np.array([0, 0, 1, 1]),
        DepthDecay(0.999, 0.0, over="rules"),
        DirichletCategorical.symmetric(2, 0.001),
    )
    assert faults(model, "best") == []


def test_draws_take_any_cut_of_a_gap():
    rng = np.random.default_rng(1)
    X = np.array([[0, 0], [0, 9]] * 10 + [[1, v] for v in range(10)] * 2, float)
    y = np.array([0, 1] * 10 + list(rng.integers(0, 2, 20)))
    model = TreeModel(
        Design.from_matrix(X),
        y,
        DepthDecay(0.95, 0.5, rules="cuts"),
        DirichletCategorical.symmetric(2),
    )
    search, chart = TreeSearch(model, "sum").run(), exact_of(model, "chart")
    drawn = search.sample(rng, chains=1, draws=3000)
    new = np.array([[0.0, v] for v in range(10)])
    with jax.enable_x64(True):
        shares = np.asarray(drawn.predictive(new).mean())[:, 1]
        exact = np.asarray(chart.predictive(new).mean())[:, 1]
    np.testing.assert_allclose(shares, exact, atol=0.03)  # 3 standard errors at most
    ranked = chart.k_best(1)
    assert search.best_tree().probability[0] == pytest.approx(ranked.probability[0], rel=1e-8)


@pytest.mark.slow
def test_rules_are_walked_along_in_the_order_of_their_list():
    nan = np.nan
    X = np.array([[0, 0], [2, 0], [nan, 0], [0, 1], [1, 1], [2, 1]])
    prior = DepthDecay(0.9, 0.5, rules="cuts", choice="chronological")
    leaf = DirichletCategorical.symmetric(2)
    model = TreeModel(Design.from_matrix(X), np.array([0, 1, 1, 0, 0, 1]), prior, leaf)
    assert faults(model, "sum") == []


@pytest.mark.slow
def test_draws_of_large_trees_are_as_many_as_they_should_be():
    """Trees of more than 63 slots need more room; false alarm 1e-4, twin below 1e-9."""
    rng = np.random.default_rng(0)
    X, y = np.arange(36.0)[:, None], rng.integers(0, 2, 36)
    model = TreeModel(
        Design.from_matrix(X), y, DepthDecay(0.97, 0.0), DirichletCategorical.symmetric(2, 4.0)
    )
    search = TreeSearch(model, "sum").run()
    exact = exact_of(model, "chart").sample(jax.random.key(1), chains=1, draws=20_000)
    share = float((exact.num_leaves > 32).mean())
    number = 600
    large = sum(
        int(search.sample(rng, chains=1, draws=1).num_leaves[0, 0] > 32) for _ in range(number)
    )
    assert binomtest(large, number, share).pvalue > FALSE_ALARM
    assert binomtest(int(number * share**2), number, share).pvalue < 1e-9


def test_an_interval_is_closed_by_its_width_in_nats_too():
    assert search_module.Interval(-100.0, -100.0 + 1e-9).is_closed
    assert not search_module.Interval(-1.4e9, -1.4e9 + 0.05).is_closed
    assert not search_module.Interval(-1e5, -1e5 + 1e-6).is_closed
    assert not search_module.Interval(-np.inf, -np.inf).is_closed


def test_a_prior_of_fewer_features_than_the_table_is_refused():
    model = table(1)
    wide = Design.from_matrix(np.repeat(model.design.matrix, 3, axis=1))
    prior = GreedyPartition(0.9, num_features=1)
    with pytest.raises(ValueError, match="num_features=None"):
        TreeSearch(TreeModel(wide, model.y, prior, model.leaf))
