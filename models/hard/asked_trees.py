"""User-defined constraints: functions of the splits above each node, or of the whole tree.

A tree that is not allowed has prior weight zero; the weights of the others do not change.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 2 (constraints as predicates of a logic program).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.models.prior_kinds import TreeShape


class Path(NamedTuple):
    """The splits above one node; k slots of its tree, those nearer to the root first.

    Attributes
    ----------
    is_above
        bool [k]; slots of the splits above the node. The other arrays are meaningless elsewhere.
    feature, threshold
        int and float64 [k].
    is_left
        bool [k]; whether the node is on the left of the split.
    depth
        int [k]; splits above the split.
    is_leaf
        bool; whether the node is a leaf of the tree.
    """

    is_above: Any
    feature: Any
    threshold: Any
    is_left: Any
    depth: Any
    is_leaf: Any


def is_allowed(
    allows_path: Callable[[Path], Any] | None,
    allows_tree: Callable[[TreeShape], Any] | None,
    tree: TreeShape,
) -> jax.Array:
    """Return whether functions allow one tree, a boolean.

    Examples
    --------
    >>> import numpy as np
    >>> is_split = np.array([True, False, False])
    >>> left, zero = np.array([1, 0, 0]), np.zeros(3, int)
    >>> stump = TreeShape(~is_split, is_split, left, left + 1, zero, zero, zero + 0.5)
    >>> bool(is_allowed(lambda path: ~path.is_above.any(), None, stump))
    False
    """
    allowed, tree = jnp.asarray(True), jax.tree.map(jnp.asarray, tree)
    if allows_tree is not None:
        allowed &= jnp.asarray(_asked("allows_tree", allows_tree)(tree), bool)
    if allows_path is not None:
        size = len(tree.is_leaf)

        def hand_down(slot, carry):
            is_above, is_left = carry
            own = is_above[slot].at[slot].set(True)
            for child, side in ((tree.left, True), (tree.right, False)):
                place = jnp.where(tree.is_split[slot], child[slot], size)
                is_above = is_above.at[place].set(own, mode="drop")
                sides = is_left[slot].at[slot].set(side)
                is_left = is_left.at[place].set(sides, mode="drop")
            return is_above, is_left

        nothing = jnp.zeros((size, size), bool)
        is_above, is_left = lax.fori_loop(0, size, hand_down, (nothing, nothing))
        paths = Path(is_above, tree.feature, tree.threshold, is_left, tree.depth, tree.is_leaf)
        of_each = jax.vmap(_asked("allows_path", allows_path), (Path(0, None, None, 0, None, 0),))
        of_each = of_each(paths)
        is_node = tree.is_leaf | tree.is_split
        allowed &= (jnp.asarray(of_each, bool) | ~is_node).all()
    return allowed


def _asked(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Call a user's function; describe its restrictions in errors."""

    def ask(of: Any) -> Any:
        try:
            return function(of)
        except jax.errors.TracerBoolConversionError:
            raise ValueError(
                f"{name} is compiled for many trees at once, so it cannot use `if`, `and`, `or` or "
                "`not` on arrays: write it with jnp.where, &, | and ~."
            ) from None

    return ask
