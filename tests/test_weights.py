"""Weights that are no counts: formulas, inferences side by side, and users in scikit-learn."""

import numpy as np
import pytest
import sklearn
from scipy import stats
from scipy.special import gammaln
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import AdaBoostClassifier
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bdtppl
from bdtppl import BARTClassifier, BARTRegressor, ExactTreeClassifier, ExactTreeRegressor
from bdtppl.datasets import make_cgm, make_hidden_xor, make_wu
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma, PoissonGamma
from bdtppl.models.priors import DepthDecay
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = X[:, 0] + 0.5 * RNG.normal(size=40)
LABELS = np.where(Y > 0.3, "high", "low")
WEIGHTS = RNG.uniform(0.1, 2.0, 40)


# ------------------------------------------------------------------------------------ formulas


def tables():
    """Ten tables with their leaf families."""
    for load in (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer):
        table, y = load(return_X_y=True)
        yield load.__name__, table, y, DirichletCategorical([0.5, 1.5, 2.0][: y.max() + 1])
    table, y = make_hidden_xor(200, random_state=0)
    yield "hidden xor", table, y, DirichletCategorical([1.0, 1.0])
    table, y = datasets.make_classification(300, weights=[0.9], random_state=0)
    yield "rare class", table, y, DirichletCategorical([2.0, 0.1])
    table, y = datasets.load_diabetes(return_X_y=True)
    yield "diabetes", table, y, NormalInverseGamma.from_targets(y)
    for make in (make_wu, make_cgm, datasets.make_friedman1):
        table, y = make(150, random_state=0)
        yield make.__name__, table, y, NormalInverseGamma(0.3, 0.8, 1.7, 2.0)
    table = RNG.normal(size=(120, 3))
    yield "counts", table, RNG.poisson(np.exp(table[:, 0])), PoissonGamma(1.3, 0.6)


def log_marginal(leaf, y, w):
    """Integrate the product of likelihoods to the powers w, by the conjugate formulas."""
    total = w.sum()
    if isinstance(leaf, DirichletCategorical):
        prior = np.asarray(leaf.concentration)
        own = np.array([w[y == c].sum() for c in range(len(prior))])
        each = gammaln(prior + own) - gammaln(prior)
        return each.sum() + gammaln(prior.sum()) - gammaln(prior.sum() + total)
    if isinstance(leaf, PoissonGamma):
        shape, rate = leaf.shape + w @ y, leaf.rate + total
        of_rows = leaf.shape * np.log(leaf.rate) - shape * np.log(rate) - w @ gammaln(y + 1)
        return of_rows + gammaln(shape) - gammaln(leaf.shape)
    mean, kappa = w @ y / total, leaf.pseudo_count
    shape, squares = leaf.shape + total / 2, w @ (y - mean) ** 2
    scale = leaf.scale + squares / 2
    scale += kappa * total * (mean - leaf.mean) ** 2 / (2 * (kappa + total))
    log_ratio = leaf.shape * np.log(leaf.scale) - shape * np.log(scale)
    log_ratio += gammaln(shape) - gammaln(leaf.shape)
    return log_ratio + np.log(kappa / (kappa + total)) / 2 - total / 2 * np.log(2 * np.pi)


@pytest.mark.parametrize(("table", "y", "leaf"), [pytest.param(*t[1:], id=t[0]) for t in tables()])
def test_log_scores_with_weights_and_twice_these_are_those_of_the_formulas(table, y, leaf):
    w = np.random.default_rng(1).gamma(1.0, size=len(y))
    found, wanted = [], []
    for factor in (1, 2):
        design = Design.from_matrix(table, weights=factor * w, bins=8)
        cut = float(design.cut_threshold[design.offset[1] - 1])
        nested = {"feature": 0, "threshold": cut, "left": {}, "right": {}}
        model = TreeModel(design, y, DepthDecay(0.9, 1.0), leaf)
        found.append(float(log_joint(Tree.from_nested(nested), model).log_likelihood))
        left = table[:, 0] < cut
        sides = (log_marginal(leaf, y[own], factor * w[own]) for own in (left, ~left))
        wanted.append(sum(map(float, sides)))
    np.testing.assert_allclose(found, wanted, rtol=1e-11)
    assert abs(found[1] - 2 * found[0]) > 1e-3  # the powers are integrated, not the result


def test_inverse_variances_whose_mean_is_one_give_the_model_of_unequal_noise():
    """Targets N(mu, sigma^2 / w) are a multivariate t; a root alone is their whole posterior."""
    w = 1 / RNG.uniform(0.2, 3.0, 12)
    w, y = w / w.mean(), Y[:12]
    leaf = NormalInverseGamma(0.2, 0.7, 1.5, 0.9)
    model = ExactTreeRegressor(leaf=leaf, max_depth=0, bins=None, method="chart")
    model.fit(X[:12], y, sample_weight=w)
    covariance = leaf.scale / leaf.shape * (np.diag(1 / w) + 1 / leaf.pseudo_count)
    law = stats.multivariate_t(np.full(12, leaf.mean), covariance, 2 * leaf.shape)
    assert model.log_evidence_ + np.log(w).sum() / 2 == pytest.approx(law.logpdf(y), abs=1e-10)
    mean = (leaf.pseudo_count * leaf.mean + w @ y) / (leaf.pseudo_count + 12)
    np.testing.assert_allclose(model.predict(X[:3]), mean, rtol=1e-12)


# -------------------------------------------------------------------------- inferences together


@pytest.mark.parametrize(
    "y",
    [pytest.param(Y, id="values", marks=pytest.mark.slow), pytest.param(LABELS, id="classes")],
)
def test_exact_methods_agree(y):
    kind = "Classifier" if y is LABELS else "Regressor"
    leaf = DirichletCategorical([0.5, 1.5]) if y is LABELS else NormalInverseGamma(0.1)
    evidences = []
    for min_leaf in (1, 3):
        evidence = []
        for method in ("chart", "boxes", "search"):
            make = getattr(bdtppl, f"ExactTree{kind}")
            options = {"bins": 6, "max_depth": 2, "min_leaf": min_leaf, "method": method}
            model = make(prior=DepthDecay(0.8, 1.0), leaf=leaf, random_state=0, **options)
            evidence.append(model.fit(X, y, sample_weight=WEIGHTS).log_evidence_)
        np.testing.assert_allclose(evidence, evidence[0], rtol=1e-10)
        evidences.append(evidence[0])
    assert abs(evidences[0] - evidences[1]) > 1e-6


def test_rows_in_parts_are_those_in_memory():
    options = {"bins": 6, "max_depth": 2, "min_leaf": 2, "leaf": NormalInverseGamma(0.0)}
    whole = ExactTreeRegressor(method="boxes", **options).fit(X, Y, sample_weight=WEIGHTS)
    pieces = [slice(0, 15), slice(15, 40)]
    chunks = ExactTreeRegressor(**options)
    chunks.fit(lambda: iter([(X[part], Y[part], WEIGHTS[part]) for part in pieces]))
    assert chunks.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-12)
    assert chunks.summary()["pseudo_weight"] == pytest.approx(WEIGHTS.sum())


def test_cuts_depend_on_ratios_of_weights_alone():
    table = RNG.normal(size=(60, 2)).round(1)
    w = RNG.uniform(0.1, 5.0, 60)
    one, other = (Design.from_matrix(table, weights=f * w, bins=5) for f in (1.0, 4.0))
    np.testing.assert_array_equal(one.cut_threshold, other.cut_threshold)
    held = np.bincount(one.codes[:, 0], w) / w.sum()
    assert abs(held - 0.2).max() < 0.06


# ------------------------------------------------------------------------------- sums of trees


def moments_of_one_value(labels, weights, link):
    """Posterior mean and deviation of the second class's probability, by quadrature."""
    model = BARTClassifier(link=link, trees=3, chains=2, warmup=100, draws=3000, extensions=0)
    model.set_params(random_state=0, min_leaf=1, bins=2, max_depth=1)
    constant = np.zeros((len(labels), 1))
    with pytest.warns(UserWarning, match="equal"):
        model.fit(constant, labels, sample_weight=weights)
    drawn = model.mean_draws(constant[:1])[..., 0, 1].ravel()
    prior = model.prior_
    deviation = float(prior.leaf_scale) * prior.num_trees**0.5
    f = float(prior.offset) + np.linspace(-8, 8, 20_001) * deviation
    law = stats.logistic if link == "logit" else stats.norm
    p = law.cdf(f)
    log_density = stats.norm.logpdf(f, float(prior.offset), deviation)
    log_density += weights[labels == 1].sum() * law.logcdf(f)
    log_density += weights[labels == 0].sum() * law.logsf(f)
    density = np.exp(log_density - log_density.max())
    mean = np.average(p, weights=density)
    return drawn, mean, np.sqrt(np.average((p - mean) ** 2, weights=density))


@pytest.mark.parametrize(
    ("link", "weights"),
    [
        pytest.param("logit", np.array([0.3, 1.7, 0.05, 2.4]), marks=pytest.mark.slow),
        ("logit", np.array([5000.5, 3.0, 900.0, 12.25])),
        ("probit", np.array([3.0, 1.0, 7.0, 2.0])),
    ],
    ids=["small", "large", "whole"],
)
def test_weighted_labels_have_their_posterior(link, weights):
    """Means over 6,000 draws lie within 5 errors, for an effective size of a tenth: 1e-6."""
    labels = np.array([0, 0, 1, 1])
    drawn, mean, deviation = moments_of_one_value(labels, weights, link)
    error = deviation / np.sqrt(len(drawn) / 10)
    assert abs(drawn.mean() - mean) < 5 * error
    assert drawn.std() == pytest.approx(deviation, rel=0.2)
    # The twin: labels that count as if each had weight 1.
    _, unweighted, _ = moments_of_one_value(labels, np.ones(4), link)
    assert abs(drawn.mean() - unweighted) > 5 * error


def test_probits_of_other_weights_are_refused_in_a_sentence():
    model = BARTClassifier(link="probit", trees=3, chains=2, warmup=1, draws=4)
    for weights in (WEIGHTS, np.full(40, 5000)):
        with pytest.raises(ValueError, match=r"must be whole and at most 1,000; got .*logit"):
            model.fit(X, LABELS, sample_weight=weights)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pointwise_likelihoods_are_multiplied():
    model = BARTRegressor(trees=3, chains=2, warmup=10, draws=8, extensions=0, random_state=0)
    model.fit(X, Y, sample_weight=WEIGHTS)
    data = model.to_arviz(prior_draws=0)
    mean, noise = model.mean_draws(X), model.noise_draws(X)
    wanted = WEIGHTS * stats.norm.logpdf(Y, mean, noise)
    np.testing.assert_allclose(data.log_likelihood["y"].values, wanted, rtol=1e-9)
    total = data.sample_stats["log_likelihood"].values
    np.testing.assert_allclose(total, wanted.sum(axis=-1), rtol=1e-9)


# ---------------------------------------------------------------------------------- soft trees

SOFT = {
    "normal": (SoftRegression(), Y),
    "mixture": (
        SoftClassification(concentration=(1.0, 2.0), likelihood="mixture"),
        (Y > 0.3).astype(int),
    ),
    "compound": (SoftClassification(concentration=(1.0, 2.0)), (Y > 0.3).astype(int)),
}


@pytest.mark.parametrize("kind", SOFT)
def test_densities_of_soft_trees_count_rows_by_their_weights(kind):
    model, y = SOFT[kind]
    x, paths = (X - X.min(axis=0)) / np.ptp(X, axis=0), Topology("100").paths
    counts = 1 + np.arange(40) % 3

    def log_density(weights=None, rows=slice(None)):
        density = SoftDensity.filled_up(model, x[rows], y[rows], 1, weights=weights)
        position = np.linspace(-0.4, 0.5, density.size).astype(np.float32)
        return float(density.log_density(position, paths, 0.2))

    by_rows = log_density(rows=np.repeat(np.arange(40), counts))
    assert log_density(counts) == pytest.approx(by_rows, rel=1e-5)
    if kind != "compound":  # then log likelihoods of rows add up
        at = [log_density(weights) for weights in (np.full(40, 1e-12), WEIGHTS, WEIGHTS / 2)]
        assert at[1] - at[0] == pytest.approx(2 * (at[2] - at[0]), rel=1e-4)


# --------------------------------------------------------------------------- scikit-learn's users


def test_boosting_and_calibration_hand_over_weights():
    tree = ExactTreeClassifier(bins=5, max_depth=1, draws=10, chains=2, random_state=0)
    boosted = AdaBoostClassifier(tree, n_estimators=3, random_state=0).fit(X, LABELS)
    assert boosted.score(X, LABELS) > 0.6
    calibrated = CalibratedClassifierCV(tree, cv=2).fit(X, LABELS, sample_weight=WEIGHTS)
    assert calibrated.predict_proba(X).shape == (40, 2)


def test_pipelines_and_routing_hand_over_weights():
    tree = ExactTreeRegressor(bins=5, max_depth=1, draws=10, chains=2, random_state=0)
    alone = ExactTreeRegressor(**tree.get_params()).fit(X, Y, sample_weight=WEIGHTS)
    piped = make_pipeline(StandardScaler(), tree)
    piped.fit(X, Y, exacttreeregressor__sample_weight=WEIGHTS)
    assert piped[-1].log_evidence_ == pytest.approx(alone.log_evidence_)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = ExactTreeRegressor(**tree.get_params()).set_fit_request(sample_weight=True)
        asking.set_score_request(sample_weight=True)
        routed = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asking)
        found = cross_validate(
            routed, X, Y, cv=2, params={"sample_weight": WEIGHTS}, return_estimator=True
        )
    assert found["estimator"][0][-1].design_.pseudo_weight < WEIGHTS.sum()


@pytest.mark.slow
def test_comparisons_hand_weights_to_the_estimator():
    piped = make_pipeline(StandardScaler(), bdtppl.GreedyModalTreeRegressor())
    piped.fit(X, Y, greedymodaltreeregressor__sample_weight=WEIGHTS)
    alone = bdtppl.GreedyModalTreeRegressor().fit(X, Y, sample_weight=WEIGHTS)
    models = {"piped": piped, "alone": alone}
    folds = [(np.arange(20), np.arange(20, 40)), (np.arange(20, 40), np.arange(20))]
    scores = bdtppl.compare(models, X, Y, sample_weight=WEIGHTS, cv=folds).cells
    wanted = 0.0
    for train, test in folds:
        model = bdtppl.GreedyModalTreeRegressor()
        model.fit(X[train], Y[train], sample_weight=WEIGHTS[train])
        wanted += WEIGHTS[test] @ model._mixture(X[test]).log_density(Y[test])
    assert scores["alone"]["log_score"].value == pytest.approx(wanted)
    with pytest.raises(ValueError, match="with their weights"):
        bdtppl.compare(models, X, Y, sample_weight=2 * WEIGHTS, cv=2)


@pytest.mark.slow
def test_reports_call_the_evidence_a_pseudo_likelihood_s(tmp_path):
    model = ExactTreeRegressor(bins=5, max_depth=1, draws=10, chains=2, random_state=0)
    model.fit(X, Y, sample_weight=WEIGHTS)
    bdtppl.write_report(model, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "of a pseudo-likelihood" in page
    assert "are not counts and sum to" in page
