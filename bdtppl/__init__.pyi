"""Names of the package, for type checkers and for its lazy imports, which read them here."""

from bdtppl import datasets as datasets
from bdtppl import export as export
from bdtppl import inference as inference
from bdtppl import models as models
from bdtppl.comparison import compare as compare
from bdtppl.compiled_code import keep_compiled_code as keep_compiled_code
from bdtppl.estimators.bart import BARTClassifier as BARTClassifier
from bdtppl.estimators.bart import BARTRegressor as BARTRegressor
from bdtppl.estimators.base import ChoiceWarning as ChoiceWarning
from bdtppl.estimators.bcf import BCFRegressor as BCFRegressor
from bdtppl.estimators.dcc import DCCTreeClassifier as DCCTreeClassifier
from bdtppl.estimators.dcc import DCCTreeRegressor as DCCTreeRegressor
from bdtppl.estimators.exact import ExactTreeClassifier as ExactTreeClassifier
from bdtppl.estimators.exact import ExactTreeRegressor as ExactTreeRegressor
from bdtppl.estimators.gflownet import GFlowNetTreeClassifier as GFlowNetTreeClassifier
from bdtppl.estimators.gflownet import GFlowNetTreeRegressor as GFlowNetTreeRegressor
from bdtppl.estimators.greedy_modal import GreedyModalTreeClassifier as GreedyModalTreeClassifier
from bdtppl.estimators.greedy_modal import GreedyModalTreeRegressor as GreedyModalTreeRegressor
from bdtppl.estimators.map_tree import MAPTreeClassifier as MAPTreeClassifier
from bdtppl.estimators.map_tree import MAPTreeRegressor as MAPTreeRegressor
from bdtppl.estimators.metropolis import MetropolisTreeClassifier as MetropolisTreeClassifier
from bdtppl.estimators.metropolis import MetropolisTreeRegressor as MetropolisTreeRegressor
from bdtppl.estimators.particle import ParticleTreeClassifier as ParticleTreeClassifier
from bdtppl.estimators.particle import ParticleTreeRegressor as ParticleTreeRegressor
from bdtppl.estimators.rjhmc import RJHMCTreeClassifier as RJHMCTreeClassifier
from bdtppl.estimators.rjhmc import RJHMCTreeRegressor as RJHMCTreeRegressor
from bdtppl.estimators.survival import BARTSurvival as BARTSurvival
from bdtppl.inference.additive.tree_gibbs import TreeGibbs as TreeGibbs
from bdtppl.inference.additive.tree_sum import TreeSum as TreeSum
from bdtppl.plotting import plot_boundaries as plot_boundaries
from bdtppl.plotting import plot_calibration as plot_calibration
from bdtppl.plotting import plot_comparison as plot_comparison
from bdtppl.plotting import plot_density as plot_density
from bdtppl.plotting import plot_effects as plot_effects
from bdtppl.plotting import plot_evidence as plot_evidence
from bdtppl.plotting import plot_overlap as plot_overlap
from bdtppl.plotting import plot_partial_dependence as plot_partial_dependence
from bdtppl.plotting import plot_partitions as plot_partitions
from bdtppl.plotting import plot_predictive as plot_predictive
from bdtppl.plotting import plot_predictive_check as plot_predictive_check
from bdtppl.plotting import plot_roc as plot_roc
from bdtppl.plotting import plot_structures as plot_structures
from bdtppl.plotting import plot_survival as plot_survival
from bdtppl.plotting import plot_topologies as plot_topologies
from bdtppl.plotting import plot_trajectories as plot_trajectories
from bdtppl.plotting import plot_treatment_effects as plot_treatment_effects
from bdtppl.plotting import plot_tree as plot_tree
from bdtppl.report import write_report as write_report
from bdtppl.storage import load as load

DEFINED_IN: dict[str, str]
__version__: str
