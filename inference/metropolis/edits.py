"""Metropolis-Hastings over sequences of edits of a tree.

A chain's state is a sequence of edits (see `EditTree`). A proposal truncates the sequence at a
uniform point and continues editing from the prior, so the acceptance probability is the ratio of
likelihoods times R = d / d', where d is one more than the number of edits.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, sections 3 and 4.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard.shapes import LEAF, Shape, edit_node, places, select_trees, with_capacity
from bdtppl.inference.hard.written_trees import root_rows
from bdtppl.inference.metropolis.growth import draw_choice
from bdtppl.inference.metropolis.kernel import Proposal
from bdtppl.inference.metropolis.state import State, rescored, scored, state_of
from bdtppl.models.hard.node_scores import node_weights
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.pytrees import pytree_dataclass

_SPLIT, _MERGE, _CHANGE = range(3)


class EditState(NamedTuple):
    """Sequences of edits of b chains; M is the capacity in edits.

    Attributes
    ----------
    slot, rule
        int32 [b, M]; the node that each edit gives a rule, or makes a leaf (`LEAF`). Slots are
        those of the tree at that time.
    num_edits
        int32 [b].
    tree
        The trees that result from the edits.
    """

    slot: jax.Array
    rule: jax.Array
    num_edits: jax.Array
    tree: State

    @property
    def shape(self) -> Shape:
        """The trees."""
        return self.tree.shape

    @property
    def log_prior(self) -> jax.Array:
        """Zeros [b], because the prior cancels from the acceptance; NaN like the tree's."""
        return jnp.where(jnp.isnan(self.tree.log_prior), jnp.nan, 0.0)

    @property
    def log_likelihood(self) -> jax.Array:
        """Sum of log marginals of the leaves, float64 [b]."""
        return self.tree.log_likelihood

    def with_capacity(self, capacity: int) -> "EditState":
        """Give trees more slots, and sequences room for as many edits."""
        more = (0, 0), (0, max(0, capacity - self.slot.shape[1]))
        slot, rule = jnp.pad(self.slot, more), jnp.pad(self.rule, more)
        return self._replace(slot=slot, rule=rule, tree=self.tree.with_capacity(capacity))


@pytree_dataclass
class RegrowEdits:
    """A kernel that truncates the edits at a uniform point and continues from the prior.

    Attributes
    ----------
    start
        `Shape` of the tree before all edits, a batch of one.
    edit_probability
        Probability of each further edit.
    """

    start: Any
    edit_probability: Any

    names: ClassVar[tuple[str, ...]] = ("edit",)

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: EditState,
        power: jax.Array,
    ) -> Proposal:
        """Propose one sequence in each chain (see `Kernel`)."""
        keys = jax.vmap(jax.random.split)(rng_keys)
        uniform = jax.vmap(jax.random.uniform)(keys[:, 0])
        num_points = state.num_edits + 1
        kept = jnp.minimum((uniform * num_points).astype(jnp.int32), num_points - 1)
        shape = _replayed(self.start, state, kept)
        scores = jnp.zeros_like(state.tree.scores)
        tree = scored(model, shape, root_rows(model, shape), scores, shape.is_used)
        start = state._replace(num_edits=kept, tree=tree)
        new, overflows = edited(keys[:, 1], model, start, self.edit_probability)
        log_ratio = jnp.log(num_points) - jnp.log(new.num_edits + 1)
        log_ratio = jnp.where(overflows, -jnp.inf, log_ratio)
        if model.binds_trees:
            log_ratio = jnp.where(jnp.isneginf(new.tree.log_prior), -jnp.inf, log_ratio)
        return Proposal(new, log_ratio, jnp.zeros_like(kept), overflows)


def initial_edits(model: PackedModel, shape: Shape, num_chains: int, max_edits: int) -> EditState:
    """Start chains at a tree, a batch of one, without edits."""
    no_edits = jnp.zeros((num_chains, max_edits), jnp.int32)
    tree = jax.tree.map(lambda a: jnp.repeat(a, num_chains, axis=0), state_of(model, shape))
    return EditState(no_edits, no_edits, jnp.zeros(num_chains, jnp.int32), tree)


def _replayed(start: Shape, state: EditState, num_edits: jax.Array) -> Shape:
    """Make the first edits of each sequence, with their number in [b]."""
    start = with_capacity(start, state.shape.capacity)
    shape = jax.tree.map(lambda a: jnp.repeat(a, len(num_edits), axis=0), start)

    def make(place, shape):
        new, _ = edit_node(shape, state.slot[:, place], state.rule[:, place])
        return select_trees(place < num_edits, new, shape)

    return lax.fori_loop(0, num_edits.max(), make, shape)


def edited(
    rng_keys: jax.Array, model: PackedModel, state: EditState, edit_probability: jax.Array
) -> tuple[EditState, jax.Array]:
    """Continue editing from the prior.

    Parameters
    ----------
    rng_keys
        Keys [b].
    model
        The model.
    state
        Initial states.
    edit_probability
        Probability of each further edit.

    Returns
    -------
    state
        The final sequences.
    overflows
        bool [b]; whether there was no room for an edit or for its tree.
    """
    chain, max_edits = jnp.arange(len(rng_keys)), state.slot.shape[1]

    def go_on(carry):
        number, state, is_on, overflows = carry
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number)))(rng_keys)
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (3,)))(keys[:, 0])
        shape = state.shape
        options = jnp.stack([state.tree.is_growable, shape.has_leaves, shape.is_split], axis=1)
        has_place = options.any(axis=2)
        is_on &= (uniform[:, 0] < edit_probability) & has_place.any(axis=1)
        is_on &= ~jnp.isnan(state.tree.log_prior)
        kind = draw_choice(jnp.where(has_place, 0.0, -jnp.inf), uniform[:, 1])
        slot = draw_choice(jnp.where(options[chain, kind], 0.0, -jnp.inf), uniform[:, 2])
        has_room = state.num_edits < max_edits
        has_room &= (kind != _SPLIT) | (shape.size + 2 <= shape.capacity)
        overflows |= is_on & ~has_room
        is_on &= has_room
        rule, tree = _with_drawn_rule(keys[:, 1], model, state.tree, slot, kind == _MERGE, is_on)
        is_here = is_on[:, None] & (jnp.arange(max_edits)[None] == state.num_edits[:, None])
        longer = EditState(
            jnp.where(is_here, slot[:, None], state.slot),
            jnp.where(is_here, rule[:, None], state.rule),
            state.num_edits + is_on,
            tree,
        )
        return number + 1, longer, is_on, overflows

    everywhere = jnp.ones(len(rng_keys), bool)
    carry = jnp.int32(0), state, everywhere, ~everywhere
    _, state, _, overflows = lax.while_loop(lambda carry: carry[2].any(), go_on, carry)
    return state, overflows


def _with_drawn_rule(
    rng_keys: jax.Array, model: PackedModel, old: State, slot, is_merge, is_wanted
) -> tuple[jax.Array, State]:
    """Edit a node of each selected tree, by a rule that leaves the tree possible.

    Rules are drawn until one leaves the tree possible; a split's own rule does, and so do all rules
    of a leaf. A weight that is not a number is used at once, and ends the edits: the prior then
    detects it.
    """
    chain = jnp.arange(len(slot))
    log_rules = node_weights(model, old.rows[chain, slot], old.shape.depth[chain, slot]).log_rules
    is_undefined = jnp.isnan(log_rules)
    first_undefined = jnp.argmax(is_undefined, axis=1).astype(slot.dtype)

    def attempt(carry):
        number, is_left, rule, tree = carry
        keys = jax.vmap(jax.random.fold_in, (0, None))(rng_keys, number)
        drawn = draw_choice(log_rules, jax.vmap(jax.random.uniform)(keys))
        drawn = jnp.where(is_undefined.any(axis=1), first_undefined, drawn)
        drawn = jnp.where(is_merge, LEAF, drawn)
        shape, source = edit_node(old.shape, slot, drawn)
        is_changed = (places(shape) == slot[:, None]) & (is_left & ~is_merge)[:, None]
        new = rescored(model, old, shape, source, is_changed)
        is_possible = (~jnp.isneginf(new.terms.log_rule) | ~shape.is_split).all(axis=1)
        is_made = is_left & (is_possible | is_undefined.any(axis=1))
        rule = jnp.where(is_made, drawn, rule)
        return number + 1, is_left & ~is_made, rule, select_trees(is_made, new, tree)

    carry = jnp.int32(0), is_wanted, jnp.zeros_like(slot), old
    _, _, rule, tree = lax.while_loop(lambda carry: carry[1].any(), attempt, carry)
    return rule, tree
