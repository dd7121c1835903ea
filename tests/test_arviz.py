"""The ArviZ data tree: its layout, that ArviZ takes it, and that PSIS-LOO is leave-one-out."""

import functools
import warnings

import arviz as az
import enumeration as reference
import jax
import numpy as np
import pytest
import xarray as xr
from every_estimator import FAST, KINDS, X, fitted
from handmade import LEAF, posterior_of, some_posterior, split
from sklearn.base import clone
from tiers import in_turn, slow_but

from bdtppl.arviz import for_installed_arviz, to_arviz
from bdtppl.arviz.conversion import _without_ties
from bdtppl.estimators.exact import ExactTreeClassifier, ExactTreeRegressor
from bdtppl.estimators.greedy_modal import GreedyModalTreeClassifier
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.models.hard.tree import route
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import LeafPenalty

CLASSES = ["low", "middle", "high"]
TASKS = ["classification", "regression"]

# ArviZ 0.23 calls matplotlib in a way that matplotlib 3.11 deprecates.
ignore_matplotlib = pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")


@functools.cache
def data_tree(task: str = "classification") -> xr.DataTree:
    classes = CLASSES if task == "classification" else None
    return to_arviz(some_posterior(task), random_state=0, classes=classes)


# ------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)])
def test_every_variable_has_named_axes_with_coordinates(task):
    data = data_tree(task)
    assert set(data.children) == {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "posterior_predictive",
        "observed_data",
        "constant_data",
        "trees",
    }
    axes = {"chain", "draw", "obs", "feature", "node", "class", "statistic"}
    for group in data.children.values():
        assert set(group.sizes) <= axes
        assert set(group.sizes) <= set(group.coords)
        for variable in group.data_vars.values():
            assert isinstance(variable.data, np.ndarray)
    assert data.posterior["splits_on"].dims == ("chain", "draw", "feature")
    assert data.posterior["feature"].values.tolist() == ["age", "dose", "size"]
    assert data.log_likelihood["y"].dims == ("chain", "draw", "obs")
    assert data.posterior_predictive["y"].dims == ("chain", "draw", "obs")
    assert data.observed_data["y"].dims == ("obs",)
    assert data.constant_data["X"].dims == ("obs", "feature")
    assert data.trees["node_feature"].dims == ("chain", "draw", "node")


@pytest.mark.slow
def test_trees_are_counted():
    matrix, y = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0, 1])
    forest = [LEAF, split(1, 0.5), split(0, 0.5, left=split(0, 0.2, right=split(1, 0.1)))]
    leaf = DirichletCategorical.symmetric(2)
    data = to_arviz(posterior_of(forest, (1, 3), matrix=matrix, y=y, leaf=leaf), random_state=0)
    assert data.posterior["num_leaves"].values.tolist() == [[1, 2, 4]]
    assert data.posterior["max_leaf_depth"].values.tolist() == [[0, 1, 3]]
    assert data.posterior["splits_on"].values.tolist() == [[[0, 0], [0, 1], [2, 1]]]
    assert data.trees["num_nodes"].values.tolist() == [[1, 3, 7]]


def test_arrays_are_those_of_the_posterior():
    posterior = some_posterior()
    data = to_arviz(posterior, random_state=0, classes=CLASSES)
    np.testing.assert_array_equal(data.sample_stats["lp"], posterior.sample_stats["log_joint"])
    for name in ("log_likelihood", "num_leaves", "max_leaf_depth"):
        np.testing.assert_array_equal(data.sample_stats[name], posterior.sample_stats[name])
    for name in ("feature", "threshold", "missing_left", "left", "right"):
        np.testing.assert_array_equal(data.trees[f"node_{name}"], getattr(posterior.trees, name))
    np.testing.assert_array_equal(data.trees["node_statistics"], posterior.statistics)
    np.testing.assert_allclose(data.log_likelihood["y"], posterior.log_likelihood(), atol=2e-9)
    np.testing.assert_array_equal(data.constant_data["X"], posterior.matrix)
    np.testing.assert_array_equal(data.observed_data["y"], posterior.y)


def test_classes_label_the_statistics_and_the_targets():
    data = data_tree()
    for group in (data.trees, data.observed_data, data.posterior_predictive, data.log_likelihood):
        assert group["class"].values.tolist() == CLASSES
    assert data.trees["node_statistics"].dims[-1] == "class"
    assert set(np.unique(data.posterior_predictive["y"])) <= {0, 1, 2}
    assert data.observed_data["y"].attrs["description"] == "index into the coordinate class"


def test_regression_has_no_classes():
    data = data_tree("regression")
    assert all("class" not in group.coords for group in data.children.values())
    assert data.trees["node_statistics"].dims[-1] == "statistic"


def test_weighted_trees_are_resampled_because_arviz_weighs_draws_equally():
    """Systematic resampling gives each of 16 trees its share of 1,000 draws but for one."""
    log_weights = np.random.default_rng(0).normal(size=(2, 8))
    posterior = some_posterior(log_weights=log_weights)
    data = to_arviz(posterior, random_state=0)
    assert dict(data.posterior.sizes)["chain"] == 4
    assert dict(data.posterior.sizes)["draw"] == 250
    assert "log_weight" not in data.sample_stats
    drawn = data.sample_stats["lp"].values
    for log_joint in np.unique(posterior.sample_stats["log_joint"]):
        own = posterior.sample_stats["log_joint"] == log_joint
        share = posterior.weights[own].sum()
        assert abs((drawn == log_joint).sum() - 1000 * share) <= own.sum()


def test_attributes_name_the_inference_and_the_model():
    data = to_arviz(some_posterior(), random_state=0, inference="ExactTreeClassifier")
    for attributes in (data.attrs, data.posterior.attrs):
        assert attributes["inference_library"] == "bdtppl"
        assert attributes["inference"] == "ExactTreeClassifier"
        assert attributes["prior"].startswith("LeafPenalty(log_phi=2.0")
        assert attributes["leaf"].startswith("DirichletCategorical(")
        assert attributes["log_evidence"] == -12.25


def test_same_seed_gives_the_same_predictive_draws():
    posterior = some_posterior("regression")
    draws = [
        to_arviz(posterior, random_state=seed).posterior_predictive["y"].values
        for seed in (1, np.random.RandomState(1), 2)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).all()


@pytest.mark.slow
@pytest.mark.parametrize("task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)])
def test_rows_leave_with_all_their_weight(task):
    matrix, forest = np.array([[0.0], [1.0], [2.0]]), [LEAF, split(0, 0.5)]
    if task == "classification":
        y, leaf = np.array([0, 1, 1]), DirichletCategorical.symmetric(2)
    else:
        y, leaf = np.array([0.1, 0.5, 2.0]), NormalInverseGamma(1.0)
    options, weights = {"shape": (1, 2), "leaf": leaf}, np.array([2.0, 1.0, 0.7])
    weighted = posterior_of(forest, matrix=matrix, y=y, weights=weights, **options)
    data = to_arviz(weighted, random_state=0)
    np.testing.assert_array_equal(data.constant_data["weight"], weights)
    own = np.asarray(leaf.statistics(y, weights))
    for draw, leaves in enumerate([[[0, 1, 2]], [[0], [1, 2]]]):
        for rows in leaves:
            for row in rows:
                with jax.enable_x64(True):
                    total = leaf.log_marginal(own[rows].sum(axis=0))
                    rest = leaf.log_marginal(own[rows].sum(axis=0) - own[row])
                found = data.log_likelihood["y"].values[0, draw, row]
                assert found == pytest.approx(float(total - rest), abs=2e-9)


# -------------------------------------------------------------------------------- ArviZ's word


@pytest.mark.parametrize("task", TASKS)
def test_arviz_summarises(task):
    data = for_installed_arviz(data_tree(task))
    names = ["num_leaves", "max_leaf_depth"] + [f"splits_on[{f}]" for f in ("age", "dose", "size")]
    assert az.summary(data).index.tolist() == names
    for diagnostic in (az.ess, az.rhat):
        numbers = diagnostic(data)
        assert numbers["splits_on"].shape == (3,)
        assert np.isfinite(numbers["num_leaves"])


@ignore_matplotlib
@pytest.mark.parametrize("task", TASKS)
def test_arviz_draws(task):
    data = for_installed_arviz(data_tree(task))

    az.plot_trace(data, var_names=["num_leaves", "splits_on"])
    if isinstance(data, xr.DataTree):
        az.plot_dist(data, var_names=["num_leaves"])
        az.plot_dist(data, var_names=["y"], group="posterior_predictive")
    else:
        az.plot_dist(data.posterior["num_leaves"])
        az.plot_dist(data.posterior_predictive["y"])


def test_arviz_reads_the_file_that_the_tree_is_written_to(tmp_path):
    data = data_tree()
    data.to_netcdf(tmp_path / "posterior.nc", engine="h5netcdf")
    read = az.from_netcdf(tmp_path / "posterior.nc")
    for name in data.children:
        found = read[name]
        found = found.to_dataset() if isinstance(found, xr.DataTree) else found
        xr.testing.assert_identical(found.load(), data[name].to_dataset())
    read.close()


@ignore_matplotlib
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that never change
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # ArviZ 0.23 with pandas 3
@pytest.mark.filterwarnings("ignore:Variables y in")  # of classes: ArviZ has other plots too
@pytest.mark.parametrize("name", slow_but(FAST[:1], [FAST[0], *in_turn(KINDS)]))
def test_arviz_takes_every_estimator(name):
    model = fitted(name)
    data = model.to_arviz(prior_draws=40)
    groups = {str(group).strip("/") for group in data.groups} if is_tree(data) else data.groups()
    assert {"posterior", "prior", "prior_predictive", "log_likelihood"} <= set(groups)
    assert data["prior_predictive"]["y"].shape == (1, 40, len(X))
    assert "num_leaves" in az.summary(data, var_names=["num_leaves"]).index
    for diagnostic in (az.ess, az.rhat):
        assert diagnostic(data, var_names=["num_leaves"])["num_leaves"].shape == ()
    if model.inference == "map":  # the only draw is the best tree
        return
    found = az.loo(data, pointwise=True)
    elpd, values = (
        (found.elpd, found.elpd_i) if hasattr(found, "elpd_i") else (found.elpd_loo, found.loo_i)
    )
    assert np.isfinite(elpd)
    assert values.shape == (len(X),)
    assert set(az.compare({"one": data, "same": data}).index) == {"one", "same"}
    az.plot_trace(data, var_names=["num_leaves"])
    if is_tree(data):
        az.plot_ppc_dist(data, num_samples=10)
        az.plot_ppc_dist(data, num_samples=10, group="prior_predictive")
    else:
        az.plot_ppc(data, num_pp_samples=10)
        az.plot_ppc(data, num_pp_samples=10, group="prior")


def is_tree(data) -> bool:
    """Whether ArviZ is of version 1 or later."""
    return isinstance(data, xr.DataTree)


def test_where_nothing_can_be_drawn_from_the_prior_it_is_said():
    model = GreedyModalTreeClassifier(hyperplanes=2, random_state=0).fit(X, X.sum(axis=1) > 1)
    data = model.to_arviz()
    assert "prior" not in data
    assert data.attrs["no_prior_draws"] == "the prior does not define which hyperplanes exist"
    with pytest.raises(ValueError, match="prior_draws must be an integer"):
        model.to_arviz(prior_draws=-1)


# ------------------------------------------------------------------------------- leave-one-out


def problem(task: str):
    """State a small problem with the reference's leaf family and the package's."""
    rng = np.random.default_rng(5)
    num_rows = 12
    codes = np.stack([rng.permutation(num_rows) for _ in range(2)], axis=1)
    is_high = codes[:, 0] >= num_rows / 2
    if task == "classification":
        y = (is_high ^ (rng.random(num_rows) < 0.2)).astype(int)
        leaf = DirichletCategorical.symmetric(2)

        def family(observed=None):
            return reference.DirichletCategorical(y, [1.0, 1.0], observed)
    else:
        y = 2.0 * is_high + rng.normal(size=num_rows)
        leaf = NormalInverseGamma(1.0, 0.5, 3.0, 2.0)

        def family(observed=None):
            return reference.NormalInverseGamma(y, 1.0, 0.5, 3.0, 2.0, observed)

    return reference.Problem(codes, max_depth=2), codes, y, leaf, family


def nested(tree) -> dict:
    """Name a reference tree's splits by their thresholds, midway between codes."""
    if isinstance(tree, reference.Leaf):
        return LEAF
    threshold = (tree.rule.low + tree.rule.high) / 2
    return split(tree.rule.feature, threshold, nested(tree.left), nested(tree.right))


@functools.cache
def exact_draws(task: str) -> tuple[Posterior, xr.DataTree, float]:
    """Draw trees of the enumerated posterior; with them the exact sum of log p(y_i | the rest)."""
    shape = (4, 1000)
    grid, codes, y, leaf, family = problem(task)
    prior = reference.LeafPenalty(1.0)
    scored = reference.trees(grid, prior, family())
    probabilities = reference.tree_probabilities(scored)
    rng = np.random.default_rng(6)
    chosen = rng.choice(len(probabilities), np.prod(shape), p=list(probabilities.values()))
    forest = [nested(tree) for tree in probabilities]
    posterior = posterior_of(
        [forest[i] for i in chosen],
        shape,
        matrix=codes.astype(float),
        y=y,
        leaf=leaf,
    )
    exact = [
        reference.log_partition_by_recursion(grid, prior, family())
        - reference.log_partition_by_recursion(grid, prior, family(np.arange(len(y)) != i))
        for i in range(len(y))
    ]
    return posterior, to_arviz(posterior, random_state=0), sum(exact)


def loo_estimate(data: xr.DataTree) -> float:
    """Read the estimate, which has another name in each ArviZ.

    ArviZ takes a few dozen distinct ratios for a heavy tail, though they are bounded. Where most of
    a tail ties, a weight in its fit overflows to what it should be, zero.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
        warnings.filterwarnings("ignore", "overflow encountered in exp", RuntimeWarning)
        result = az.loo(for_installed_arviz(data))
    return float(result["elpd_loo"] if hasattr(result, "elpd_loo") else result.elpd)


def standard_error(log_likelihood: np.ndarray) -> float:
    """Standard error of the importance-sampling estimate from independent draws [..., n].

    A row's term is -log mean(r) with r = 1 / p(y_i | tree, rest), so a draw moves the sum of the
    terms by -sum_i (r_i / mean(r_i) - 1) / draws.
    """
    flat = log_likelihood.reshape(-1, log_likelihood.shape[-1])
    ratio = np.exp(-flat)
    return (ratio / ratio.mean(axis=0)).sum(axis=1).std() / np.sqrt(len(flat))


@pytest.mark.parametrize("task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)])
def test_loo_is_exact_leave_one_out(task):
    """Hold PSIS-LOO to the exact sum within 4 standard errors: false-alarm rate 6e-5."""
    _, data, exact = exact_draws(task)
    tolerance = 4 * standard_error(data.log_likelihood["y"].values)
    assert tolerance < 0.25
    assert abs(loo_estimate(data) - exact) < tolerance


@pytest.mark.parametrize("task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)])
def test_loo_check_sees_a_likelihood_that_has_learned_from_its_own_row(task):
    posterior, data, exact = exact_draws(task)
    tolerance = 4 * standard_error(data.log_likelihood["y"].values)
    slots = route(posterior.trees, posterior.matrix)
    statistics = np.take_along_axis(posterior.statistics, slots[..., None], axis=2)
    with jax.enable_x64(True):
        values = np.broadcast_to(posterior.y, slots.shape)
        seen = np.asarray(posterior.leaf.predictive(statistics).log_prob(values))
    data = data.copy()
    data.log_likelihood["y"] = data.log_likelihood["y"].copy(data=_without_ties(seen))
    assert abs(loo_estimate(data) - exact) > tolerance


def test_loo_of_one_tree_alone_is_that_of_its_leaves():
    """All ratios of a row tie; ArviZ by itself fails or returns NaN."""
    matrix, y = np.arange(6.0)[:, None], np.array([0, 0, 1, 1, 1, 0])
    leaf = DirichletCategorical.symmetric(2)
    posterior = posterior_of(100 * [split(0, 2.5)], (2, 50), matrix=matrix, y=y, leaf=leaf)
    exact = 2 * np.log(2 / 4) + np.log(1 / 4) + 2 * np.log(2 / 4) + np.log(1 / 4)
    assert abs(loo_estimate(to_arviz(posterior, random_state=0)) - exact) < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_loo_of_an_estimator_is_that_of_refits_without_each_row(task):
    """Hold PSIS-LOO to exact refits within 4 standard errors: false-alarm rate 6e-5.

    Every combination of the features' values stands in the table twice, so a table without one row
    has the same trees, with the same prior: log p(y_i | the rest) is a difference of log evidences.
    The draws are independent, so the standard error is that of a mean.
    """
    rng = np.random.default_rng(2)
    X = np.array([[a, b] for a in range(3) for b in range(3)] * 2, float)
    signal = (X[:, 0] > 0.5) + (X[:, 1] > 1.5)
    settings = {"prior": LeafPenalty(1.0), "chains": 4, "draws": 1000, "random_state": 0}
    if task == "classification":
        y = signal + rng.integers(0, 2, len(X))
        model = ExactTreeClassifier(classes=range(4), **settings)
    else:
        y = signal + rng.normal(size=len(X))
        model = ExactTreeRegressor(leaf=NormalInverseGamma(1.0, 0.5, 3.0, 2.0), **settings)
    model.fit(X, y)
    exact = [
        model.log_evidence_ - clone(model).fit(np.delete(X, i, 0), np.delete(y, i)).log_evidence_
        for i in range(len(X))
    ]
    assert "num_leaves" in az.summary(model.to_arviz(), var_names=["num_leaves"]).index
    data = to_arviz(model.posterior_)
    tolerance = 4 * standard_error(data.log_likelihood["y"].values)
    assert tolerance < 0.25
    assert abs(loo_estimate(data) - sum(exact)) < tolerance
