"""Tables of Student-t laws, and mixtures of them, against SciPy and quadrature."""

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

from bdtppl.inference.crps import crps, mixture_crps
from bdtppl.inference.student import StudentLaws

RNG = np.random.default_rng(0)
DF = [1.0, 1.5, 2.1, 3.0, 4.0, 12.0, 15.9, 16.0, 50.0, 300.0, 4999.0, 5001.0, 1e6, np.inf]


@pytest.mark.parametrize("df", DF)
def test_tables_of_a_law_are_right_to_rounding(df):
    law = stats.norm if np.isinf(df) else stats.t(df)
    z = np.concatenate([RNG.normal(size=2000) * 3, RNG.normal(size=200) * 30, [0, -1e5, 1e60]])
    laws, one = StudentLaws(np.array([df]), np.zeros(1), np.ones(1)), np.zeros(len(z), int)
    cdf, density = laws.mixed(csr_array(np.ones((1, 1))), one, z)
    np.testing.assert_allclose(cdf, law.cdf(z), rtol=0, atol=2e-13)
    np.testing.assert_allclose(density, law.pdf(z), rtol=0, atol=1e-11)
    np.testing.assert_array_equal(laws.cdf(one, z), cdf)
    np.testing.assert_array_equal(laws.cdf(one[:1], np.array([1e200])), 1.0)


def test_mixtures_scored_together_have_the_scores_of_each():
    """They share points, however narrow one is beside the others."""
    loc, scale = np.array([0.0, 1.0, 1e3, 1e3 + 1]), np.array([1e-3, 2.0, 0.1, 30.0])
    laws = StudentLaws(np.array([3.0, 7.0, np.inf, 20.0]), loc, scale)
    shares = np.array([[1.0, 0, 0, 0], [0, 0.4, 0.6, 0], [0.25, 0.25, 0.25, 0.25]])
    y, kind = np.array([0.0, 1e-3, 900.0, 2.0]), np.array([0, 0, 1, 2])
    together = mixture_crps(y, kind, csr_array(shares), laws)
    for row, score in enumerate(together):
        own = np.flatnonzero(shares[kind[row]])
        alone = crps(y[[row]], shares[kind[row], own], loc[own], scale[own], laws.df[own])
        assert score == pytest.approx(alone[0], rel=1e-7)
