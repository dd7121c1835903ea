"""Bayesian tree models: data, trees, leaf families, priors and densities."""

import sys

if __name__ != "bdtppl.models":
    raise ImportError(
        f"this folder is the package `bdtppl.models` and cannot be imported as {__name__!r}, "
        "because every class would then exist twice: write `from bdtppl.models import ...`."
    )

# ArviZ 1 defers loading NumPyro until one of its names is used. If a part of NumPyro is imported
# before that, NumPyro lacks some of its own names, and `numpyro.factor` fails.
if "numpyro" in sys.modules:
    _ = sys.modules["numpyro"].distributions
