"""Proposals that prune a tree's proof at a point and regrow it from the prior.

The proof of a tree is the tree of choices of a top-down draw from the prior. A proposal discards
the choices at one point and below it, or after it, and redraws them from the prior. The prior then
cancels from the acceptance probability. The remainder is the ratio of likelihoods, times R = d_t /
d_t' if the point is uniform among the d_t points of the tree t, clipped at one. If a prior's
weights at a node do not sum to one, the ratio of these sums enters, too.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 4.
"""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard.shapes import Shape, cut_back, places, subtree_sums
from bdtppl.inference.metropolis.growth import ANY, grow_from_prior, log_normalisers
from bdtppl.inference.metropolis.kernel import KERNELS, NamedKernel, Proposal
from bdtppl.inference.metropolis.state import State
from bdtppl.models.arguments import require_choice, require_integer
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.pytrees import pytree_dataclass, setting

Choice = Literal["root", "cycle", "uniform"]
Points = Literal["nodes", "choices"]
Prune = Literal["subtree", "sequence"]


@pytree_dataclass
class Regrow:
    """A kernel that prunes at one point of each tree's proof and regrows it from the prior.

    Points are numbered in depth-first order: a node, its left subtree, its right subtree.

    Attributes
    ----------
    choice
        Which point: "root" is always the first one, so proposals are independent draws from the
        prior (q_0); "cycle" takes point 0, 1, ..., `last` in turn, step by step (q_0-n), and
        proposes nothing if the tree has fewer points; "uniform" any of the tree's points with equal
        probability (q_uc).
    points
        "nodes": one point a node, 2L - 1 for L leaves. "choices": one for stopping or splitting at
        each node, and one each for the feature and the threshold of each split, 4L - 3. A split
        that is pruned at its feature splits again; one that is pruned at its threshold also keeps
        its feature.
    prune
        "subtree": everything below the point is regrown. "sequence": so is everything after it in
        depth-first order.
    last
        n of q_0-n.

    Examples
    --------
    >>> Regrow("cycle", last=7).last
    7
    """

    choice: Choice = setting(default="uniform")
    points: Points = setting(default="nodes")
    prune: Prune = setting(default="subtree")
    last: int = setting(default=7)

    names: ClassVar[tuple[str, ...]] = ("regrow",)

    def __post_init__(self):
        for name, known in (
            ("choice", ("root", "cycle", "uniform")),
            ("points", ("nodes", "choices")),
            ("prune", ("subtree", "sequence")),
        ):
            require_choice(name, getattr(self, name), known)
        require_integer("last", self.last, 0)

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose one regrown tree in each chain (see `Kernel`)."""
        shape, chain = state.shape, jnp.arange(len(rng_keys))
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (shape.capacity + 1,)))(rng_keys)
        proof = _proof(shape, self.points)
        point = self._choose(number, proof.num_points, uniform[:, 0])[:, None]
        is_top = (proof.first <= point) & (point < proof.first + proof.own)
        top = jnp.argmax(is_top, axis=1)
        is_open, is_gone = self._regrown(shape, proof, is_top, proof.first[chain, top][:, None])
        smaller, moved = cut_back(shape, is_open, is_gone)
        start = state._replace(shape=smaller, rows=moved(state.rows), scores=moved(state.scores))
        is_start = moved(is_open) & smaller.is_used
        # The pruned node keeps its choices before the point.
        kind = point - proof.first[chain, top][:, None]
        feature = model.feature[shape.rule[chain, top]][:, None]
        kept = jnp.where(kind == _THRESHOLD, feature, ANY + kind)
        wanted = jnp.where(moved(is_top), kept, ANY)
        new, log_normaliser, overflows = grow_from_prior(
            model, start, is_start, wanted, uniform[:, 1:]
        )

        is_new = new.shape.is_used & (places(shape) >= smaller.size[:, None])
        # The sums of weights at initially open nodes are the same in both directions.
        forth = _sum_at(new.log_weights, is_start | is_new) - _sum_at(log_normaliser, is_new)
        back = _sum_at(state.log_weights, is_open | is_gone)
        if not model.prior.is_normalised:
            back -= _sum_at(log_normalisers(model, state, is_gone), is_gone)
        log_ratio = back - forth
        if self.choice == "uniform":
            num_points = _proof(new.shape, self.points).num_points
            log_ratio += jnp.log(proof.num_points) - jnp.log(num_points)
        is_possible = (point[:, 0] < proof.num_points) & ~overflows & ~jnp.isneginf(forth)
        log_ratio = jnp.where(is_possible, log_ratio, -jnp.inf)
        return Proposal(new, log_ratio, jnp.zeros_like(top, jnp.int32), overflows)

    def _choose(self, number: jax.Array, num_points: jax.Array, uniform: jax.Array) -> jax.Array:
        """Choose a point of each proof, int32 [b]."""
        if self.choice == "uniform":
            return jnp.minimum((uniform * num_points).astype(jnp.int32), num_points - 1)
        last = self.last if self.choice == "cycle" else 0
        return jnp.broadcast_to(jnp.int32(number % (last + 1)), num_points.shape)

    def _regrown(self, shape: Shape, proof: "_Proof", is_top, first) -> tuple[jax.Array, jax.Array]:
        """Return nodes that choose again and removed nodes, bool [b, k] each."""
        is_after = shape.is_used & (proof.first > first)
        if self.prune == "subtree":
            end = first + _sum_at(proof.below, is_top)[:, None]
            return is_top, is_after & (proof.first < end)
        above = jnp.take_along_axis(proof.first, shape.parent, axis=1)
        is_open = is_top | (is_after & (above < first))  # nodes below the remaining ones
        return is_open, is_after & ~is_open


_THRESHOLD = 2  # place of its threshold among a split's choices


class _Proof(NamedTuple):
    """Points of the proofs of b trees, int32; k slots.

    Attributes
    ----------
    first
        [b, k]; number of each node's first point.
    own, below
        [b, k]; points of each node, and of the node and all below it.
    num_points
        [b]; points of the tree.
    """

    first: jax.Array
    own: jax.Array
    below: jax.Array
    num_points: jax.Array


def _proof(shape: Shape, points: Points) -> _Proof:
    """Count and number the points of each tree's proof, in depth-first order."""
    chain = jnp.arange(len(shape.size))
    own = shape.is_used.astype(jnp.int32)
    if points == "choices":
        own += 2 * shape.is_split
    below = subtree_sums(shape, own)

    def settle(slot, first):
        parent = shape.parent[:, slot]
        before = jnp.where(slot % 2 == 1, 0, below[:, slot - 1])  # the left sibling's
        value = first[chain, parent] + own[chain, parent] + before
        return lax.dynamic_update_index_in_dim(first, value, slot, 1)

    first = lax.fori_loop(1, shape.size.max(), settle, jnp.zeros_like(own))
    return _Proof(first, own, below, below[:, 0])


def _sum_at(values: jax.Array, flags: jax.Array) -> jax.Array:
    return jnp.where(flags, values, 0).sum(axis=1)


KERNELS["regrow"] = NamedKernel(
    Regrow,
    "prunes a tree at a uniform point and regrows it from the prior (Angelopoulos and Cussens "
    "2005)",
)
KERNELS["cyclic"] = NamedKernel(
    lambda: Regrow("cycle"), "regrows trees at each of their first eight points in turn"
)
KERNELS["independence"] = NamedKernel(lambda: Regrow("root"), "draws whole trees from the prior")
