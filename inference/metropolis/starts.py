"""Initial states of chains: a tree of one leaf, trees of the prior, or given trees."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.shapes import select_trees
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.inference.metropolis.edits import EditState, RegrowEdits, edited, initial_edits
from bdtppl.inference.metropolis.growth import grown_trees
from bdtppl.inference.metropolis.state import State, initial, state_of
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import require_weighs, weighs

_MOST_STARTS = 100  # draws of an initial tree, if constraints forbid some
_LONGER_EDITS = 1e-6  # share of the prior's sequences of edits without room


def first_states(
    rng_key: jax.Array,
    packed: PackedModel,
    model: TreeModel,
    chains: int,
    capacity: int,
    start: Tree | Literal["prior"] | None,
) -> State:
    """Put each chain at its tree (see `bdtppl.inference.metropolis.sample.MetropolisChains`)."""
    if isinstance(start, Tree):
        return _placed(packed, model.design, chains, capacity, start)
    if start is None:
        states = initial(packed, chains, capacity)
        if np.isneginf(states.log_prior).any() and weighs(model.prior) == "nodes":
            grow = partial(grown_trees, model=packed, capacity=capacity)
            states = _allowed(jax.random.split(rng_key, chains), lambda keys: grow(keys).state)
    elif start == "prior":
        require_weighs(model.prior, "start='prior'", "nodes")
        model.constraints.require_free_leaves("start='prior'")
        keys = jax.random.split(rng_key, chains)
        states = grown_trees(keys, packed, capacity=capacity).state
    else:
        raise ValueError(f"start must be 'prior', trees or None; got {start!r}.")
    require_defined(np.isnan(states.log_prior))
    return states


def edits_kernel(packed: PackedModel, design: Any, prior: EditTree, capacity: int) -> RegrowEdits:
    """Make the kernel of a prior over edits, for trees of a capacity."""
    tree = as_shape(packed, design, prior.tree.reshape(1), capacity)
    return RegrowEdits(tree, jnp.float64(prior.edit_probability))


def first_edits(
    rng_key: jax.Array,
    packed: PackedModel,
    kernel: RegrowEdits,
    chains: int,
    capacity: int,
    start: Tree | Literal["prior"] | None,
) -> EditState:
    """Put each chain at the tree to edit, or edit that by the prior."""
    if start is not None and start != "prior":
        raise ValueError("start must be None or 'prior' under an EditTree, which names a tree.")
    rarest = np.log(_LONGER_EDITS) / np.log(max(float(kernel.edit_probability), _LONGER_EDITS))
    states = initial_edits(packed, kernel.start, chains, max(capacity, int(np.ceil(rarest))))
    require_defined(np.isnan(states.tree.log_prior))
    is_allowed = np.isfinite(np.asarray(states.tree.log_prior)).all()
    if not is_allowed and not packed.binds_trees:
        raise ValueError("The tree to edit has a leaf or a rule that the model excludes.")
    if start == "prior" or not is_allowed:
        edit = jax.jit(edited)
        root, keys = states, jax.random.split(rng_key, chains)
        states = _allowed(keys, lambda keys: edit(keys, packed, root, kernel.edit_probability)[0])
    return states


def _allowed(rng_keys: jax.Array, draw: Callable[[jax.Array], Any]) -> Any:
    """Draw states from the prior, one for each key [b], until the constraints allow them all."""
    states, is_allowed = None, np.zeros(len(rng_keys), bool)
    for number in range(_MOST_STARTS):
        drawn = draw(jax.vmap(jax.random.fold_in, (0, None))(rng_keys, number))
        states = drawn if states is None else select_trees(jnp.asarray(is_allowed), states, drawn)
        tree = states.tree if isinstance(states, EditState) else states
        is_allowed = ~np.isneginf(np.asarray(tree.log_prior))
        if is_allowed.all():
            return states
    raise ValueError(
        f"The constraints exclude all of {_MOST_STARTS} initial trees that some chain drew from "
        "the prior: set start to a Tree, or loosen the constraints."
    )


def _placed(packed: PackedModel, design: Any, chains: int, capacity: int, start: Tree) -> State:
    """Put each chain at a given tree."""
    trees = start if start.batch_shape else Tree.concatenate([start.reshape(1)] * chains)
    if trees.batch_shape != (chains,):
        raise ValueError(
            f"start must be one tree or one per chain, {chains}; got {trees.batch_shape}."
        )
    try:
        shape = as_shape(packed, design, trees, capacity)
    except ValueError as error:
        raise ValueError(f"start: {error}") from None
    states = state_of(packed, shape)
    if not np.isfinite(np.asarray(states.log_prior)).all():
        raise ValueError("start has a tree with a leaf or a rule that the model excludes.")
    return states
