"""Sums of trees: each move against enumeration, the kernel against the prior, and the densities."""

from collections import Counter
from dataclasses import replace

import additive_problems as ap
import exact_problems as ep
import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln
from tiers import few_of, slow_but

from bdtppl.inference.additive import kernel as kernel_module
from bdtppl.inference.additive import kernels, linear
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.inference.additive.kernels import GROUPS
from bdtppl.inference.additive.linear import LinearTerm
from bdtppl.inference.additive.monotone import slice_within
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.prior_draws import draw_sum_prior
from bdtppl.inference.additive.sample import SumChains
from bdtppl.inference.run import run
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import (
    AdditivePrior,
    additive_log_joint,
    class_probabilities,
    sum_of_trees,
)
from bdtppl.models.hard.linear import LinearColumns

KINDS = ("plain", "missing", "weights")
# Levels, trees, cuts, features, and moves.
CASES = {
    "nodes of level 0": (2, 1, 3, 3, [[0]]),
    "nodes of level 1": (2, 1, 3, 3, [[1]]),
    "nodes of level 0 by one feature": (2, 1, 3, 3, [[GROUPS]]),
    "nodes of level 1 by one feature": (2, 1, 3, 3, [[GROUPS + 1]]),
    "nodes of level 1 over blocks": (2, 1, 3, 3, [[2 * GROUPS + 1]]),
    "rules of level 0": (2, 1, 3, 3, [[-1]]),
    "rules of level 0 over blocks": (2, 1, 3, 3, [[-1 - 2 * GROUPS]]),
    "nodes of level 2": (3, 1, 2, 2, [[2]]),
    "nodes of level 2 by one feature": (3, 1, 2, 2, [[GROUPS + 2]]),
    "rules of level 1": (3, 1, 2, 2, [[-2]]),
    "rules of level 0 over three levels": (3, 1, 2, 2, [[-1]]),
    "all moves of two trees": (1, 2, 3, 3, None),
}
OF_ALL_KINDS = (
    "nodes of level 1",
    "nodes of level 1 by one feature",
    "rules of level 0",
    "all moves of two trees",
)
STARTS = 3000


def law_after(kind, case, starts=STARTS, **changes):
    levels, num_trees, cuts, features, moves = CASES[case]
    of = ap.problem(kind, levels, num_trees, cuts=cuts, features=features)
    ended, expected = ap.after_moves(of, moves, starts, **changes)
    return ep.g_test(ended, expected)


@pytest.mark.parametrize(
    ("kind", "case"),
    slow_but(
        [
            ("plain", "all moves of two trees"),
            ("plain", "nodes of level 1 over blocks"),
            ("columns", "nodes of level 1 by one feature"),
        ],
        [("plain", case) for case in CASES]
        + [(kind, case) for kind in KINDS[1:] for case in OF_ALL_KINDS],
        few=9,
    ),
)
def test_each_move_keeps_the_enumerated_law(kind, case):
    assert law_after(kind, case) > ep.FALSE_ALARM


def first_feature_favoured(tables):
    """Weigh rules as the prior does not."""
    rule = tables.rule.copy()
    rule[: len(rule) // 3] *= 30
    return tables._replace(rule=rule)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    slow_but(["all moves of two trees"], [name for name in CASES if "by one" not in name], few=3),
)
def test_a_wrong_weight_of_rules_is_noticed_in_each_move(case):
    starts = 4 * STARTS if case == "rules of level 1" else STARTS
    assert law_after("plain", case, starts, change=first_feature_favoured) < ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("case", "least"), [("by one feature", 1), ("over blocks", 2)])
def test_leaves_that_forget_the_chance_of_their_block_are_noticed(case, least):
    """Without that factor, splits by one of three features are a third as likely."""

    def forgotten(tables):
        return tables._replace(log_split=tables.log_split + np.log(least / 3))

    assert law_after("plain", f"nodes of level 1 {case}", change=forgotten) < ep.FALSE_ALARM


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: tables._replace(precision=6 * tables.precision),
        lambda tables: tables._replace(log_split=tables.log_split - 3.0),
    ],
    ids=["precision", "splits"],
)
@pytest.mark.slow
def test_wrong_values_and_splits_are_noticed(change):
    assert law_after("plain", "nodes of level 0", change=change) < ep.FALSE_ALARM


@pytest.mark.slow
def test_values_of_leaves_follow_their_conditional_law():
    """Given the structure, values are normal: means and covariance of a sum of two trees."""
    of = ap.problem("weights", 1, 2)
    known, kernel = ap.law(of), of.kernel([[0]])
    k = max(range(len(known.structures)), key=lambda k: known.probability[k])
    structure = known.structures[k]
    rng, room, found = np.random.default_rng(0), kernel.make_room(), []
    prior = ap.prior_of(of, kernel)
    state = ap.as_state(
        of, kernel, structure, known.leaves[k], ap.values_given(of, known.leaves[k], rng)
    )
    for _ in range(4000):
        state = ap.moved(kernel, state, prior, room, rng)
        if ap.structure_of(kernel, state.rule[0]) == structure:
            found.append(ap.by_tree(kernel, state.rule[0], state.value[0]))
    fitted = np.sum(found, axis=1)[::4]
    exact = [np.sum(ap.fitted(of, known, k, rng), axis=0) for _ in range(len(fitted))]
    for row in range(fitted.shape[1]):
        assert stats.ks_2samp(fitted[:, row], np.array(exact)[:, row], method="asymp").pvalue > 1e-5


# -------------------------------------------------------------------------- monotone trees

MONOTONE = {  # kind of table, levels, and moves
    "nodes of level 0": ("plain", 2, [[0]]),
    "nodes of level 1 by one feature": ("weights", 2, [[GROUPS + 1]]),
    "rules of level 0": ("missing", 2, [[-1]]),
    "several moves a visit": ("missing", 2, [[0, 1, -1]]),
}


def monotone_problem(kind, levels):
    of = ap.problem(kind, levels, 1, cuts=2, features=2)
    return of._replace(prior=replace(of.prior, monotone=(1, -1)))  # the second is against y


@pytest.mark.parametrize("case", slow_but(["several moves a visit"], list(MONOTONE), few=2))
def test_monotone_trees_keep_their_enumerated_law(case):
    kind, levels, moves = MONOTONE[case]
    of = monotone_problem(kind, levels)
    assert ep.g_test(*ap.after_moves(of, moves, STARTS)) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("case", MONOTONE)
def test_trees_without_their_order_are_noticed(case):
    kind, levels, moves = MONOTONE[case]
    of = monotone_problem(kind, levels)
    starts = 4 * STARTS if moves == [[-1]] else STARTS
    assert ep.g_test(*ap.after_moves(of, moves, starts, keeps_order=False)) < ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "missing"])
def test_monotone_chains_reach_their_enumerated_law(kind):
    of = monotone_problem(kind, 2)
    kernel, known, rng = of.kernel(None), ap.law(of), np.random.default_rng(4)
    room, tables, ended = kernel.make_room(), ap.prior_of(of, kernel), Counter()
    for _ in range(1500):
        state = kernel.init()._replace(variance=ap.VARIANCE)
        for _ in range(40):
            ap.moved(kernel, state, tables, room, rng)
        assert ap.keeps_order(kernel, state.rule[0, 0], state.value[0, 0])
        ended[ap.structure_of(kernel, state.rule[0])] += 1
    expected = dict(zip(known.structures, known.probability.tolist(), strict=True))
    assert ep.g_test(ended, expected) > ep.FALSE_ALARM


@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (1.5, 1.7), (-9, -2)])
def test_moves_within_bounds_keep_the_truncated_normal_law(low, high):
    rng = np.random.default_rng(0)
    law = stats.truncnorm((low - 0.3) / 0.7, (high - 0.3) / 0.7, 0.3, 0.7)
    start = law.rvs(2000, random_state=rng)
    ended = [slice_within(x, 0.3, 0.7, low, high, rng) for x in start]
    assert stats.kstest(ended, law.cdf).pvalue > 1e-5
    ended = [slice_within(x, 0.3, 1.4, low, high, rng) for x in [*start, *start]]  # the twin
    if high - low > 1:
        assert stats.kstest(ended, law.cdf).pvalue < 1e-5


# ----------------------------------------------------------------------- trees of variances


def p_value_of_noise_trees(starts, change=lambda tables: tables):
    """Start at enumerated trees of variances given the errors, redraw them thrice, and count."""
    of = ap.problem("weights", 2, 1, cuts=2, features=2)
    of = of._replace(prior=replace(of.prior, beta=0.3, noise_trees=1, noise_degrees=5.0))
    kernel, every = of.kernel(None), ap.trees(of)
    kernel = replace(kernel, moves=[[0]])
    rng, room = np.random.default_rng(8), kernel.make_room()
    start, repeats = kernel.init(), of.design.weights
    degrees, scale = map(float, of.prior.noise_leaf)

    def log_marginal(rows):
        half = (degrees + repeats[rows].sum()) / 2
        squares = (repeats * start.left[0] ** 2)[rows].sum()
        log_prior = degrees / 2 * np.log(degrees * scale / 2) - gammaln(degrees / 2)
        return log_prior + gammaln(half) - half * np.log((degrees * scale + squares) / 2)

    logs = np.array([chance + sum(map(log_marginal, leaves)) for _, chance, leaves in every])
    probability = np.exp(logs - np.logaddexp.reduce(logs))
    tables = change(ap.prior_of(of, kernel))
    ended: Counter = Counter()
    for k in rng.choice(len(every), starts, p=probability):
        nodes, _, leaves = every[k]
        written = ap.as_state(of, kernel, [nodes], [leaves], [np.ones(len(leaves))])
        state = kernel.init()._replace(noise_rule=written.rule[0], noise_value=np.ones((1, 7)))
        for _ in range(3):
            kernel._draw_noise(rng, state, tables, room)
        ended[ap.structure_of(kernel, state.noise_rule)[0]] += 1
    expected = {nodes: p for (nodes, *_), p in zip(every, probability.tolist(), strict=True)}
    return ep.g_test(ended, expected)


def test_trees_of_variances_have_their_enumerated_law():
    assert p_value_of_noise_trees(2000) > ep.FALSE_ALARM


def test_leaves_of_variances_that_weigh_wrongly_are_noticed():
    def once(tables):
        """A split counts one of its leaves, as far as that can be said of both levels at once."""
        return tables._replace(log_split=tables.log_split - tables.log_stop[1])

    assert p_value_of_noise_trees(2000, once) < ep.FALSE_ALARM


# --------------------------------------------------------------------------- the whole kernel


def prior_and_law_after(
    sweeps, replications, change=lambda state: state, *, num_rows=14, **settings
):
    """Draw from the prior, simulate targets, move: two samples of one law (Geweke 2004)."""
    rng = np.random.default_rng(3)
    design = Design.from_matrix(rng.integers(0, 4, (num_rows, 3)).astype(float))
    common = {"num_trees": 2, "max_depth": 3, "min_leaf": 1, "beta": 1.0, "offset": 0.2}
    prior = AdditivePrior(0.7, 0.5, **(common | settings))
    kernel = AdditiveKernel(prior, design, np.zeros(num_rows, int))
    room = kernel.make_room()
    before, after = [], []
    for _ in range(replications):
        before.append(ap.numbers_of(kernel, ap.prior_state(kernel, rng)))
        state = ap.prior_state(kernel, rng)
        f = kernel.offsets - state.left
        if prior.link == "identity":
            noise = np.sqrt(kernel.variances(state)) * rng.normal(size=num_rows)
            y, target = f[0] + noise, f + noise - kernel.offsets
            state = state._replace(left=noise[None].copy(), target=target)
        else:
            running = np.cumsum(class_probabilities(prior.link, f), axis=1)[:, :-1]
            y = (rng.random((num_rows, 1)) >= running).sum(axis=1)
        observed = AdditiveKernel(prior, design, y)
        for _ in range(sweeps):
            state = change(observed.advance(rng, state, room))
        after.append(ap.numbers_of(observed, state))
    first = 0 if prior.link == "identity" else 1
    return np.array(before)[:, first:], np.array(after)[:, first:]


def least_p_value(before, after):
    columns = range(before.shape[1])
    return min(
        stats.ks_2samp(before[:, j], after[:, j], method="asymp").pvalue for j in columns
    ) * len(columns)


CHECKS = {
    "noise": {},
    "sparse": {"sparsity": 1.0},
    "variances": {"noise_trees": 2, "noise_degrees": 5.0},
    "variances that are known well": {"noise_trees": 2, "noise_degrees": 900.0},
    "probit": {"link": "probit"},
    "logit": {"link": "logit"},
    "softmax": {"link": "logit", "num_sums": 3, "offset": np.log([0.5, 0.3, 0.2])},
    "linear": {"linear_scale": 0.4},
    "linear logit": {"link": "logit", "linear_scale": 0.4},
    "leaf scale": {"draws_leaf_scale": True},
    "leaf scales of a softmax": {
        "draws_leaf_scale": True,
        "link": "logit",
        "num_sums": 3,
        "linear_scale": 0.4,
    },
    "groups": {"groups": (1, 2), "group_scale": 0.5},
    "groups of a probit": {
        "groups": (0,),
        "group_scale": 0.5,
        "link": "probit",
        "linear_scale": 0.4,
    },
    "more columns than rows": {"link": "logit", "linear_scale": 0.4, "num_rows": 5},
    "monotone": {"monotone": (1, -1, 0), "linear_scale": 0.4, "draws_leaf_scale": True},
    "monotone logit": {"monotone": (0, 1, 0), "linear_scale": 0.4, "link": "logit"},
    "offset of rows of a logit": {"offset_feature": 1, "offset_factor": 0.5, "link": "logit"},
    "offset of rows of a probit": {"offset_feature": 1, "offset_factor": 0.5, "link": "probit"},
}

BLOCKS = (
    "groups",
    "groups of a probit",
    "linear logit",
    "more columns than rows",
    "leaf scale",
    "leaf scales of a softmax",
    *list(CHECKS)[-4:],
)


def test_the_kernel_and_the_model_are_of_one_law():
    assert least_p_value(*prior_and_law_after(4, 300, sparsity=1.0)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", [*few_of(list(CHECKS)[:7], 3), *BLOCKS])
def test_the_kernel_and_each_model_are_of_one_law(name):
    assert least_p_value(*prior_and_law_after(4, 800, **CHECKS[name])) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "linear logit", "groups", "monotone"])
def test_a_linear_term_of_another_prior_is_noticed(name, monkeypatch):
    """Its coefficients vary as if their deviation were half as large."""
    right = LinearTerm.draw

    def halved(self, generator, target, precision, factor, deviation, before):
        return right(self, generator, target, precision, factor, deviation / 2, before)

    monkeypatch.setattr(LinearTerm, "draw", halved)
    assert least_p_value(*prior_and_law_after(4, 800, **CHECKS[name])) < 1e-4


@pytest.mark.slow
def test_leaf_scales_of_another_prior_are_noticed(monkeypatch):
    """Their number of leaves is twice as large."""
    right = kernel_module.draw_leaf_factors

    def doubled(generator, factors, squares, num_leaves, *rest):
        return right(generator, factors, squares, 2 * num_leaves, *rest)

    monkeypatch.setattr(kernel_module, "draw_leaf_factors", doubled)
    assert least_p_value(*prior_and_law_after(4, 1600, **CHECKS["leaf scale"])) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("what", ["trees", "coefficients"])
def test_lost_directions_are_noticed(what, monkeypatch):
    if what == "trees":

        def free(*given):
            generator, uniform = given[-1], given[-3]
            kernels.sweep(*given[:-2], generator.standard_normal((len(uniform), 15)))

        monkeypatch.setattr(kernel_module, "sweep_monotone", free)
    else:
        monkeypatch.setattr(LinearColumns, "signs", lambda self, direction: np.zeros(3, int))
    assert least_p_value(*prior_and_law_after(4, 800, **CHECKS["monotone"])) < 1e-4


def test_each_state_keeps_its_directions(monkeypatch):
    rng = np.random.default_rng(0)
    design = Design.from_matrix(rng.integers(0, 4, (10, 3)).astype(float))
    prior = AdditivePrior(0.7, 0.5, num_trees=3, **CHECKS["monotone"])
    kernel = AdditiveKernel(prior, design, rng.normal(size=10))

    def are_kept():
        state, room = kernel.init(), kernel.make_room()
        for _ in range(300):
            state = kernel.advance(rng, state, room)
            yield (state.linear[0] * prior.monotone >= 0).all()
            yield from map(ap.keeps_order, [kernel] * 3, state.rule[0], state.value[0])

    assert all(are_kept())
    right = kernel_module.draw_leaf_factors
    flips = lambda *given: right(*given[:-1], False)  # noqa: E731
    monkeypatch.setattr(kernel_module, "draw_leaf_factors", flips)
    assert not all(are_kept())  # the twin


class Given:
    """Random numbers that are given: their draws are a mean, or a root of a covariance."""

    def __init__(self, *normals):
        self.normals = [np.asarray(each) for each in normals]

    def standard_normal(self, size):
        return self.normals.pop(0)

    def standard_gamma(self, shape):
        return 1.0


@pytest.mark.parametrize(("num_rows", "is_fixed"), [(12, True), (12, False), (3, True), (3, False)])
def test_coefficients_have_the_mean_and_covariance_of_ridge_regression(
    num_rows, is_fixed, monkeypatch
):
    monkeypatch.setattr(linear, "_FEW_COLUMNS", 0)
    rng = np.random.default_rng(0)
    columns, target = rng.normal(size=(num_rows, 5)), rng.normal(size=num_rows)
    weights = rng.uniform(0.5, 2.0, num_rows)
    term = LinearTerm(columns, weights, 0.7)
    precision = None if is_fixed else rng.uniform(0.5, 2.0, num_rows)
    second = min(num_rows, 5) if is_fixed else num_rows * (num_rows < 5)

    def drawn(unit):
        own = np.eye(5 + second)[unit] if unit >= 0 else np.zeros(5 + second)
        given = Given(own[:5], own[5:])
        return term.draw(given, target, precision, 1.7, 0.6)[0]

    total = 1.7 * (weights if is_fixed else precision)
    covariance = np.linalg.inv(columns.T * total @ columns + np.eye(5) / 0.6**2)
    mean = covariance @ columns.T @ (total * target)
    np.testing.assert_allclose(drawn(-1), mean, rtol=1e-10)
    root = np.array([drawn(unit) - mean for unit in range(5 + second)])
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["probit", "logit"])
def test_lost_latent_variables_are_noticed(name, monkeypatch):
    """The targets of the sums are twice as far from 0 as they should be."""
    right = AdditiveKernel._draw_targets

    def doubled(self, generator, state, which):
        own = state.target[which] - state.left[which]
        precision = right(self, generator, state, which)
        state.target[which] *= 2
        state.left[which] = state.target[which] - own
        return precision

    monkeypatch.setattr(AdditiveKernel, "_draw_targets", doubled)
    assert least_p_value(*prior_and_law_after(4, 800, **CHECKS[name])) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHECKS if name.startswith("offset")])
def test_forgotten_offsets_of_rows_are_noticed(name, monkeypatch):
    right = AdditiveKernel.__post_init__

    def without(self):
        right(self)
        if self.y.any():  # the kernel that is given targets
            object.__setattr__(self, "offsets", np.full_like(self.offsets, self.prior.offset))

    monkeypatch.setattr(AdditiveKernel, "__post_init__", without)
    settings = CHECKS[name] | {"offset_factor": 2.0}
    assert least_p_value(*prior_and_law_after(4, 800, **settings)) < 1e-4


@pytest.mark.slow
def test_variances_of_another_prior_are_noticed(monkeypatch):
    right = kernel_module.noise_tables

    def other(*arguments):
        tables = right(*arguments)
        return tables._replace(rate=1.5 * tables.rate)

    monkeypatch.setattr(kernel_module, "noise_tables", other)
    assert least_p_value(*prior_and_law_after(4, 800, **CHECKS["variances"])) < 1e-4


@pytest.mark.slow
def test_noise_of_another_law_is_noticed():
    def smaller(state):
        return state._replace(variance=0.8 * state.variance)

    assert least_p_value(*prior_and_law_after(4, 800, smaller)) < 1e-4


def least_p_value_of_ranks(replications, wrong=1.0):
    """Simulation-based calibration (Talts et al. 2018); ``wrong`` multiplies the true variance."""
    rng = np.random.default_rng(11)
    matrix = rng.uniform(size=(40, 3))
    design = Design.from_matrix(matrix, bins=12)
    prior = AdditivePrior(0.6, 0.4, 0.0, num_trees=5, max_depth=3, min_leaf=2)
    ranks = []
    for number in range(replications):
        kernel = AdditiveKernel(prior, design, np.zeros(40))
        state = ap.prior_state(kernel, rng)
        noise = np.sqrt(wrong * state.variance) * rng.normal(size=40)
        kernel = AdditiveKernel(prior, design, prior.offset - state.left[0] + noise)
        chains = SumChains(kernel, chains=1, warmup=105, draws=99, thin=5)
        drawn = chains.result(run(chains, number))
        f = drawn.means(matrix[:3])[0]
        truth = [state.variance, *(prior.offset - state.left[0])[:3]]
        found = [drawn.variance[0], *f.T]
        ranks.append([np.sum(each < true) for each, true in zip(found, truth, strict=True)])
    counts = [np.bincount(rank // 10, minlength=10) for rank in np.array(ranks).T]
    return 4 * min(stats.chisquare(each).pvalue for each in counts)


@pytest.mark.slow
def test_ranks_of_simulated_parameters_are_uniform():
    assert least_p_value_of_ranks(100) > 1e-4


@pytest.mark.slow
def test_ranks_under_other_noise_are_not_uniform():
    assert least_p_value_of_ranks(15, wrong=3.0) < 1e-4


# ------------------------------------------------------------------------------- other answers


@pytest.mark.slow
@pytest.mark.parametrize("kind", few_of(KINDS, 2))
def test_draws_from_the_prior_are_those_of_a_plain_recursion(kind):
    of = ap.problem(kind, 3, 2, cuts=2, features=2)
    kernel = of.kernel(None)
    rng = np.random.default_rng(6)
    drawn = draw_sum_prior(rng, posterior_of(of, kernel, kernel.init()), 4000)
    seen = Counter(ap.structure_of(kernel, rule) for rule in drawn.rule[0, :, 0, :1])
    weight = {(nodes,): np.exp(chance) for nodes, chance, _ in ap.trees(of)}
    total = sum(weight.values())
    expected = {nodes: each / total for nodes, each in weight.items()}
    assert ep.g_test(seen, expected) > ep.FALSE_ALARM
    even = dict.fromkeys(expected, 1 / len(expected))
    assert ep.g_test(seen, even) < ep.FALSE_ALARM  # the twin
    f = drawn.means(of.design.matrix[:1])[0, :, 0]
    plain = [-ap.prior_state(kernel, rng).left[0, 0] + of.prior.offset for _ in range(500)]
    assert stats.ks_2samp(f, plain, method="asymp").pvalue > 1e-4


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"noise_trees": 3},
        {"linear_scale": 0.4},
        {"draws_leaf_scale": True},
        {"linear_scale": 0.4, "groups": (1, 2), "group_scale": 0.3},
        {"offset_feature": 1, "offset_factor": 0.5},
    ],
)
def test_the_log_joint_is_the_sum_of_its_densities(terms):
    of = ap.problem("missing", 2, 2)
    of = of._replace(prior=replace(of.prior, **terms))
    kernel = of.kernel(None)
    rng = np.random.default_rng(2)
    state = ap.prior_state(kernel, rng)
    posterior = posterior_of(of, kernel, state)
    drawn = posterior.trees(0, 0)
    expected = ap.log_joint(of, kernel, state)
    found = additive_log_joint(of.prior, of.design, of.y, drawn)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    f = sum_of_trees(drawn.trees, drawn.value, of.design.matrix)
    if drawn.linear is not None:
        f = f + drawn.linear @ ap.linear_columns(kernel).T
    np.testing.assert_allclose(f, -state.left, atol=1e-12)
    deviations = np.broadcast_to(posterior.deviations(of.design.matrix)[0, 0], len(of.y))
    np.testing.assert_allclose(deviations**2, kernel.variances(state), rtol=1e-12)
    means = posterior.means(of.design.matrix)[0, 0]
    np.testing.assert_allclose(means, f[0] + kernel.offsets[0], atol=1e-12)


def posterior_of(of, kernel, state) -> SumPosterior:
    return SumPosterior(
        prior=of.prior,
        design=of.design,
        y=of.y,
        rule=state.rule[None, None],
        value=state.value[None, None],
        variance=np.array([[state.variance]]),
        feature_weight=state.feature_weight[None, None],
        **{
            name: getattr(state, name)[None, None]
            for name, is_there in {
                "noise_rule": of.prior.noise_trees,
                "noise_value": of.prior.noise_trees,
                "linear": kernel.terms,
                "linear_deviation": kernel.terms,
                "leaf_scale": of.prior.draws_leaf_scale,
            }.items()
            if is_there
        },
    )


def test_rules_that_the_design_has_not_score_nothing():
    of = ap.problem("plain", 2, 1)
    kernel = of.kernel(None)
    state = kernel.init()
    state.rule[0, 0, 0] = 0
    drawn = posterior_of(of, kernel, state).trees(0, 0)
    assert np.isfinite(additive_log_joint(of.prior, of.design, of.y, drawn))
    drawn.trees.threshold[0, 0, 0] = 0.123
    assert additive_log_joint(of.prior, of.design, of.y, drawn) == -np.inf


def test_a_step_leaves_its_state_as_it_is_and_repeats():
    of = ap.problem("plain", 2, 2)
    kernel = of.kernel(None)
    state, info = kernel.step(jax.random.key(0), kernel.init())
    assert info.log_likelihood == kernel.log_likelihood(state)
    copy = [np.array(part) for part in state]
    first, second = (kernel.step(jax.random.key(1), state)[0] for _ in range(2))
    for part, kept in zip(state, copy, strict=True):
        np.testing.assert_array_equal(part, kept)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bins_of_a_group_go_where_their_rows_go():
    of = ap.problem("columns", 2, 1)
    rows = of.kernel(None).rows
    assert len(rows.set_rule) == 1 + 4  # two sets, with missing values on either side
    for rule, goes_left in zip(rows.set_rule[1:], rows.goes_left[1:], strict=True):
        group, bins = rows.group[rule], rows.bins[rows.feature[rule]].astype(int)
        expected = (bins <= rows.last[rule]) | (bins == rows.missing[rule])
        own = rows.group_bins[group]
        np.testing.assert_array_equal(goes_left[own], expected)
