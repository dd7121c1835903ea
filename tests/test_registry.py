"""What is defined in one place is known everywhere: a leaf family, a prior, an inference."""

import json
import math
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy.special import gammaln as scipy_gammaln
from test_cli import run, write_table

import bdtppl
from bdtppl.cli.specification import make_leaf, parse_prior
from bdtppl.estimators import INFERENCES, all_inferences
from bdtppl.estimators.base import estimator
from bdtppl.estimators.greedy_modal import GreedyModalTree
from bdtppl.estimators.hard import RealLeaves
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaf_kernels import has_kernel
from bdtppl.models.leaves import LEAF_FAMILIES, Leaf
from bdtppl.models.prior_kinds import Rules
from bdtppl.models.priors import TREE_PRIORS, DepthDecay, NodePrior
from bdtppl.models.pytrees import pytree_dataclass, setting
from bdtppl.prior_files import read_prior_file
from bdtppl.report.words import inference_in_words, prior_in_words


class Lomax(dist.TransformedDistribution):
    """Pareto's law, moved to begin at 0."""

    def __init__(self, rate, shape):
        self.rate, self.shape_ = rate, shape
        moved = dist.transforms.AffineTransform(-rate, 1.0, domain=constraints.positive)
        super().__init__(dist.Pareto(rate, shape), moved)

    def cdf(self, value):
        return 1 - (1 + jnp.maximum(value, 0.0) / self.rate) ** -self.shape_


@pytree_dataclass
class ExponentialGamma(Leaf):
    """Waiting times, exponential with a gamma rate; statistics are (rows, sum)."""

    shape: Any = 2.0
    rate: Any = 1.0

    parameter_support: ClassVar[dict] = {
        "shape": constraints.positive,
        "rate": constraints.positive,
    }

    def statistics(self, y, weight):
        y, weight = jnp.asarray(y, float), jnp.asarray(weight, float)
        return jnp.stack([weight, weight * y], axis=-1)

    def _posterior(self, statistics):
        return self.shape + statistics[..., 0], self.rate + statistics[..., 1]

    def log_marginal(self, statistics):
        shape, rate = self._posterior(statistics)
        own = gammaln(shape) - shape * jnp.log(rate)
        return own - gammaln(self.shape) + self.shape * jnp.log(self.rate)

    def posterior_mean(self, statistics):
        shape, rate = self._posterior(statistics)
        return rate / (shape - 1)

    def predictive(self, statistics):
        shape, rate = self._posterior(statistics)
        return Lomax(rate, shape)


@pytree_dataclass
class CompiledExponentialGamma(ExponentialGamma):
    """The same with a compiled score."""

    def score_tables(self, counts):
        numbers = np.array([self.shape, self.rate], float)
        return scipy_gammaln(self.shape + counts)[None], numbers

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        shape, rate = numbers
        start = shape * math.log(rate) - math.lgamma(shape)
        for i in range(len(scores)):
            rows, total = statistics[i]
            rising = math.lgamma(shape + rows)
            if rows < tables.shape[1]:
                rising = tables[0, int(rows)]
            scores[i] = start + rising - (shape + rows) * math.log(rate + total)
        return 0


@pytree_dataclass
class HalvingPrior(NodePrior):
    """Each node splits with one probability; rules share it."""

    probability: Any = 0.5
    rules: Rules = setting(default="gaps")

    parameter_support: ClassVar[dict] = {"probability": constraints.unit_interval}
    node_facts: ClassVar[tuple[str, ...]] = ("log_num_features",)
    rule_facts: ClassVar[tuple[str, ...]] = ("log_num_cuts", "log_num_feature_cuts")
    is_normalised: ClassVar[bool] = True
    sums_to_at_most_one: ClassVar[bool] = True

    def log_stop(self, node):
        return jnp.where(node.has_rule, jnp.log1p(-self.probability), 0.0)

    def log_split(self, node, rule):
        share = rule.log_num_cuts - rule.log_num_feature_cuts - node.log_num_features
        return jnp.log(self.probability) + share


@declared
class _StumpParameters:
    times: int = parameter(1, "How often the stump is grown.", least=1)


class _StumpTree(_StumpParameters, GreedyModalTree):
    inference = "stump"
    in_words = "The tree is a stump."

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        self.max_depth = 1 if self.max_depth is None else self.max_depth
        return super()._fit(X, y, sample_weight)


@pytest.fixture(autouse=True)
def stump():
    """Take what this file registers out again, for the tests that list all there is."""
    kept = LEAF_FAMILIES, TREE_PRIORS
    for registry, kind in zip(kept, (ExponentialGamma, HalvingPrior), strict=True):
        registry[kind.__name__] = kind
    StumpTreeRegressor = estimator(
        type("StumpTreeRegressor", (RealLeaves, _StumpTree), {"__doc__": "Regress by a stump."})
    )
    yield StumpTreeRegressor
    for registry, kind in zip(kept, (ExponentialGamma, HalvingPrior), strict=True):
        del registry[kind.__name__]
    del INFERENCES["stump"]


# Pytest imports every file first, and what is registered then would be seen by other files' tests.
del LEAF_FAMILIES["ExponentialGamma"], TREE_PRIORS["HalvingPrior"]


@pytest.fixture(scope="module")
def times(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(0, 6, 50)
    wait = rng.exponential(np.where(age > 2, 5.0, 0.5)).round(3)
    path = tmp_path_factory.mktemp("times") / "times.csv"
    return write_table(path, {"age": age, "wait": wait})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*chains.*")
def test_a_leaf_family_and_a_prior_of_ones_own_work_everywhere(times, tmp_path):
    X, y = np.loadtxt(times, delimiter=",", skiprows=1).T
    X, leaf, prior = X[:, None], ExponentialGamma(2.0, 3.0), HalvingPrior(0.4)
    for kind, settings in {
        "ExactTreeRegressor": {},
        "GreedyModalTreeRegressor": {},
        "MetropolisTreeRegressor": {"temperatures": 1, "warmup": 200, "draws": 50},
        "ParticleTreeRegressor": {"particles": 20},
    }.items():
        model = getattr(bdtppl, kind)(prior=prior, leaf=leaf, random_state=0, **settings).fit(X, y)
        assert model.predict([[5.0]]) > 2 * model.predict([[0.0]])
        interval = model.predict_interval([[0.0]], 0.8)[0]
        drawn = model.sample_predictive([[0.0]], 4000)
        # 5 standard errors of a share: a false alarm in 2 million.
        assert abs((drawn <= interval[1]).mean() - 0.9) < 5 * np.sqrt(0.09 / 4000)
        with pytest.raises(ValueError, match=r"has no distribution .*; Dirichlet.* have it"):
            model.predict_interval([[0.0]], kind="mean")
        model.save(tmp_path / kind)
        loaded = bdtppl.load(tmp_path / kind)
        assert (loaded.predict(X) == model.predict(X)).all()
        assert type(loaded.leaf) is ExponentialGamma
        assert type(loaded.prior) is HalvingPrior
    assert "ExponentialGamma with shape 2 and rate 3" in leaf.in_words()
    assert prior_in_words(prior) == ["The prior is HalvingPrior(probability=0.4)."]


@pytest.mark.slow
def test_names_of_ones_own_are_read_from_files_and_from_the_command_line(times, tmp_path):
    assert parse_prior("halving-prior:probability=0.3") == HalvingPrior(0.3)
    y = np.array([1.0, 2.0])
    assert make_leaf("exponential-gamma:rate=4", "regression", y) == ExponentialGamma(2.0, 4.0)
    file = tmp_path / "prior.toml"
    file.write_text(
        '[prior]\nkind = "HalvingPrior"\nprobability = 0.2\n[leaf]\nkind = "ExponentialGamma"\n'
    )
    read = read_prior_file(file)
    assert read.prior == HalvingPrior(0.2)
    assert read.make_leaf(y) == ExponentialGamma()
    help_text = run("fit", "--model", "exact", "--help").stdout
    assert "exponential-gamma" in help_text
    assert "halving-prior" in help_text
    options = ["--target", "wait", "--prior-file", file, "--out", tmp_path / "out", "--report"]
    run("fit", times, "--model", "exact", *options)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "ExponentialGamma with shape 2 and rate 1" in page
    assert "HalvingPrior(probability=0.2)" in page


@pytest.mark.slow
def test_an_inference_of_ones_own_works_everywhere(stump, times, tmp_path):
    StumpTreeRegressor = stump
    assert all_inferences()["stump"] == {"regression": StumpTreeRegressor}
    assert "times : int, default 1\n    How often the stump is grown." in StumpTreeRegressor.__doc__
    with pytest.raises(ValueError, match="times must be an integer of at least 1; got 0"):
        StumpTreeRegressor(times=0).fit([[0.0], [1.0]], [0.0, 1.0])
    assert "How often the stump is grown" in run("fit", "--model", "stump", "--help").stdout
    options = ["--target", "wait", "--model", "stump", "--times", 2]
    said = json.loads(run("fit", times, *options, "--json", "--out", tmp_path / "out").stdout)
    assert said["map_leaves"] <= 2
    loaded = bdtppl.load(tmp_path / "out")
    assert type(loaded) is StumpTreeRegressor
    assert loaded.times == 2
    assert inference_in_words(loaded) == "The tree is a stump."
    assert loaded.to_arviz(prior_draws=0)["posterior"].sizes["draw"] == 250


def test_targets_of_absent_rows_are_not_judged():
    @pytree_dataclass
    class Positive(ExponentialGamma):
        def require_targets(self, y):
            if (bad := np.flatnonzero(y <= 0)).size:
                raise ValueError(f"y, row {bad[0]}: {y[bad[0]]} is no time.")

    del LEAF_FAMILIES["Positive"]
    X, y, weights = [[0.0], [1.0], [2.0]], [-1.0, 2.0, 3.0], [0, 1, 1]
    model = bdtppl.ExactTreeRegressor(leaf=Positive())
    model.fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match=r"y, row 2: -3\.0 is no time"):
        model.fit(X, [-1.0, 2.0, -3.0], sample_weight=weights)


def test_a_leaf_family_of_a_file_is_held_to_the_task(times, tmp_path):
    file = tmp_path / "prior.toml"
    file.write_text('[leaf]\nkind = "DirichletCategorical"\n')
    options = ["--target", "wait", "--task", "regression", "--prior-file", file]
    said = run("fit", times, "--model", "exact", *options, status=2).stderr
    assert "kind DirichletCategorical is not a leaf family for regression" in " ".join(said.split())


def test_a_family_without_a_method_is_refused_by_name():
    @pytree_dataclass
    class Half(ExponentialGamma):
        log_marginal = Leaf.log_marginal

    del LEAF_FAMILIES["Half"]
    with pytest.raises(TypeError, match="Half, which lacks the method log_marginal; a leaf family"):
        bdtppl.ExactTreeRegressor(leaf=Half()).fit([[0.0], [1.0]], [1.0, 2.0])
    with pytest.raises(TypeError, match="family for class labels; got ExponentialGamma"):
        bdtppl.ExactTreeClassifier(leaf=ExponentialGamma()).fit([[0.0], [1.0]], [0, 1])


def test_a_family_whose_methods_do_not_fit_is_refused_by_name():
    @pytree_dataclass
    class Whole(ExponentialGamma):
        def predictive(self, statistics):
            return super().predictive(statistics.sum(axis=0))

    @pytree_dataclass
    class Undefined(ExponentialGamma):
        def log_marginal(self, statistics):
            return super().log_marginal(statistics) * jnp.nan

    for name in ("Whole", "Undefined"):
        del LEAF_FAMILIES[name]
    X, y = [[0.0], [1.0]], [1.0, 2.0]
    with pytest.raises(TypeError, match=r"Whole.predictive must have batch shape \[n\]"):
        bdtppl.ExactTreeRegressor(leaf=Whole()).fit(X, y)
    for model in (bdtppl.ExactTreeRegressor, bdtppl.GreedyModalTreeRegressor):
        with pytest.raises(ValueError, match=r"Undefined.log_marginal of all training rows is not"):
            model(leaf=Undefined()).fit(X, y)


def test_log_marginals_of_ones_own_are_densities():
    """The family of this file is right: its marginal is the chain of its predictives."""
    with jax.enable_x64(True):
        leaf, y = ExponentialGamma(2.0, 3.0), np.array([0.5, 2.0, 4.0])
        rows = leaf.statistics(y, np.ones(3))
        before = jnp.cumsum(rows, axis=0) - rows
        chain = sum(leaf.predictive(before[i]).log_prob(y[i]) for i in range(3))
        assert float(leaf.log_marginal(rows.sum(axis=0))) == pytest.approx(float(chain))


def test_a_compiled_score_of_ones_own_serves_boxes_and_tables():
    rng = np.random.default_rng(0)
    design = Design.from_matrix(rng.integers(0, 4, (40, 2)).astype(float))
    y = rng.exponential(1 + design.matrix[:, 0])
    plain, compiled = ExponentialGamma(2.0, 1.5), CompiledExponentialGamma(2.0, 1.5)
    assert (has_kernel(plain), has_kernel(compiled)) == (False, True)
    prior = DepthDecay(0.9, 1.0)
    of = [BoxPosterior(design, prior, leaf, y, max_depth=2) for leaf in (plain, compiled)]
    assert of[1].log_partition == pytest.approx(of[0].log_partition, abs=1e-10)
    by_chart = ExactPosterior(
        compile_grammar(design, constraints=Constraints(max_depth=2)), prior, compiled, y
    )
    assert by_chart.log_partition == pytest.approx(of[0].log_partition, abs=1e-10)
    best = [boxes.k_best(3) for boxes in of]
    np.testing.assert_allclose(best[1].statistics, best[0].statistics)
    other = BoxPosterior(design, prior, CompiledExponentialGamma(2.0, 1.6), y, max_depth=2)
    assert abs(other.log_partition - of[0].log_partition) > 1e-3
