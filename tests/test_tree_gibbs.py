"""Sums of trees inside NumPyro: their moves under any likelihood, and the kernel around NUTS."""

from collections import Counter
from functools import cache, partial

import additive_problems as ap
import arviz as az
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, Predictive
from scipy import stats
from tiers import few_of, slow_but

from bdtppl import BARTRegressor, TreeGibbs, TreeSum
from bdtppl.inference.additive import any_likelihood, tree_gibbs
from bdtppl.inference.additive.any_likelihood import is_normal, redraw_all, redraw_each
from bdtppl.inference.additive.in_jax import SumState, TreeSweep
from bdtppl.inference.additive.kernel import AdditiveKernel, default_moves
from bdtppl.inference.additive.kernels import GROUPS
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior

OFFSET = 0.5
STARTS = 3000

# ------------------------------------------------------------- one tree of counts, by enumeration


def log_poisson(y, f):
    return y * (f + OFFSET) - jnp.exp(f + OFFSET)


@cache
def counts_of(levels: int):
    """A table of counts, and for each tree its probability and the law of each leaf's value."""
    cuts, features = (3, 3) if levels == 2 else (2, 2)
    of = ap.problem("plain", levels, 1, cuts=cuts, features=features)
    rng = np.random.default_rng(4)
    y = rng.poisson(np.exp(of.y)).astype(float)
    of = of._replace(y=y)
    grid = np.linspace(-7, 7, 2001) * ap.LEAF_SCALE
    prior = stats.norm.logpdf(grid, scale=ap.LEAF_SCALE) + np.log(grid[1] - grid[0])
    known, logs, laws = ap.trees(of), [], []
    for _, chance, leaves in known:
        each = []
        for rows in leaves:
            terms = y[rows].sum() * (grid + OFFSET) - rows.sum() * np.exp(grid + OFFSET)
            each.append(terms + prior)
        logs.append(chance + sum(np.logaddexp.reduce(own) for own in each))
        laws.append([np.exp(own - np.logaddexp.reduce(own)) for own in each])
    weight = np.exp(np.array(logs) - max(logs))
    return of, known, weight / weight.sum(), grid, laws


def law_after(levels, moves, sweeps=3, twice=False):
    """Start at exact draws, move, and compare where the moves end with the exact law."""
    of, known, probability, grid, laws = counts_of(levels)
    kernel, rng = of.kernel(moves), np.random.default_rng(8)
    states = []
    for k in rng.choice(len(known), STARTS, p=probability):
        nodes, _, leaves = known[k]
        values = [[rng.choice(grid, p=law) for law in laws[k]]]
        state = ap.as_state(of, kernel, (nodes,), [leaves], values)
        states.append((state.rule[0], state.value[0]))
    trees = SumState(*(jnp.asarray(np.array(part)) for part in zip(*states, strict=True)))
    sweep = TreeSweep(of.prior, of.design, kernel.moves)
    weight = jnp.asarray(of.design.has_cut / of.design.has_cut.sum())
    terms = partial(log_poisson, jnp.asarray(of.y))

    @jax.jit
    def move(trees, key):
        def one(trees, key):
            return redraw_each(sweep, terms, sweep.sums(trees), trees, weight, key, twice=twice)[0]

        return jax.vmap(one)(trees, jax.random.split(key, STARTS))

    for number in range(sweeps):
        trees = move(trees, jax.random.key(number))
    ended = Counter(ap.structure_of(kernel, rule)[0] for rule in np.asarray(trees.rule))
    return ep.g_test(ended, dict(zip([nodes for nodes, *_ in known], probability, strict=True)))


MOVES = {
    "nodes of level 0": (2, [[0]]),
    "nodes of level 1": (2, [[1]]),
    "rules of level 0": (2, [[-1]]),
    "nodes of level 2": (3, [[2]]),
    "rules of level 1": (3, [[-2]]),
    "nodes of level 1 by one feature": (2, [[GROUPS + 1]]),
    "all": (2, default_moves(2, 0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all"], MOVES, few=3))
def test_accepted_proposals_keep_the_enumerated_law_of_counts(name):
    assert law_after(*MOVES[name]) > ep.FALSE_ALARM


def accept_everything(gain, slope, precision, before, after):
    return jnp.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", few_of(MOVES, 3))
def test_proposals_that_expand_twice_keep_the_enumerated_law(name):
    assert law_after(*MOVES[name], twice=True) > ep.FALSE_ALARM


@pytest.mark.slow
def test_proposals_that_expand_twice_notice_a_wrong_ratio(monkeypatch):
    monkeypatch.setattr(any_likelihood, "_log_ratio", half_the_gain)
    assert law_after(*MOVES["all"], sweeps=12, twice=True) < ep.FALSE_ALARM


@pytest.mark.slow
def test_large_counts_and_far_levels_are_found():
    """The second expansion is what makes trees of such counts move."""
    X, _, _, true = table(200)
    y = np.random.default_rng(0).poisson(np.exp(true + 5))

    def model(X, y):
        f = numpyro.sample("f", TreeSum(X, trees=100))
        numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)

    mcmc = MCMC(TreeGibbs(NUTS(model)), num_warmup=200, num_samples=100, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    assert np.sqrt(np.mean((mcmc.get_samples()["f"].mean(axis=0) - true - 5) ** 2)) < 0.1
    assert mcmc.get_extra_fields()["tree_acceptance"].mean() > 0.5


def favour_large_values(gain, slope, precision, before, after):
    return half_the_gain(2 * gain, slope, precision, before, after) + jnp.sum(after - before)


def half_the_gain(gain, slope, precision, before, after):
    return 0.5 * gain - jnp.sum((after - before) * (slope - 0.5 * precision * (after + before)))


@pytest.mark.parametrize("wrong", slow_but([half_the_gain], [accept_everything, half_the_gain]))
def test_a_wrong_acceptance_ratio_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr(any_likelihood, "_log_ratio", wrong)
    assert law_after(*MOVES["all"], sweeps=12) < ep.FALSE_ALARM


# ----------------------------------------------------------------------- sums, by Geweke's test

LIKELIHOODS = {
    "normal": (lambda y, f: -0.5 * ((y - f) / 0.8) ** 2, lambda rng, f: rng.normal(f, 0.8)),
    "counts": (log_poisson, lambda rng, f: rng.poisson(np.exp(f + OFFSET))),
    "Student-t": (
        lambda y, f: -2.5 * jnp.log1p(((y - f) / 0.5) ** 2 / 4),
        lambda rng, f: f + 0.5 * rng.standard_t(4, len(f)),
    ),
    "labels": (
        lambda y, f: y * f - jnp.logaddexp(0.0, f),
        lambda rng, f: rng.random(len(f)) < 1 / (1 + np.exp(-f)),
    ),
}


def as_sum(state):
    """The trees of a state of `AdditiveKernel`, and their sum."""
    return SumState(*(jnp.asarray(part[0]) for part in state[:2])), jnp.asarray(-state.left[0])


def describe(kernel, trees, f):
    uses = kernel.rows.feature[np.asarray(trees.rule)[np.asarray(trees.rule) >= 0]]
    f = np.asarray(f)
    return [np.sum(np.asarray(trees.rule) >= 0), f[0], f.std(), np.sum(uses == 0)]


@cache
def small_kernel(sparsity=None):
    rng = np.random.default_rng(3)
    design = Design.from_matrix(rng.integers(0, 4, (14, 3)).astype(float))
    prior = AdditivePrior(
        0.7, 0.5, num_trees=2, max_depth=3, min_leaf=1, beta=1.0, sparsity=sparsity
    )
    return AdditiveKernel(prior, design, np.zeros(14))


def prior_and_law_after(name, replications, sweeps=4, sparsity=None):
    """Draw from the prior, simulate targets, move: two samples of one law (Geweke 2004)."""
    log_density, simulate = LIKELIHOODS[name]
    kernel, rng = small_kernel(sparsity), np.random.default_rng(5)
    sweep = TreeSweep(kernel.prior, kernel.design, kernel.moves)

    @jax.jit
    def move(trees, f, weight, y, key):
        redraw = redraw_all if name == "normal" else redraw_each
        numbers, own = jax.random.split(key)
        trees, f = redraw(sweep, partial(log_density, y), f, trees, weight, numbers)[:2]
        return trees, f, sweep.draw_feature_weight(own, trees.rule, weight)

    before, after = [], []
    for number in range(replications):
        before.append(describe(kernel, *as_sum(ap.prior_state(kernel, rng))))
        state = ap.prior_state(kernel, rng)
        (trees, f), weight = as_sum(state), jnp.asarray(state.feature_weight)
        y = jnp.asarray(simulate(rng, np.asarray(f)), float)
        for key in jax.random.split(jax.random.key(number), sweeps):
            trees, f, weight = move(trees, f, weight, y, key)
        after.append(describe(kernel, trees, f))
    return np.array(before), np.array(after)


def least_p_value(before, after):
    columns = range(before.shape[1])
    return min(
        stats.ks_2samp(before[:, j], after[:, j], method="asymp").pvalue for j in columns
    ) * len(columns)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["counts"], LIKELIHOODS))
def test_redraws_and_the_model_are_of_one_law(name):
    assert least_p_value(*prior_and_law_after(name, 600)) > 1e-4


@pytest.mark.slow
def test_redraws_under_sparse_weights_and_the_model_are_of_one_law():
    assert least_p_value(*prior_and_law_after("labels", 600, sparsity=1.0)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counts", "Student-t"])
def test_sums_of_another_law_are_noticed(name, monkeypatch):
    monkeypatch.setattr(any_likelihood, "_log_ratio", accept_everything)
    assert least_p_value(*prior_and_law_after(name, 600)) < 1e-4


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_kernel_finds_out_where_the_conditional_law_is_normal(name):
    y = jnp.arange(5.0)
    found = is_normal(partial(LIKELIHOODS[name][0], y), jax.random.key(0), 5)
    assert found == (name == "normal")


@pytest.mark.parametrize(
    "terms",
    [
        lambda f: -0.5 * (f[1:] - f[:-1]) ** 2,  # rows are not apart
        lambda f: -jnp.abs(f),  # no curvature
        lambda f: jnp.where(jnp.abs(f) < 1, -0.5 * f**2, 0.5 - jnp.abs(f)),  # of two pieces
        lambda f: 0.5 * f**2,  # no maximum
        lambda f: jnp.where(jnp.arange(6) < 3, -0.5 * f**2, 3 * f),  # some rows have a slope alone
        lambda f: jnp.where(jnp.arange(6) < 3, -5e5 * f**2, -jnp.logaddexp(0.0, f)),
    ],
    ids=["chain", "Laplace", "Huber", "convex", "linear rows", "rows that say little"],
)
def test_quadratics_of_other_kinds_are_no_normal_laws(terms):
    assert not is_normal(terms, jax.random.key(0), 6)


def test_rows_that_are_masked_are_no_obstacle():
    seen = jnp.array([1.0, 0.0, 1.0])
    assert is_normal(lambda f: seen * -0.5 * (f - 2) ** 2, jax.random.key(0), 3)


# ------------------------------------------------------------------------------ inside NumPyro


def counts(X, exposure, y=None):
    f = numpyro.sample("f", TreeSum(X, trees=20, max_depth=2))
    r = numpyro.sample("r", dist.Exponential(0.5))
    numpyro.deterministic("rate", jnp.exp(f))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", dist.NegativeBinomial2(exposure * jnp.exp(f), r), obs=y)


def table(num_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(num_rows, 2))
    exposure = rng.uniform(0.5, 3, num_rows)
    f = np.where(X[:, 0] < 0.5, -0.5, 1.5)
    y = rng.poisson(exposure * np.exp(f) * rng.gamma(4, 1 / 4, num_rows))
    return X, exposure, y, f


@pytest.fixture(scope="module")
def fitted():
    X, exposure, y, _ = table()
    kernel = TreeGibbs(NUTS(counts))
    mcmc = MCMC(
        kernel,
        num_warmup=150,
        num_samples=100,
        num_chains=2,
        progress_bar=False,
        chain_method="vectorized",
    )
    mcmc.run(jax.random.key(0), X, exposure, y)
    return kernel, mcmc


@pytest.mark.slow
def test_draws_are_those_of_a_numpyro_run(fitted):
    _, mcmc = fitted
    samples = mcmc.get_samples(group_by_chain=True)
    shapes = {name: draws.shape for name, draws in samples.items()}
    assert shapes == {"f": (2, 100, 60), "r": (2, 100), "rate": (2, 100, 60)}
    np.testing.assert_allclose(samples["rate"], np.exp(samples["f"]), rtol=1e-5)
    mean, true = samples["f"].mean(axis=(0, 1)), table()[3]
    assert np.corrcoef(mean, true)[0, 1] > 0.9
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["tree_acceptance"].shape == (2, 100, 1)
    assert fields["tree_acceptance"].mean() > 0.5


@pytest.mark.slow
def test_sums_at_the_training_rows_are_the_draws_and_predictive_takes_new_ones(fitted):
    kernel, mcmc = fitted
    X, exposure, *_ = table()
    samples = kernel.samples_at(mcmc, f=X)
    np.testing.assert_allclose(samples["f"], mcmc.get_samples()["f"], atol=1e-5)
    assert kernel.samples_at(mcmc, group_by_chain=True, f=X[:3])["f"].shape == (2, 100, 3)
    samples = kernel.samples_at(mcmc, f=X[:7])
    drawn = Predictive(counts, samples)(jax.random.key(1), X[:7], exposure[:7])
    assert drawn["y"].shape == (200, 7)
    with pytest.raises(ValueError, match="rows for the sums"):
        kernel.samples_at(mcmc, g=X)


@pytest.mark.slow
def test_arviz_reads_a_run(fitted):
    labelled = az.from_numpyro(fitted[1], log_likelihood=True)
    assert labelled["log_likelihood"]["y"].shape == (2, 100, 60)
    assert labelled.sample_stats["tree_acceptance"].shape == (2, 100, 1)
    assert set(labelled.posterior.data_vars) == {"f", "r", "rate"}


def test_the_prior_is_drawn_by_predictive():
    X, exposure, *_ = table()
    drawn = Predictive(counts, num_samples=40)(jax.random.key(0), X, exposure)
    assert drawn["f"].shape == (40, 60)
    assert drawn["y"].shape == (40, 60)
    assert 0.8 < drawn["f"].std() < 2.5  # the scale is 1.5


@pytest.mark.slow
def test_draws_from_the_prior_have_the_scale_that_was_asked_for():
    X = table()[0]
    drawn = TreeSum(X, trees=10, scale=2.0).sample(jax.random.key(0), (800,))
    assert stats.kstest(drawn[:, 5] / 2.0, "norm", method="asymp").pvalue > 1e-4
    assert stats.kstest(drawn[:, 5] / 1.2, "norm", method="asymp").pvalue < 1e-4  # the twin


@pytest.mark.slow
def test_chains_run_one_after_the_other():
    X, exposure, y, _ = table(30)
    kernel = TreeGibbs(NUTS(counts))
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=20,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, exposure, y)
    f = mcmc.get_samples(group_by_chain=True)["f"]
    assert f.shape == (2, 20, 30)
    assert not np.array_equal(f[0], f[1])
    np.testing.assert_allclose(kernel.samples_at(mcmc, True, f=X)["f"], f, atol=1e-5)


@pytest.mark.slow
def test_chains_run_in_parallel_over_devices(tmp_path):
    import subprocess
    import sys

    code = """
import numpyro
numpyro.set_host_device_count(2)
import jax, numpy as np, jax.numpy as jnp, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from bdtppl import TreeGibbs, TreeSum
X = np.random.default_rng(0).uniform(size=(40, 2))
y = (X[:, 0] > 0.5).astype(float)
def model(X, y):
    f = numpyro.sample("f", TreeSum(X, trees=10))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(f, s), obs=y)
mcmc = MCMC(TreeGibbs(NUTS(model)), num_warmup=30, num_samples=30, num_chains=2,
            chain_method="parallel", progress_bar=False)
mcmc.run(jax.random.key(0), X, y)
f = mcmc.get_samples(group_by_chain=True)["f"]
assert jax.local_device_count() == 2 and f.shape == (2, 30, 40), f.shape
assert not np.array_equal(f[0], f[1])
"""
    script = tmp_path / "parallel.py"
    script.write_text(code)
    subprocess.run([sys.executable, str(script)], check=True, timeout=600)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (lambda X: numpyro.sample("a", dist.Normal()), ValueError, "no TreeSum"),
        (
            lambda X: numpyro.sample("f", TreeSum(X).expand([2]).to_event(1)),
            ValueError,
            "one site for each sum",
        ),
        (
            lambda X: numpyro.sample("f", TreeSum(X[:7], min_leaf=5)),
            ValueError,
            "too few for two leaves",
        ),
    ],
    ids=["none", "expanded", "few rows"],
)
def test_models_that_it_cannot_sample_are_refused(model, error, words):
    mcmc = MCMC(TreeGibbs(NUTS(model)), num_warmup=1, num_samples=1, progress_bar=False)
    X = table()[0]
    for _ in range(2):  # a second try is refused as the first one is
        with pytest.raises(error, match=words):
            mcmc.run(jax.random.key(0), X)


def test_other_kernels_and_traced_tables_are_refused():
    X, exposure, y, _ = table()
    mcmc = MCMC(NUTS(counts), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(NotImplementedError, match="TreeGibbs"):
        mcmc.run(jax.random.key(0), X, exposure, y)
    with pytest.raises(TypeError, match="traces"):
        jax.jit(lambda X: TreeSum(X).event_shape[0] + X)(jnp.asarray(X))
    with pytest.raises(ValueError, match="made from a model"):
        TreeGibbs(NUTS(potential_fn=lambda z: z**2))
    mcmc = MCMC(TreeGibbs(NUTS(counts)), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match="init_params"):
        mcmc.run(jax.random.key(0), X, exposure, y, init_params={"f": np.zeros(60)})


# ------------------------------------------------------- the kernel and all else, by Geweke's test


LOG_MEAN = 2.0


def negative_binomial(X, y=None):
    f = numpyro.sample("f", TreeSum(X, trees=2, scale=0.9, max_depth=3, min_leaf=1, beta=1.0))
    r = numpyro.sample("r", dist.Gamma(4.0, 2.0))
    mu = numpyro.sample("mu", dist.Normal(LOG_MEAN, 2.0))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(mu + f), r), obs=y)


def prior_and_kernel(replications, sweeps=4):
    rng = np.random.default_rng(6)
    X = rng.integers(0, 4, (14, 3)).astype(float)
    kernel = TreeGibbs(NUTS(negative_binomial, step_size=0.5, adapt_step_size=False))
    start = kernel.init(jax.random.key(0), 0, None, (X, np.ones(14)), {})
    problem = TreeSum(X, trees=2, scale=0.9, max_depth=3, min_leaf=1, beta=1.0).problem
    own = AdditiveKernel(problem.prior, problem.design, np.zeros(14))
    move = jax.jit(lambda state, y: kernel.sample(state, (X, y), {}))
    before, after = [], []
    for number in range(replications):
        trees, f = as_sum(ap.prior_state(own, rng))
        before.append([*describe(own, trees, f), rng.gamma(4, 1 / 2), rng.normal(LOG_MEAN, 2)])
        trees, f = as_sum(ap.prior_state(own, rng))
        r, mu = rng.gamma(4, 1 / 2), rng.normal(LOG_MEAN, 2)
        y = jnp.asarray(rng.poisson(np.exp(mu + f) * rng.gamma(r, 1 / r, 14)))
        z = {"r": jnp.log(jnp.asarray(r)), "mu": jnp.asarray(mu)}
        state = start._replace(
            z={"f": f, **z},
            inner=start.inner._replace(
                z={**start.inner.z, **z}, rng_key=jax.random.key(10_000 + number)
            ),
            trees={"f": start.trees["f"]._replace(rule=trees.rule, value=trees.value)},
            rng_key=jax.random.key(number),
        )
        for _ in range(sweeps):
            state = move(state, y)
        drawn = SumState(*state.trees["f"])
        others = float(jnp.exp(state.z["r"])), float(state.z["mu"])
        after.append([*describe(own, drawn, state.z["f"]), *others])
    return np.array(before), np.array(after)


@pytest.mark.slow
def test_the_kernel_with_nuts_and_the_model_are_of_one_law():
    assert least_p_value(*prior_and_kernel(500)) > 1e-4


def draws_without_data(likelihood):
    """Draw f at a row 1,500 times, thinned, where targets say nothing."""
    X = table(40)[0]

    def model(X):
        f = numpyro.sample("f", TreeSum(X, trees=4, scale=0.9))
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        numpyro.sample("y", likelihood(mu + f), obs=np.ones(len(X)))

    kernel = TreeGibbs(NUTS(model))
    state = kernel.init(jax.random.key(0), 100, None, (X,), {})

    def step(state, _):
        state = kernel.sample(state, (X,), {})
        return state, state.z["f"][7]

    found = jax.jit(lambda state: jax.lax.scan(step, state, None, length=15_000)[1])(state)
    return np.asarray(found)[::10]


VAGUE = {
    "normal": lambda f: dist.Normal(f, 1e3),
    "Student-t": lambda f: dist.StudentT(4.0, f, 1e3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VAGUE)
def test_without_data_the_kernel_draws_from_the_prior(name):
    found = draws_without_data(VAGUE[name])
    assert stats.kstest(found / 0.9, "norm", method="asymp").pvalue > 1e-4


def test_a_level_weighs_as_the_prior_of_the_shifted_leaf_values_does():
    values, by, scale = np.array([0.3, -1.1, 0.4]), 0.7, 0.9
    level = tree_gibbs._Level(values.sum(), len(values), 2, 1 / scale**2)
    shifted = numpyro.handlers.substitute(level.sample, {level.site("f"): 2 * by})
    factor = numpyro.handlers.trace(shifted).get_trace("f")["_f_level_prior"]
    prior = stats.norm(scale=scale)
    expected = (prior.logpdf(values + by) - prior.logpdf(values)).sum()
    assert factor["fn"].log_factor == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_levels_that_forget_the_prior_of_leaf_values_are_noticed(monkeypatch):
    right = tree_gibbs._Level.__new__

    def flat(cls, total, count, num_trees, precision):
        return right(cls, total, count, num_trees, 0.0)

    monkeypatch.setattr(tree_gibbs._Level, "__new__", flat)
    found = draws_without_data(VAGUE["normal"])
    assert stats.kstest(found / 0.9, "norm", method="asymp").pvalue < 1e-4


@pytest.mark.slow
def test_supports_and_deterministic_sites_that_follow_from_others_do_no_harm():
    """The terms of the likelihood once missed f where both were in one model."""
    X, exposure, y, true = table(100)

    def model(X, y):
        f = numpyro.sample("f", TreeSum(X, trees=20))
        a = numpyro.sample("a", dist.Exponential(1.0))
        numpyro.sample("u", dist.Uniform(0.0, a))
        rate = numpyro.deterministic("rate", jnp.exp(f))
        numpyro.sample("y", dist.Poisson(exposure * rate), obs=y)

    kernel = TreeGibbs(NUTS(model))
    mcmc = MCMC(kernel, num_warmup=150, num_samples=150, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    assert np.corrcoef(mcmc.get_samples()["f"].mean(axis=0), true)[0, 1] > 0.9


@pytest.mark.slow
def test_double_precision_and_laplace_laws_work():
    X, _, _, true = table(60)
    y = 2 * true + np.random.default_rng(0).laplace(size=60)

    def model(X, y):
        f = numpyro.sample("f", TreeSum(X, trees=20))
        numpyro.sample("y", dist.Laplace(2 * f, 1.0), obs=y)

    with jax.enable_x64(True):
        kernel = TreeGibbs(NUTS(model))
        mcmc = MCMC(kernel, num_warmup=200, num_samples=200, progress_bar=False)
        mcmc.run(jax.random.key(0), X, y)
        f = np.asarray(mcmc.get_samples()["f"])
        again = kernel.samples_at(mcmc, f=X)["f"]
    assert f.dtype == np.float64
    np.testing.assert_allclose(f, again, atol=1e-10)
    assert np.corrcoef(f.mean(axis=0), true)[0, 1] > 0.9


@pytest.mark.slow
def test_a_kernel_answers_for_its_last_run_alone(fitted):
    X, exposure, *_ = table()
    kernel = TreeGibbs(NUTS(counts))
    with pytest.raises(ValueError, match="has not run"):
        kernel.samples_at(fitted[1], f=X)
    kernel.init(jax.random.key(0), 0, None, (X[::-1].copy(), exposure, np.ones(60)), {})
    with pytest.raises(ValueError, match="last run"):
        kernel.samples_at(fitted[1], f=X)


@pytest.mark.slow
def test_an_intercept_beside_a_sum_mixes():
    X, exposure, y, _ = table(100)

    def model(X, exposure, y):
        f = numpyro.sample("f", TreeSum(X, trees=20))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        numpyro.sample("y", dist.NegativeBinomial2(exposure * jnp.exp(mu + f), 4.0), obs=y)

    mcmc = MCMC(
        TreeGibbs(NUTS(model)),
        num_warmup=300,
        num_samples=400,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, exposure, y)
    assert az.rhat(np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])) < 1.1


@pytest.mark.slow
def test_a_kernel_with_a_wrong_acceptance_ratio_is_noticed(monkeypatch):
    monkeypatch.setattr(any_likelihood, "_log_ratio", favour_large_values)
    assert least_p_value(*prior_and_kernel(800)) < 1e-4


@pytest.mark.slow
def test_with_normal_targets_it_has_the_posterior_of_the_estimator():
    """Two samples of sigma, of f at three rows and of the leaves; chains are thinned."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(40, 3))
    y = 2 * (X[:, 0] > 0.4) + 0.5 * rng.normal(size=40)
    own = BARTRegressor(trees=8, chains=4, warmup=300, draws=250, thin=20, random_state=0)
    own.fit(X, y)
    prior, posterior = own.prior_, own.posterior_
    scale = float(prior.leaf_scale) * np.sqrt(8)

    def model(X, y):
        f = numpyro.sample("f", TreeSum(X, trees=8, scale=scale))
        degrees = float(prior.noise_degrees)
        v = numpyro.sample(
            "v", dist.InverseGamma(degrees / 2, degrees * float(prior.noise_scale) / 2)
        )
        numpyro.sample("y", dist.Normal(float(prior.offset) + f, jnp.sqrt(v)), obs=y)

    mcmc = MCMC(
        TreeGibbs(NUTS(model)),
        num_warmup=300,
        num_samples=5000,
        thinning=20,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, y)
    samples = mcmc.get_samples()
    leaves = 8 + (mcmc.get_extra_fields()["trees"]["f"].rule >= 0).sum((1, 2))
    found = [samples["v"], leaves, *(samples["f"][:, :3].T + float(prior.offset))]
    expected = [
        posterior.variance.ravel(),
        posterior.num_leaves.ravel(),
        *own.mean_draws(X[:3]).reshape(-1, 3).T,
    ]
    p_values = [
        stats.ks_2samp(np.asarray(one), np.asarray(other), method="asymp").pvalue
        for one, other in zip(found, expected, strict=True)
    ]
    assert min(p_values) * len(p_values) > 1e-4
    assert stats.ks_2samp(np.asarray(found[0]), 1.25 * expected[0], method="asymp").pvalue < 1e-4


@pytest.mark.slow
@pytest.mark.runs_long
def test_bands_of_simulated_counts_cover():
    """90 % bands of f and r over 40 simulated tables; binomial bounds at a false alarm of 1e-3."""
    X, exposure, *_ = table(80)
    kernel = TreeGibbs(NUTS(counts))
    prior = Predictive(counts, num_samples=40)(jax.random.key(2), X, exposure)

    def run(state, y):
        def step(state, _):
            state = kernel.sample(state, (X, exposure, y), {})
            return state, (state.z["f"], state.z["r"])

        return jax.lax.scan(step, state, None, length=900)[1]

    start = kernel.init(jax.random.key(0), 300, None, (X, exposure, np.ones(80)), {})
    run, inside, inside_r = jax.jit(run), [], []
    for k in range(40):
        f, r = run(
            start._replace(
                rng_key=jax.random.key(k),
                inner=start.inner._replace(rng_key=jax.random.key(1000 + k)),
            ),
            prior["y"][k],
        )
        low, high = np.quantile(np.asarray(f)[300:], [0.05, 0.95], axis=0)
        inside.append(np.mean((low < prior["f"][k]) & (prior["f"][k] < high)))
        low, high = np.quantile(np.asarray(r)[300:], [0.05, 0.95])
        inside_r.append(low < np.log(prior["r"][k]) < high)
    assert 0.85 < np.mean(inside) < 0.95
    assert stats.binomtest(int(np.sum(inside_r)), 40, 0.9).pvalue > 1e-3
