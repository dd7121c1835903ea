"""The ground floor: what a Bayesian tree is (data, trees, leaves, priors, densities)."""

import sys

if __name__ != "bdtppl.models":
    raise ImportError(
        f"this folder is the package `bdtppl.models` and cannot be imported as {__name__!r}, "
        "because every class would then exist twice: write `from bdtppl.models import ...`."
    )

# ArviZ 1 puts off loading NumPyro until a name of it is asked for. If a part of NumPyro is imported
# before that, NumPyro then lacks names of its own, and `numpyro.factor` fails.
if "numpyro" in sys.modules:
    _ = sys.modules["numpyro"].distributions
