"""All experiments, in the order of the page of results."""

from benchmarks.reproduce.bcart_pcfg import BCART_PCFG
from benchmarks.reproduce.dcc_tree import DCC_TREE, DCC_TREE_RIVALS
from benchmarks.reproduce.dcc_tree_figures import DCC_TREE_FIGURES
from benchmarks.reproduce.defaults import DEFAULTS
from benchmarks.reproduce.dt_gfn import DT_GFN_TABLES
from benchmarks.reproduce.dt_gfn_figures import FIGURES, TABLE_7
from benchmarks.reproduce.dt_gfn_published import DT_GFN_PUBLISHED
from benchmarks.reproduce.error_against_exact import ERROR_AGAINST_EXACT
from benchmarks.reproduce.experiments import Experiment
from benchmarks.reproduce.gmt import GMT
from benchmarks.reproduce.gmt_figures import GMT_FIGURES
from benchmarks.reproduce.informative_priors import INFORMATIVE_PRIORS

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (
    BCART_PCFG,
    GMT,
    GMT_FIGURES,
    DCC_TREE,
    DCC_TREE_FIGURES,
    DCC_TREE_RIVALS,
    *DT_GFN_TABLES,
    DT_GFN_PUBLISHED,
    TABLE_7,
    FIGURES,
    INFORMATIVE_PRIORS,
    ERROR_AGAINST_EXACT,
    DEFAULTS,
)
