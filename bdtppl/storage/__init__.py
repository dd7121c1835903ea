"""Fitted models in folders, and back to the last bit."""

from bdtppl.storage.fitted import load, save

__all__ = ["load", "save"]
