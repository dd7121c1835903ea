"""Trees as they are built split by split, by plain code, and a policy that is a table.

A state is a frozenset of (position, rule): a position is the text of turns from the root on, "0" to
the left and "1" to the right, and a rule is its number in the model.
"""

import functools
from collections import defaultdict

import chains
import equinox as eqx
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import rel_entr

from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.replay import mixed, path_keys
from bdtppl.inference.gflownet.rollout import roll_out
from bdtppl.inference.hard.shapes import LEAF, Shape
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

State = frozenset


def last_splits(state: State) -> list[tuple[str, int]]:
    """Splits above two leaves."""
    positions = {position for position, _ in state}
    return [split for split in sorted(state) if not {split[0] + "0", split[0] + "1"} & positions]


def orders(state: State) -> list[list[tuple[str, int]]]:
    """All orders in which a tree can be made."""
    if not state:
        return [[]]
    return [[*order, last] for last in last_splits(state) for order in orders(state - {last})]


def backward_probability(order: list, weight=lambda rule: 1.0) -> float:
    """Probability of undoing a tree in the reverse of an order, one last split after another.

    Splits are undone in proportion to the weights of their rules.
    """
    probability = 1.0
    for size, (_, rule) in enumerate(order, start=1):
        candidates = last_splits(frozenset(order[:size]))
        probability *= weight(rule) / sum(weight(other) for _, other in candidates)
    return probability


def laid_out(orders_of_trees: list, capacity: int) -> Shape:
    """Structures whose slots lie in the order of their making."""
    nodes = np.zeros((len(orders_of_trees), capacity, 4), np.int32)
    nodes[..., 0] = LEAF
    for row, order in zip(nodes, orders_of_trees, strict=True):
        slots = {"": 0}
        for step, (position, rule) in enumerate(order):
            slot, left = slots[position], 2 * step + 1
            row[slot, :2] = rule, left
            for side in (0, 1):
                slots[position + str(side)] = left + side
                row[left + side] = LEAF, 0, slot, len(position) + 1
    sizes = np.array([2 * len(order) + 1 for order in orders_of_trees], np.int32)
    return Shape(jnp.asarray(nodes), jnp.asarray(sizes))


def states_of(shape: Shape) -> list[State]:
    """Read structures."""
    rule, left = np.asarray(shape.rule), np.asarray(shape.left)

    def splits(tree, slot, position):
        if rule[tree, slot] == LEAF:
            return []
        own = [(position, int(rule[tree, slot]))]
        for side in (0, 1):
            own += splits(tree, left[tree, slot] + side, position + str(side))
        return own

    return [frozenset(splits(tree, 0, "")) for tree in range(len(rule))]


class Enumerated:
    """All trees of a model as states; inside a double-precision scope.

    Attributes
    ----------
    construction, design
        What they are made of.
    probability
        Posterior probability of each.
    log_z
        Log of the sum over trees of their weights.
    """

    def __init__(self, construction, design, trees: Tree, log_joint: np.ndarray):
        self.construction, self.design = construction, design
        shape = as_shape(construction.model, design, trees, construction.capacity)
        self.log_z = np.logaddexp.reduce(log_joint)
        p = np.exp(log_joint - self.log_z).tolist()
        self.probability = dict(zip(states_of(shape), p, strict=True))

    @functools.cached_property
    def orders(self) -> list:
        """Every order of every tree."""
        return [order for state in self.probability for order in orders(state)]

    @functools.cached_property
    def trajectories(self) -> Shape:
        """Their structures."""
        return laid_out(self.orders, self.construction.capacity)

    @functools.cached_property
    def last_steps(self):
        """Every way to make a tree from one with a split less: (tree, last split), structures."""
        pairs = []
        for state in sorted(self.probability, key=len):
            pairs += [(state, last) for last in last_splits(state) or [None]]
        every = [
            [*sorted(state - {last}, key=_by_depth), last][: len(state)] for state, last in pairs
        ]
        return pairs, laid_out(every, self.construction.capacity)

    @functools.cached_property
    def flows(self) -> dict[State, float]:
        """Share of Z that flows through each tree on its way to be stopped, by plain recursion."""
        flows = dict(self.probability)
        for state in sorted(flows, key=len, reverse=True):
            for last in (parents := last_splits(state)):
                flows[state - {last}] += flows[state] / len(parents)
        return flows

    def terminal_law(self, policy) -> dict[State, float]:
        """Probability of drawing each tree, by dynamic programming over the policy."""
        pairs, shape = self.last_steps
        parts = []
        for start in range(0, len(pairs), _PIECE):
            rows = np.arange(start, start + min(_PIECE, len(pairs))) % len(pairs)
            some = jax.tree.map(lambda a, rows=rows: a[rows], shape)
            made = along(self.construction, policy, some)
            parts.append([np.asarray(a) for a in (made.log_stop, made.log_forward)])
        log_stop, log_forward = (np.concatenate(part) for part in zip(*parts, strict=True))
        flow, stop = defaultdict(float), {}
        for row, (state, last) in enumerate(pairs):  # smaller trees come first
            size = len(state)
            stop[state] = np.exp(log_stop[row, size])
            forward = np.exp(log_forward[row, size - 1]) if size else 1.0
            flow[state] += forward * (flow[state - {last}] if size else 1.0)
        return {state: float(flow[state] * stop[state]) for state in self.probability}

    def laws(self, policy) -> tuple[np.ndarray, np.ndarray]:
        """Posterior probability of each tree, and that of drawing it."""
        law = self.terminal_law(policy)
        return np.array(list(self.probability.values())), np.array(list(law.values()))

    def distance(self, policy) -> float:
        """Total variation between what a policy draws and the posterior."""
        p, q = self.laws(policy)
        return float(np.abs(p - q).sum() / 2)

    def divergence(self, policy) -> float:
        """Jensen-Shannon divergence between what a policy draws and the posterior, in nats."""
        p, q = self.laws(policy)
        return float(sum(rel_entr(law, (p + q) / 2).sum() for law in (p, q)) / 2)

    def worst_log_ratio(self, policy, at_least: float) -> float:
        """How far drawing is from the posterior in any tree that is so probable, in nats."""
        p, q = self.laws(policy)
        return float(np.abs(np.log(q / p)[p >= at_least]).max())


def _by_depth(split) -> tuple[int, str]:
    return len(split[0]), split[0]


_PIECE = 2048  # trajectories that are followed at once


@jax.jit
def along(construction, policy, given: Shape):
    """Trajectories through given trees, in the order of their slots."""
    return roll_out(jax.random.key(0), construction, policy, given=given)


def distance_by_draws(construction, policy, shape: Shape, log_z: float) -> float:
    """Total variation of a policy from the posterior, estimated from its own draws [m].

    It is half the mean of |p / q - 1| over them; q sums over all orders in which a tree is made.
    """
    states = states_of(shape)
    every = [orders(state) for state in states]
    rows = [order for own in every for order in own]
    tree = np.repeat(np.arange(len(states)), [len(own) for own in every])
    log_q, log_joint = np.full(len(states), -np.inf), np.zeros(len(states))
    for start in range(0, len(rows), _PIECE):
        some = [rows[i % len(rows)] for i in range(start, start + _PIECE)]
        made = along(construction, policy, laid_out(some, construction.capacity))
        own = tree[start : start + _PIECE]
        log_p = made.log_joint[:, -1] - made.log_weights + made.log_backward.sum(axis=1)
        np.logaddexp.at(log_q, own, np.asarray(log_p)[: len(own)])
        log_joint[own] = np.asarray(made.log_joint)[: len(own), -1]
    return float(np.abs(np.exp(log_joint - log_z - log_q) - 1).mean() / 2)


def of_case(case) -> Enumerated:
    """Enumerate a problem that is stated twice; its own trees are its scored ones."""
    trees = [s.tree for s in case.scored]
    batch = Tree.concatenate(
        [Tree.from_nested(chains.nested(case.problem, tree)).reshape(1) for tree in trees]
    )
    model = case.design, case.y, case.prior, case.leaf, case.constraints
    most = max(1, int(batch.num_nodes.max()) // 2)
    log_joint = np.array([s.log_prior + s.log_likelihood for s in case.scored])
    construction = Construction.of(TreeModel(*model), num_splits=most)
    found = Enumerated(construction, case.design, batch, log_joint)
    found.case = case
    return found


def small(model: str, family: str, *, most_trees: int, num_splits: int) -> Enumerated:
    """Enumerate the first drawn problem with so many splits in its largest tree."""
    for seed in range(1000):
        found = of_case(ep.random_case(model, family, seed, most_trees=most_trees, num_rows=5))
        if found.construction.num_splits == num_splits:
            return found
    raise AssertionError


class TabularPolicy(eqx.Module):
    """A number for every choice in every state; states and leaves are found by their keys."""

    trees: jax.Array  # uint64 [N], sorted
    nodes: jax.Array  # uint64 [M], sorted; leaves of trees
    stop_logit: jax.Array  # [N]
    leaf_logit: jax.Array  # [M]
    feature_logit: jax.Array  # [M, F]
    cut_logit: jax.Array  # [M, F, C]

    def __init__(self, construction, shape: Shape):
        none = jnp.zeros(0, jnp.uint64)
        self.trees, self.nodes = none, none
        size = 1, construction.num_features, construction.num_cuts
        self._allocate(1, *size)
        trees = along(construction, self, shape).trees
        is_open, codes = trees.shape.is_leaf, self.encode(trees.paths)
        keys = jnp.where(is_open, codes, 0).sum(axis=1)
        self.nodes = jnp.asarray(np.unique(self._keys(codes, keys)[is_open]))
        self.trees = jnp.asarray(np.unique(keys))
        self._allocate(len(self.trees), len(self.nodes), *size[1:])

    @classmethod
    def balanced(cls, found: Enumerated) -> "TabularPolicy":
        """Fill a table with the logs of the flows from each tree to the next."""
        pairs, shape = found.last_steps
        table = cls(found.construction, shape)
        made = along(found.construction, table, shape).trees
        codes = table.encode(made.paths)
        keys = jnp.where(made.shape.is_leaf, codes, 0).sum(axis=1)
        keys, codes = np.asarray(keys), np.asarray(codes)
        trees, nodes = np.asarray(table.trees), np.asarray(table.nodes)
        feature, cut = np.asarray(found.construction.feature), np.asarray(found.construction.cut)
        shape = jax.tree.map(np.asarray, shape)
        through = np.zeros(table.cut_logit.shape)
        stop, go = np.zeros((2, len(table.trees)))
        tree_of = {}
        for row, (state, last) in enumerate(pairs):
            tree_of[state] = np.searchsorted(trees, keys[row])
            stop[tree_of[state]] = found.probability[state]
            if last is None:
                continue
            before = tree_of[state - {last}]
            slot = int(np.argmax(shape.left[row] == 2 * len(state) - 1))
            node = np.searchsorted(nodes, mixed(codes[row, slot] ^ mixed(trees[before])))
            flow = found.flows[state] / len(last_splits(state))
            through[node, feature[last[1]], cut[last[1]]] += flow
            go[before] += flow
        log = lambda x: jnp.log(jnp.maximum(x, 1e-300))  # noqa: E731
        filled = log(stop) - log(go), *(log(through.sum(axis)) for axis in ((1, 2), 2, ()))
        return eqx.tree_at(
            lambda t: (t.stop_logit, t.leaf_logit, t.feature_logit, t.cut_logit), table, filled
        )

    def _allocate(self, num_trees, *size):
        self.stop_logit = jnp.zeros(num_trees)
        self.leaf_logit, self.feature_logit, self.cut_logit = (
            jnp.zeros(size[:axes]) for axes in (1, 2, 3)
        )

    @staticmethod
    def _keys(codes, context):
        return mixed(codes ^ mixed(context)[:, None])

    def _node(self, codes, context):
        return jnp.searchsorted(self.nodes, self._keys(codes, context))

    def encode(self, paths):
        return mixed(path_keys(paths))

    def context(self, pooled):
        return pooled

    def stop(self, context):
        return self.stop_logit.at[jnp.searchsorted(self.trees, context)].get(mode="clip")

    def leaves(self, codes, context):
        return self.leaf_logit.at[self._node(codes, context)].get(mode="clip")

    def _chosen(self, code, context):
        return jnp.searchsorted(self.nodes, mixed(code ^ mixed(context)))

    def features(self, code, context):
        return self.feature_logit.at[self._chosen(code, context)].get(mode="clip")

    def cuts(self, code, context, feature):
        return self.cut_logit.at[self._chosen(code, context), feature].get(mode="clip")

    def undo(self, codes):
        return None
