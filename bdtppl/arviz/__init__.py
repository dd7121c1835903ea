"""Conversion of posteriors for ArviZ."""

from bdtppl.arviz.conversion import PriorDraws, PsisLoo, for_installed_arviz, psis_loo, to_arviz

__all__ = ["PriorDraws", "PsisLoo", "for_installed_arviz", "psis_loo", "to_arviz"]
