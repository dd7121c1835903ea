"""Two kernels in turn: a cheap one at most steps, and another one periodically.

All chains use the same kernel at a step, so only this one is computed. A sequence of steps that
each leave the target invariant leaves it invariant, too.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.metropolis.kernel import Kernel, Proposal
from bdtppl.inference.metropolis.state import State
from bdtppl.models.arguments import require_integer
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.pytrees import pytree_dataclass, setting


@pytree_dataclass
class Alternate:
    """A kernel that is ``seldom`` at each ``period``-th step and ``often`` at all others.

    Attributes
    ----------
    often, seldom
        Kernels.
    period
        At least 1.
    """

    often: Any
    seldom: Any
    period: int = setting(default=10)

    def __post_init__(self):
        require_integer("period", self.period)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the moves of both."""
        return (*self.often.names, *self.seldom.names)

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose by the kernel whose turn it is (see `Kernel`)."""

        def by(kernel: Kernel, first: int):
            def proposing():
                proposal = kernel.propose(rng_keys, number, model, state, power)
                return proposal._replace(move=(proposal.move + first).astype(jnp.int32))

            return proposing

        is_turn = (number + 1) % self.period == 0
        return lax.cond(is_turn, by(self.seldom, len(self.often.names)), by(self.often, 0))
