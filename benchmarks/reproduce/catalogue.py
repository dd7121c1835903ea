"""All experiments, in the order of the page of results."""

from benchmarks.reproduce.bcart_pcfg import BCART_PCFG
from benchmarks.reproduce.experiments import Experiment
from benchmarks.reproduce.gmt import GMT

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (BCART_PCFG, GMT)
