"""Sums of trees with the effect of a treatment: the law of the kernel, and the estimator."""

from dataclasses import replace

import additive_problems as ap
import numpy as np
import pytest
from scipy import stats
from tiers import slow_but

from bdtppl.inference.additive import causal
from bdtppl.inference.additive.causal import CausalKernel, CausalState
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior

NUM_ROWS = 16
CODE_DEVIATION = np.sqrt(causal.CODE_VARIANCE)


def kernels(rng, is_coded, **settings):
    """Make kernels of mu and tau on a table whose last column is the treatment."""
    matrix = rng.integers(0, 4, (NUM_ROWS, 3)).astype(float)
    matrix[:, 2] = rng.permutation(NUM_ROWS) % 2 if is_coded else rng.integers(0, 3, NUM_ROWS)
    weights = settings.pop("weights", None)
    common = {"num_trees": 2, "max_depth": 2, "min_leaf": 1}
    priors = (
        AdditivePrior(0.7, 0.5, offset=0.2, **common, **settings),
        AdditivePrior(0.6, 1.0, alpha=0.6, **common, draws_leaf_scale=not is_coded),
    )
    made = []
    for prior, hidden in zip(priors, ([2], [1, 2]), strict=True):
        coded = matrix.copy()
        coded[:, hidden] = 0.0
        design = Design.from_matrix(coded, weights=weights)
        design = replace(design, matrix=matrix)
        made.append(AdditiveKernel(prior, design, np.zeros(NUM_ROWS)))
    return CausalKernel(*made, 2, is_coded)


def prior_state(of, rng):
    states = [ap.prior_state(kernel, rng) for kernel in (of.control, of.effect)]
    coding = CODE_DEVIATION * rng.normal(size=2) if of.is_coded else np.array([0.0, 1.0])
    return CausalState(*states, coding)


def numbers_of(of, state):
    effect = ap.numbers_of(of.effect, state.effect)[1:]  # without a variance
    tau = of.tau(state.effect)
    codes = [state.coding.sum(), np.diff(state.coding)[0] * tau[0], state.coding[0] * tau[-1]]
    own = codes if of.is_coded else [tau[0]]
    return [*ap.numbers_of(of.control, state.control), *effect, *own]


def prior_and_law_after(sweeps, replications, is_coded, **settings):
    """Draw from the prior, simulate targets, move: two samples of one law (Geweke 2004)."""
    rng = np.random.default_rng(5)
    of = kernels(rng, is_coded, **settings)
    room, before, after = of.make_room(), [], []
    for _ in range(replications):
        before.append(numbers_of(of, prior_state(of, rng)))
        state = prior_state(of, rng)
        mu = of.control.offsets[0] - state.control.left[0]
        treated = state.coding[0] + np.diff(state.coding) * of.treatment
        deviation = np.sqrt(of.control.variances(state.control) / of.control.rows.weights)
        noise = deviation * rng.normal(size=NUM_ROWS)
        y = mu + treated * of.tau(state.effect) + noise
        state.control.left[0] = noise
        observed = replace(of, control=AdditiveKernel(of.prior, of.design, y))
        for _ in range(sweeps):
            state = observed.advance(rng, state, room)
        after.append(numbers_of(observed, state))
    return np.array(before), np.array(after)


def least_p_value(before, after):
    number = before.shape[1]
    each = [stats.ks_2samp(before[:, j], after[:, j], method="asymp").pvalue for j in range(number)]
    return min(each) * number


CHECKS = {
    "coded": (True, {}),
    "dose": (False, {"linear_scale": 0.4}),
    "coded, with a leaf scale and a linear term": (
        True,
        {"draws_leaf_scale": True, "linear_scale": 0.4},
    ),
    "dose, with noise trees": (False, {"noise_trees": 2, "noise_degrees": 5.0}),
}


@pytest.mark.parametrize("name", slow_but(["coded"], CHECKS))
def test_the_kernel_and_the_model_are_of_one_law(name):
    is_coded, settings = CHECKS[name]
    assert least_p_value(*prior_and_law_after(4, 600, is_coded, **settings)) > 1e-4


def wrong_codes(monkeypatch):
    """Their prior variance is four times as large."""
    monkeypatch.setattr(causal, "CODE_VARIANCE", 4 * causal.CODE_VARIANCE)


def wrong_precisions(monkeypatch):
    """The targets of tau have the precisions of the targets."""
    right = AdditiveKernel.advance

    def advance(self, *given, precision=None, **more):
        if precision is not None:
            precision = precision / np.maximum(self.design.matrix[:, 2], 1) ** 2
        return right(self, *given, precision=precision, **more)

    monkeypatch.setattr(AdditiveKernel, "advance", advance)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "name"), [(wrong_codes, "coded"), (wrong_precisions, "dose")])
def test_a_wrong_full_conditional_is_noticed(wrong, name, monkeypatch):
    is_coded, settings = CHECKS[name]
    wrong(monkeypatch)
    assert least_p_value(*prior_and_law_after(8, 1500, is_coded, **settings)) < 1e-4
