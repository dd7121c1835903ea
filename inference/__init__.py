"""Inference algorithms: given a model, compute its posterior over trees."""

if __name__ != "bdtppl.inference":
    raise ImportError(
        f"this folder is the package `bdtppl.inference` and cannot be imported as {__name__!r}, "
        "because every class would then exist twice: write `from bdtppl.inference import ...`."
    )
