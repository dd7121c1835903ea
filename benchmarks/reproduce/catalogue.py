"""All experiments, in the order of the page of results."""

from benchmarks.reproduce.bcart_pcfg import BCART_PCFG
from benchmarks.reproduce.error_against_exact import ERROR_AGAINST_EXACT
from benchmarks.reproduce.experiments import Experiment
from benchmarks.reproduce.gmt import GMT
from benchmarks.reproduce.systems import SYSTEMS

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (BCART_PCFG, GMT, ERROR_AGAINST_EXACT, SYSTEMS)
