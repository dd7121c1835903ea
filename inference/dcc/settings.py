"""The settings of DCC-Tree, with its data and model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.tree_util import Partial

from bdtppl.inference.evidence.importance import Denominator
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.models.settings import check_parameters, parameter
from bdtppl.models.soft.topology import (
    DEFAULT_MOVES,
    Topology,
    TopologyPrior,
    neighbours,
    require_max_splits,
)

_LEAST_WARMUP = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class DCC:
    """Settings of DCC-Tree; defaults are those of the authors' code.

    Attributes
    ----------
    model
        A `bdtppl.models.soft.tree` model.
    x, y
        Inputs float [N, d], scaled to [0, 1], and targets [N].
    nuts
        The sampler given a topology.
    prior
        p(m).
    num_chains, num_draws, pseudo_samples
        Chains; their draws in each visit (N_s); importance samples around each draw (N_M).
    initial_trees, activation_count
        Topologies drawn from the prior at first (T_0), and the number of proposals that a topology
        must exceed to become active (C_0).
    denominator
        Options of importance weights; see `bdtppl.inference.evidence.importance`.
    delta, kappa, optimism, look_ahead
        Options of the utility; see `bdtppl.inference.dcc.utility`.
    moves, max_splits
        Options of the walk; see `bdtppl.models.soft.topology.neighbours`.
    with_leaf
        Whether the tree without a split is one of the topologies; the paper's program excludes it.
    pilot
        Steps of the first stage of burn-in, as a share of warm-up; 0 for none.
    least_share
        Least share of the weight that a topology must be able to reach after the pilot.
    h_search
        Sharpness at the first step of pilots, if it is softer than the sampler's: splits that are
        sharp initially hardly move across rows.
    warmup_doublings
        Most repetitions of warm-up, each with twice the steps ("increasing N_INIT as necessary"),
        while R-hat of the log density over its last steps exceeds 1.1. The authors' code restarts
        it, without bound, if the covariance of draws is singular.
    restarts
        Most restarts of stuck chains of a pilot, while more than a quarter of them are stuck.
    weights
        Powers of the rows' likelihoods, float [N]; None if all are 1.
    """

    model: Callable[..., None]
    x: Any
    y: Any
    nuts: NUTS = field(default_factory=NUTS)
    prior: TopologyPrior = field(default_factory=TopologyPrior)
    num_chains: int = parameter(16, least=1)
    num_draws: int = parameter(100, least=2)
    pseudo_samples: int = parameter(10, least=1)
    initial_trees: int = parameter(100, least=1)
    activation_count: int = parameter(5, least=0)
    denominator: Denominator = parameter("mixture")
    delta: float = parameter(0.0, least=0, most=1)
    kappa: float = parameter(0.0, least=-1)
    optimism: float = parameter(1.0, least=0)
    look_ahead: int = parameter(1000, least=1)
    moves: Mapping[str, float] = field(default_factory=lambda: DEFAULT_MOVES)
    max_splits: int | None = None
    with_leaf: bool = True
    pilot: float = parameter(0.125, least=0, most=1)
    least_share: float = parameter(1e-3, least=0, most=1)
    h_search: float = parameter(0.5, least=0)
    warmup_doublings: int = parameter(0, least=0)
    restarts: int = parameter(2, least=0)
    weights: Any = None

    def __post_init__(self):
        check_parameters(self)
        if self.nuts.warmup < _LEAST_WARMUP:
            raise ValueError(
                f"warmup must be an integer of at least {_LEAST_WARMUP}, because its last steps "
                f"compare chains; got {self.nuts.warmup}."
            )
        if not isinstance(self.moves, Mapping):
            raise TypeError(f"moves must be a mapping; got {type(self.moves).__name__}.")
        neighbours(Topology("100"), moves=self.moves)  # raises if moves are wrong
        require_max_splits(self.max_splits)
        if not self.with_leaf and self.max_splits == 0:
            raise ValueError("max_splits must be at least 1 if with_leaf is False; got 0.")

    def density(self, num_splits: int) -> SoftDensity:
        """Return the density of the trees with a number of splits."""
        rows = self.x, self.y
        return SoftDensity.filled_up(self.model, *rows, num_splits, weights=self.weights)

    def log_density(self, topology: Topology) -> Partial:
        """Return the log density of a position given a topology, at the final sharpness."""
        return Partial(
            SoftDensity.log_density,
            self.density(topology.num_splits),
            paths=topology.paths,
            sharpness=self.nuts.h_final,
        )
