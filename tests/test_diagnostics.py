"""R-hat and effective sample sizes, against those of ArviZ."""

import warnings

import numpy as np
import pytest

from bdtppl.inference.summaries.diagnostics import diagnose, error_of_mean

arviz = pytest.importorskip("arviz")


def _of_arviz(function, values, **options):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(np.asarray(function(values, **options)).item())


@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 11, 20, 101])
def test_diagnostics_are_those_of_arviz(draws):
    rng = np.random.default_rng(draws)
    for correlation in (-0.9, -0.3, 0.0, 0.5, 0.95):
        for chains in (1, 2, 5):
            values = rng.normal(size=(chains, draws))
            for draw in range(1, draws):
                values[:, draw] += correlation * values[:, draw - 1]
            for own in (values, np.round(values), values + np.arange(chains)[:, None]):
                found = diagnose({"one": own})["one"]
                standing_still = (own == own[:, :1]).all()
                if chains > 1 and not standing_still:
                    assert found.r_hat == pytest.approx(_of_arviz(arviz.rhat, own), rel=1e-9)
                assert found.ess == pytest.approx(_of_arviz(arviz.ess, own), rel=1e-9)
                error = _of_arviz(arviz.mcse, own, method="mean")
                assert error_of_mean(own) == pytest.approx(error, rel=1e-9, nan_ok=True)


def test_few_and_bad_draws_have_no_diagnostics():
    for values in (np.zeros((3, 3)), np.array([[1.0, 2.0, np.nan, 3.0]] * 2)):
        assert np.isnan(diagnose({"one": values})["one"].ess)
        assert np.isnan(error_of_mean(values))
