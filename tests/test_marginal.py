"""The exact evidence as a NumPyro distribution, and empirical Bayes on it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from scipy import stats
from tiers import slow_but

from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.empirical_bayes import empirical_bayes
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.marginal import TreeMarginal
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty


def problem(seed=0, n=14, missing=False):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 4, (n, 2)).astype(float)
    if missing:
        matrix[0, 0] = np.nan
    y = (matrix[:, 0] > 1) ^ (rng.random(n) < 0.2)
    return Design.from_matrix(matrix), y.astype(int), rng.normal(y * 1.0, 0.5)


PRIORS = {
    "leaf penalty": LeafPenalty(1.3),
    "description length": DescriptionLength(1.7),
    "depth decay": DepthDecay(0.9, 0.8),
    "greedy partition": GreedyPartition(0.7),
}


@pytest.mark.parametrize(
    ("name", "real"),
    slow_but(
        [("leaf penalty", False), ("greedy partition", True)],
        itertools.product(PRIORS, (False, True)),
    ),
)
def test_log_prob_is_the_exact_log_evidence(name, real):
    design, labels, values = problem(missing=True)
    prior = PRIORS[name]
    y = values if real else labels
    leaf = NormalInverseGamma(0.2, 1.5, 2.5, 0.7) if real else DirichletCategorical.symmetric(2)
    grammar = compile_grammar(design, rules=prior.rules)
    marginal = TreeMarginal(grammar, prior, leaf)
    exact = ExactPosterior(grammar, prior, leaf, y).log_evidence
    assert marginal.log_prob(y).dtype == jnp.float32
    np.testing.assert_allclose(marginal.log_prob(y), exact, rtol=2e-7)
    # Traced targets take the compiled road to the same statistics.
    np.testing.assert_allclose(jax.jit(marginal.log_prob)(jnp.asarray(y)), exact, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("transform", slow_but(["jit", "vmap"], ["plain", "jit", "vmap", "scan"]))
def test_gradients_under_an_outer_float32_trace(transform):
    design, y, _ = problem()
    grammar = compile_grammar(design)

    def log_prob(parameters):
        log_phi, concentration = parameters
        leaf = DirichletCategorical(concentration * jnp.ones(2))
        return TreeMarginal(grammar, LeafPenalty(log_phi), leaf).log_prob(y)

    def exact(log_phi, concentration):
        leaf = DirichletCategorical.symmetric(2, concentration)
        return ExactPosterior(grammar, LeafPenalty(log_phi), leaf, y).log_evidence

    step = 1e-5
    expected = [
        (exact(1.2 + step, 0.8) - exact(1.2 - step, 0.8)) / (2 * step),
        (exact(1.2, 0.8 + step) - exact(1.2, 0.8 - step)) / (2 * step),
    ]
    at = jnp.array([1.2, 0.8])
    gradient = {
        "plain": lambda: jax.grad(log_prob)(at),
        "jit": lambda: jax.jit(jax.grad(log_prob))(at),
        "vmap": lambda: jax.vmap(jax.grad(log_prob))(jnp.stack([at + 1, at]))[1],
        "scan": lambda: jax.lax.scan(lambda c, _: (c, jax.grad(log_prob)(c)), at, None, 2)[1][1],
    }[transform]()
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "prior", slow_but([DepthDecay(0.8, 0.5)], [LeafPenalty(0.7), DepthDecay(0.8, 0.5)])
)
def test_probabilities_of_all_labellings_sum_to_one(prior):
    grammar = compile_grammar(problem(n=6)[0], rules=prior.rules)
    marginal = TreeMarginal(grammar, prior, DirichletCategorical(np.array([0.6, 1.4])))
    labellings = np.array(list(itertools.product([0, 1], repeat=6)))
    total = np.exp(np.asarray(marginal.log_prob(labellings))).sum()
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def _check_draws(drawn_from: TreeMarginal, judged_by: TreeMarginal, num_rows: int) -> None:
    """G-test of 20,000 draws over all labellings; false-alarm rate 1e-4."""
    labellings = np.array(list(itertools.product([0, 1], repeat=num_rows)))
    expected = np.exp(np.asarray(judged_by.log_prob(labellings), dtype=float))
    draws = np.asarray(drawn_from.sample(jax.random.key(3), (20_000,)))
    index = draws @ (2 ** np.arange(num_rows)[::-1])
    observed = np.bincount(index, minlength=2**num_rows)
    result = stats.power_divergence(
        observed, expected / expected.sum() * len(draws), lambda_="log-likelihood"
    )
    assert result.pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior", [LeafPenalty(0.3), pytest.param(DepthDecay(0.9, 0.4), marks=pytest.mark.slow)]
)
def test_draws_follow_the_probabilities(prior):
    matrix = np.array([[0.0, np.nan], [1, 0], [2, 1], [2, 0], [3, 2]])
    grammar = compile_grammar(Design.from_matrix(matrix), rules=prior.rules)
    leaf = DirichletCategorical(np.array([0.4, 0.7]))
    marginal = TreeMarginal(grammar, prior, leaf)
    _check_draws(marginal, marginal, 5)
    other = {LeafPenalty: LeafPenalty(0.8), DepthDecay: DepthDecay(0.8, 0.4)}[type(prior)]
    with pytest.raises(AssertionError):  # the twin: draws from another prior
        _check_draws(TreeMarginal(grammar, other, leaf), marginal, 5)


@pytest.mark.slow
def test_a_tree_inside_a_numpyro_model_meets_quadrature():
    """NUTS over log_phi against a grid; the mean within 5 standard errors (rate 6e-7)."""
    design, y, _ = problem(seed=2, n=12)
    grammar = compile_grammar(design)
    leaf = DirichletCategorical.symmetric(2)

    def model(y=None):
        log_phi = numpyro.sample("log_phi", dist.Normal(4.0, 2.0))
        numpyro.sample("y", TreeMarginal(grammar, LeafPenalty(log_phi), leaf), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), y=y)
    draws = np.asarray(mcmc.get_samples()["log_phi"], dtype=float)

    grid = np.linspace(-6, 14, 81)
    log_density = [
        ExactPosterior(grammar, LeafPenalty(g), leaf, y).log_evidence
        + stats.norm.logpdf(g, 4.0, 2.0)
        for g in grid
    ]
    weights = np.exp(log_density - np.max(log_density))
    weights /= weights.sum()
    mean = weights @ grid
    num_effective = numpyro.diagnostics.effective_sample_size(draws[None])
    standard_error = np.sqrt(weights @ (grid - mean) ** 2 / num_effective)
    assert abs(draws.mean() - mean) < 5 * standard_error
    assert abs(4.0 - mean) > 5 * standard_error  # the twin: the prior's mean would not pass

    predictive = Predictive(model, posterior_samples={"log_phi": draws[:7]})
    assert predictive(jax.random.key(1))["y"].shape == (7, 12)


@pytest.mark.slow
def test_empirical_bayes_climbs_to_a_flat_top():
    design, y, _ = problem(seed=4, n=30)
    grammar = compile_grammar(design)
    exact = ExactPosterior(grammar, LeafPenalty(2.0), DirichletCategorical.symmetric(2), y)
    fitted = empirical_bayes(exact)
    assert fitted.is_converged
    assert fitted.log_evidence[-1] > exact.log_evidence + 0.1
    best = ExactPosterior(grammar, fitted.prior, fitted.leaf, y).log_evidence
    np.testing.assert_allclose(fitted.log_evidence[-1], best, rtol=1e-9)
    for change in (-0.05, 0.05):
        prior = LeafPenalty(fitted.prior.log_phi + change)
        assert ExactPosterior(grammar, prior, fitted.leaf, y).log_evidence < best
        leaf = DirichletCategorical(fitted.leaf.concentration * np.exp(change))
        assert ExactPosterior(grammar, fitted.prior, leaf, y).log_evidence < best


def test_empirical_bayes_changes_only_what_is_named():
    design, _, y = problem(seed=5, n=20)
    grammar = compile_grammar(design)
    leaf = NormalInverseGamma.from_targets(y)
    exact = ExactPosterior(grammar, LeafPenalty(2.0), leaf, y)
    fitted = empirical_bayes(exact, parameters=["scale"])
    assert fitted.prior.log_phi == 2.0
    assert fitted.leaf.shape == leaf.shape
    assert fitted.leaf.scale != leaf.scale
    with pytest.raises(ValueError, match=r"parameters must be some of .*; got 'phi'"):
        empirical_bayes(exact, parameters=["phi"])


def evidence_of(penalty, concentration):
    """Log evidence of six labels in a row as a function of two numbers."""
    leaf = DirichletCategorical(jnp.ones(2) * concentration)
    return TreeMarginal(LINE, LeafPenalty(penalty), leaf).log_prob(np.array([0, 0, 0, 1, 1, 1]))


LINE = compile_grammar(Design.from_matrix(np.arange(6.0)[:, None]))


def test_derivatives_of_both_modes_agree_with_differences():
    with jax.enable_x64(True):
        at, step = np.array([1.3, 0.8]), 1e-4
        moved = [[evidence_of(*(at + step * s * e)) for s in (1, -1)] for e in np.eye(2)]
        expected = [(float(up) - float(down)) / (2 * step) for up, down in moved]
        both = [jax.jacfwd(evidence_of, (0, 1))(*at), jax.grad(evidence_of, (0, 1))(*at)]
        steps = [float(jax.grad(evidence_of)(at[0] + step * s, at[1])) for s in (1, -1)]
    for derivative in (*both, jax.jit(jax.jacfwd(evidence_of, (0, 1)))(1.3, 0.8)):
        np.testing.assert_allclose(derivative, expected, rtol=1e-6, atol=2e-7)
    second = jax.jit(jax.hessian(evidence_of))(1.3, 0.8)
    np.testing.assert_allclose(second, (steps[0] - steps[1]) / (2 * step), rtol=1e-5)


@pytest.mark.slow
def test_what_was_traced_can_be_batched():
    penalties = jnp.array([[0.5, 1.0], [2.0, 3.0]])
    expected = [[float(evidence_of(p, 1.0)) for p in row] for row in penalties]
    slopes = [[float(jax.grad(evidence_of)(float(p), 1.0)) for p in row] for row in penalties]
    every = jax.vmap(
        jax.jit(jax.vmap(jax.jit(jax.value_and_grad(evidence_of)), (0, None))), (0, None)
    )
    value, slope = every(penalties, 1.0)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, slopes, rtol=1e-6)
    marginal = TreeMarginal(LINE, LeafPenalty(1.0), DirichletCategorical.symmetric(2))
    labels = np.array([[0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 1, 1]])
    expected = [float(marginal.log_prob(y)) for y in labels]
    np.testing.assert_allclose(jax.vmap(jax.jit(marginal.log_prob))(labels), expected, rtol=1e-6)


def penalised(y):
    penalty = numpyro.sample("penalty", dist.Normal(1.0, 1.0))
    numpyro.sample("y", TreeMarginal(LINE, LeafPenalty(penalty), LEAF), obs=y)


LEAF = DirichletCategorical.symmetric(2)


@pytest.mark.slow
def test_chains_and_particles_side_by_side():
    y, quiet = np.array([0, 0, 0, 1, 1, 1]), {"progress_bar": False}
    chains = MCMC(
        NUTS(penalised),
        num_warmup=5,
        num_samples=5,
        num_chains=2,
        chain_method="vectorized",
        **quiet,
    )
    chains.run(jax.random.key(0), y)
    assert np.isfinite(chains.get_samples()["penalty"]).all()
    svi = SVI(
        penalised, AutoNormal(penalised), numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=3)
    )
    assert np.isfinite(svi.run(jax.random.key(0), 3, y, **quiet).losses).all()


def test_strict_promotion_of_types_is_kept():
    penalty, one = jnp.float32(1.3), jnp.float32(1)
    with jax.numpy_dtype_promotion("strict"):
        value, slope = jax.value_and_grad(evidence_of)(penalty, one)
        changed = jax.jvp(evidence_of, (penalty, one), (one, jnp.zeros_like(one)))
    np.testing.assert_allclose(changed, (value, slope), rtol=1e-6)


def test_a_derivative_in_the_targets_is_refused():
    marginal = TreeMarginal(LINE, LeafPenalty(1.0), NormalInverseGamma(0.0, 1.0, 1.0, 1.0))
    with pytest.raises(TypeError, match="no derivative in the targets"):
        jax.grad(marginal.log_prob)(jnp.arange(6.0))


def test_a_prior_of_other_rules_is_refused():
    grammar = compile_grammar(problem()[0], rules="gaps")
    with pytest.raises(ValueError, match="rules='cuts'"):
        TreeMarginal(grammar, DescriptionLength(1.0), DirichletCategorical.symmetric(2))


# ---------------------------------------------------------------------------------- of boxes


def of_both(prior, leaf, y):
    """Marginals of a chart and of boxes of two levels."""
    design = problem()[0]
    grammar = compile_grammar(design, rules=prior.rules, constraints=Constraints(max_depth=2))
    return grammar, BoxPosterior(design, prior, leaf, y, max_depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("own_targets", [pytest.param(True, marks=pytest.mark.slow), False])
def test_boxes_have_the_value_and_gradient_of_the_chart(own_targets):
    y = problem()[2]
    leaf = NormalInverseGamma(0.2, 1.5, 2.5, 0.7)
    both = of_both(DepthDecay(), leaf, y if own_targets else y[::-1])
    with jax.enable_x64(True):

        def log_prob(numbers, rows):
            alpha, mean, scale = numbers
            leaf = NormalInverseGamma(mean, 1.5, 2.5, scale, centre=0.2)
            return TreeMarginal(rows, DepthDecay(alpha, 0.8), leaf).log_prob(y)

        at = jnp.array([0.9, 0.3, 0.6])
        found = [jax.jit(jax.value_and_grad(lambda x, r=rows: log_prob(x, r)))(at) for rows in both]
        for chart, boxes in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(boxes, chart, rtol=0, atol=1e-9)
        step = 1e-5 * np.eye(3)
        differences = [log_prob(at + s, both[1]) - log_prob(at - s, both[1]) for s in step]
        np.testing.assert_allclose(found[1][1], np.array(differences) / 2e-5, atol=1e-7)
        forward = jax.jacfwd(lambda x: log_prob(x, both[1]))(at)
        np.testing.assert_allclose(forward, found[1][1], rtol=1e-12)
        many = jax.vmap(jax.grad(lambda x: log_prob(x, both[1])))(jnp.stack([at, at * 0.9]))
        np.testing.assert_allclose(many[0], forward, rtol=1e-12)


@pytest.mark.slow
def test_boxes_stand_in_a_model_that_nuts_samples():
    y = problem()[1]
    _, boxes = of_both(LeafPenalty(2.0), DirichletCategorical.symmetric(2), y)

    def model():
        log_phi = numpyro.sample("log_phi", dist.Exponential(1.0))
        leaf = DirichletCategorical.symmetric(2)
        numpyro.sample("y", TreeMarginal(boxes, LeafPenalty(log_phi), leaf), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=30, num_samples=60, progress_bar=False)
    mcmc.run(jax.random.key(0))
    found = np.asarray(mcmc.get_samples()["log_phi"])
    grid = np.linspace(0.01, 12, 400)
    leaf = DirichletCategorical.symmetric(2)
    log_density = [boxes.with_model(LeafPenalty(v), leaf).log_evidence - v for v in grid]
    weight = np.exp(log_density - np.max(log_density))
    mean = np.average(grid, weights=weight)
    error = np.sqrt(np.average((grid - mean) ** 2, weights=weight) / 10)
    assert abs(found.mean() - mean) < 4 * error


def test_marginals_of_boxes_say_what_they_cannot():
    y, leaf = problem()[1], DirichletCategorical.symmetric(2)
    _, boxes = of_both(LeafPenalty(2.0), leaf, y)
    with pytest.raises(ValueError, match="pass a compiled Grammar"):
        TreeMarginal(boxes, LeafPenalty(2.0), leaf).sample(jax.random.key(0))
