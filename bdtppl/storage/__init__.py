"""Storage of fitted models in folders, restored to the last bit."""

from bdtppl.storage.fitted import load, save

__all__ = ["load", "save"]
