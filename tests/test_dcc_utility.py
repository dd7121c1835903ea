"""The utility of DCC-Tree against its formulas, in decimals where floats overflow."""

from decimal import Decimal, getcontext

import numpy as np
import pytest
from scipy import stats

from bdtppl.inference.dcc.utility import exploitation, exploration, utility

getcontext().prec = 50


def test_exploitation_is_the_formula_in_decimals():
    for shift in (0.0, -3000.0, 3000.0):
        log_evidence = np.array([0.0, 1.2, -40.0, -2.0]) + shift
        log_variance = np.array([1.0, -30.0, -60.0, 3.0]) + 2 * shift
        found = exploitation(log_evidence, log_variance, 0.5)
        tau = [
            (Decimal(2 * z).exp() + Decimal("1.5") * Decimal(s).exp()).sqrt()
            for z, s in zip(log_evidence, log_variance, strict=True)
        ]
        np.testing.assert_allclose(found, [float(t / max(tau)) for t in tau], rtol=1e-9)
        # The twin: the variance counted without its root.
        wrong = [float((t * t) / max(tau) ** 2) for t in tau]
        assert np.abs(found - wrong).max() > 0.01


def test_exploration_is_the_formula():
    mean, deviation = np.array([-1.0, 0.0, -2.0]), np.array([1.0, 0.5, 2.0])
    found = exploration(mean, deviation, 2.0, 1000)
    rho = 1 - stats.norm(mean, deviation).cdf(2.0) ** 1000
    np.testing.assert_allclose(found, rho / rho.max(), rtol=1e-9)


def test_exploration_where_all_terms_vanish():
    """Far out a tail is (1 / z - 1 / z^3 + 3 / z^5) exp(-z^2 / 2) / sqrt(2 pi)."""
    score = np.array([60.0, 61.0])
    found = exploration(-score, np.ones(2), 0.0, 1000)

    def tail(z):
        z = Decimal(z)
        return (1 / z - 1 / z**3 + 3 / z**5) * (-z * z / 2).exp()

    assert found[0] == 1
    assert found[1] == pytest.approx(float(tail(61) / tail(60)), rel=1e-6)


def test_utility_is_equation_10():
    visits = np.array([1, 4, 2])
    tau, rho = np.array([0.3, 1.0, 0.0]), np.array([1.0, 0.2, 0.4])
    found = utility(visits, tau, rho, delta=0.25, optimism=2.0)
    for place, count in enumerate(visits):
        boost = 2.0 * np.log(7) / np.sqrt(count)
        expected = (0.75 * tau[place] + 0.25 * rho[place] + boost) / count
        assert found[place] == pytest.approx(expected)
