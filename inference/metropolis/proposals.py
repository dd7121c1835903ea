"""Kernels by name."""

from collections.abc import Callable, Mapping
from typing import Any

from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.moves import CHIPMAN, DENISON, ROTATING, LocalMoves
from bdtppl.inference.metropolis.regrow import Regrow

__all__ = ["PROPOSALS", "as_kernel"]

PROPOSALS: Mapping[str, Callable[[], Any]] = {
    "rotating": lambda: LocalMoves.of(ROTATING),
    "chipman": lambda: LocalMoves.of(CHIPMAN),
    "denison": lambda: LocalMoves.of(DENISON),
    "regrow": Regrow,
    "cyclic": lambda: Regrow("cycle"),
    "independence": lambda: Regrow("root"),
}


def as_kernel(proposal: Any) -> Kernel:
    """Get a kernel.

    Parameters
    ----------
    proposal
        A name of `PROPOSALS`, probabilities of local moves by name, or a kernel itself.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If a name is unknown, or probabilities of moves do not make sense.

    Examples
    --------
    >>> as_kernel("denison").names
    ('grow', 'prune', 'change', 'shift', 'swap', 'rotate')
    """
    if isinstance(proposal, str):
        if proposal not in PROPOSALS:
            raise ValueError(f"proposal must be one of {', '.join(PROPOSALS)}; got {proposal!r}.")
        return PROPOSALS[proposal]()
    if isinstance(proposal, Mapping):
        return as_kernel(LocalMoves.of(proposal))
    if isinstance(proposal, type) or not hasattr(proposal, "propose"):
        raise TypeError(
            f"proposal must be a name, a mapping from moves to probabilities or a kernel; got "
            f"{proposal!r}."
        )
    return proposal
