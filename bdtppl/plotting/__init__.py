"""Figures of trees and predictions; each function draws on given axes or makes its own figure."""

from bdtppl.plotting.boundaries import plot_boundaries
from bdtppl.plotting.calibration import plot_calibration
from bdtppl.plotting.checks import plot_predictive_check
from bdtppl.plotting.comparison import plot_comparison
from bdtppl.plotting.density import plot_density
from bdtppl.plotting.dependence import plot_partial_dependence
from bdtppl.plotting.effects import plot_effects
from bdtppl.plotting.evidence import plot_evidence
from bdtppl.plotting.partitions import plot_partitions
from bdtppl.plotting.predictive import plot_predictive
from bdtppl.plotting.roc import plot_roc
from bdtppl.plotting.survival import plot_survival
from bdtppl.plotting.topologies import plot_topologies
from bdtppl.plotting.trajectories import plot_trajectories
from bdtppl.plotting.treatment import plot_overlap, plot_treatment_effects
from bdtppl.plotting.tree import plot_structures, plot_tree

__all__ = [
    "plot_boundaries",
    "plot_comparison",
    "plot_calibration",
    "plot_density",
    "plot_effects",
    "plot_evidence",
    "plot_overlap",
    "plot_partial_dependence",
    "plot_partitions",
    "plot_predictive",
    "plot_predictive_check",
    "plot_roc",
    "plot_structures",
    "plot_survival",
    "plot_topologies",
    "plot_trajectories",
    "plot_treatment_effects",
    "plot_tree",
]
