"""The ground floor: what a Bayesian tree is (data, trees, leaves, priors, densities)."""

if __name__ != "bdtppl.models":
    raise ImportError(
        f"this folder is the package `bdtppl.models` and cannot be imported as {__name__!r}, "
        "because every class would then exist twice: write `from bdtppl.models import ...`."
    )
