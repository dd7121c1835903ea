"""Reports of fits: one page of HTML that explains a posterior to a reader new to the analysis."""

from bdtppl.report.page import write_report

__all__ = ["write_report"]
