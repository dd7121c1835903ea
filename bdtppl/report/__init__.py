"""Reports of fits: one page of HTML that explains a posterior to somebody who was not there."""

from bdtppl.report.page import write_report

__all__ = ["write_report"]
