"""Summaries of importance weights, and which estimate is taken."""

import arviz
import numpy as np
import pytest
from scipy import stats

from bdtppl.inference.evidence.estimates import (
    Evidence,
    choose_estimate,
    moments,
    pareto_k,
    summarise,
)


def test_summary_of_weights():
    weight = np.array([[1.0, 3.0], [2.0, 6.0], [4.0, 4.0]])
    found = summarise(np.log(weight) + 700)  # whose weights are too large for a float
    assert found.log_evidence == pytest.approx(np.log(20 / 6) + 700)
    within = np.array([2.0, 8.0, 0.0])
    error = np.sqrt((within / 2).sum()) / 3 / (20 / 6)
    assert found.standard_error == pytest.approx(error)
    assert found.effective_size == pytest.approx(400 / 82)
    weight = np.append(weight, 0.0)
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight) + 700
    found = moments(log_weight)
    assert found.log_mean == pytest.approx(np.log(weight.mean()) + 700)
    assert found.log_variance == pytest.approx(np.log(weight.var()) + 1400)
    finite = log_weight[np.isfinite(log_weight)]
    assert found[2:] == pytest.approx((finite.max(), finite.mean(), finite.std()))


def test_single_weights_are_one_stratum():
    weight = np.array([[1.0], [2.0], [6.0]])
    found = summarise(np.log(weight))
    assert found.standard_error == pytest.approx(weight.std(ddof=1) / np.sqrt(3) / 3)


def test_no_weight_at_all():
    found = summarise(np.full((3, 2), -np.inf))
    assert found.log_evidence == -np.inf
    assert not found.is_reliable


def test_pareto_shapes():
    """The estimate has a standard deviation of about .05 here: a false alarm has 1e-6."""
    for shape in (0.3, 0.7, 1.0):
        weight = stats.genpareto(shape).rvs(20_000, random_state=0)
        assert pareto_k(np.log(weight)) == pytest.approx(shape, abs=0.25)
    assert pareto_k(np.zeros(100)) == -np.inf


@pytest.mark.parametrize("number", [30, 100, 10_000])  # whose tails have no part of a weight
def test_pareto_shapes_are_those_of_arviz(number):
    if hasattr(arviz, "psislw"):
        psislw = arviz.psislw
    else:
        stats_of_arrays = pytest.importorskip("arviz_stats.base").array_stats

        def psislw(log_weight):
            return stats_of_arrays.psislw(-log_weight)  # takes the logs of likelihoods

    for deviation in (0.5, 2.0, 5.0):
        log_weight = np.random.default_rng(0).normal(scale=deviation, size=number)
        wanted = float(psislw(log_weight.copy())[1])
        assert pareto_k(log_weight) == pytest.approx(wanted, rel=1e-9)
        assert pareto_k(-log_weight) != pytest.approx(wanted, rel=1e-9)


def test_pareto_shapes_of_few_and_of_equal_weights():
    assert pareto_k(np.array([0.0, 1.0])) == np.inf
    assert pareto_k(np.append(np.full(10, -np.inf), np.zeros(90))) == np.inf  # no tail
    assert pareto_k(np.full(100, 700.0)) == -np.inf


def test_uneven_weights_warn():
    heavy = np.log(stats.genpareto(1.2).rvs((500, 10), random_state=0))
    with pytest.warns(UserWarning, match="Pareto k 1"):
        summarise(heavy).warn()
    light = np.log(stats.genpareto(0.1).rvs((500, 10), random_state=0))
    summarise(light).warn()  # warnings are errors


def test_runs_that_disagree_are_not_relied_on():
    assert Evidence(-2.0, 0.1, "smc", 500.0).is_reliable
    assert not Evidence(-2.0, 0.8, "smc", 500.0).is_reliable


def test_which_estimate_is_taken():
    even = Evidence(-3.0, 0.1, "lais", 500.0, 0.2)
    uneven = even._replace(pareto_k=0.9)
    few = even._replace(effective_size=20.0)

    def smc():
        return Evidence(-2.0, 0.1, "smc", 500.0)

    assert choose_estimate("lais", uneven, smc).method == "lais"
    assert choose_estimate("smc", even, smc).method == "smc"
    assert choose_estimate("auto", even, smc).method == "lais"
    for layered in (uneven, few):
        found = choose_estimate("auto", layered, smc)
        assert found.method == "smc"
        assert layered.describe_weights() in found.reason
    missed = choose_estimate("auto", uneven, lambda: Evidence(-9.0, 0.8, "smc", 500.0))
    assert missed.method == "lais"
    assert "it found -9.00" in missed.reason
    with pytest.raises(ValueError, match="method must be 'auto' or"):
        choose_estimate("bridge", even, smc)
