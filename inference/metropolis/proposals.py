"""Kernels by name."""

from collections.abc import Mapping
from typing import Any

from bdtppl.inference.metropolis import (  # importing them registers their kernels
    moves,
    redraw,
    regrow,
    restructure,
)
from bdtppl.inference.metropolis.kernel import KERNELS, Kernel
from bdtppl.inference.metropolis.moves import LocalMoves

__all__ = ["KERNELS", "as_kernel", "moves", "redraw", "regrow", "restructure"]


def as_kernel(proposal: Any) -> Kernel:
    """Return a kernel.

    Parameters
    ----------
    proposal
        A name of `KERNELS`, probabilities of local moves by name, or a kernel itself.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If a name is unknown, or probabilities of moves are invalid.

    Examples
    --------
    >>> as_kernel("denison").names
    ('grow', 'prune', 'change', 'shift', 'swap', 'rotate')
    """
    if isinstance(proposal, str):
        if proposal not in KERNELS:
            raise ValueError(
                f"proposal must be one of {', '.join(sorted(KERNELS))}; got {proposal!r}."
            )
        return KERNELS[proposal].make()
    if isinstance(proposal, Mapping):
        return as_kernel(LocalMoves.of(proposal))
    if isinstance(proposal, type) or not hasattr(proposal, "propose"):
        raise TypeError(
            f"proposal must be a name, a mapping from moves to probabilities or a kernel; got "
            f"{proposal!r}."
        )
    return proposal
