"""The law of trees that an `EditTree` prior has, by a list of all trees that edits lead to.

Many sequences of edits lead to one tree, so its probability is a sum without end. On a small table
the sum over all sequences up to a length is exact, and what it leaves out is known.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.prior_predictive.trees import NO_LIKELIHOOD, Nested, NodeChoices, laid_out
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

__all__ = ["EditedTrees", "edited_trees"]


class EditedTrees(NamedTuple):
    """Trees that edits lead to.

    Attributes
    ----------
    trees
        `Tree` batch [m], the most probable first.
    probability
        float64 [m]; probability of each by sequences that are not longer than the limit.
    rest
        Probability of longer sequences: each tree's own is larger by at most this.
    """

    trees: Tree
    probability: np.ndarray
    rest: float


@in_float64
def edited_trees(
    design: Design,
    prior: EditTree,
    constraints: Constraints | None = None,
    *,
    max_edits: int = 8,
    limit: int = 10_000,
) -> EditedTrees:
    """List the trees that edits lead to, with their probabilities.

    Parameters
    ----------
    design, prior, constraints
        The prior and what it is conditional on.
    max_edits
        Longest sequence of edits.
    limit
        Most trees to list.

    Raises
    ------
    ValueError
        If the tree to edit does not fit, a feature is monotone, or there are more trees.
    """
    no_targets = np.zeros(design.num_rows, int)
    constraints = Constraints() if constraints is None else constraints
    constraints.require_free_leaves("A prior without targets")
    model = PackedModel.of(TreeModel(design, no_targets, prior.base, NO_LIKELIHOOD, constraints))
    choices = NodeChoices(model)
    shape = as_shape(model, design, prior.tree.reshape(1), prior.tree.capacity)
    start = _nested(shape.rule[0], shape.left[0], 0)
    if not _is_possible(choices, start, choices.root_rows, 0):
        raise ValueError("The tree to edit has a leaf or a rule that the model excludes.")
    laws: dict[Nested, dict[Nested, float]] = {}
    probability: dict[Nested, float] = defaultdict(float)
    current = {start: 1.0}
    for _ in range(max_edits + 1):
        following: dict[Nested, float] = defaultdict(float)
        for tree, p in current.items():
            if tree not in laws:
                if len(laws) == limit:
                    raise ValueError(f"There are more than limit={limit:,} trees.")
                laws[tree] = _law_of_edit(choices, tree)
            stops = 1 - prior.edit_probability if laws[tree] else 1.0
            probability[tree] += p * stops
            for new, share in laws[tree].items():
                following[new] += p * (1 - stops) * share
        current = following
    listed = sorted(probability, key=lambda tree: -probability[tree])
    trees = write_out(model, laid_out(listed)).trees
    return EditedTrees(
        trees, np.array([probability[tree] for tree in listed]), sum(current.values())
    )


def _nested(rule: np.ndarray, left: np.ndarray, slot: int) -> Nested:
    if left[slot] == 0:
        return None
    on_left, on_right = (_nested(rule, left, left[slot] + side) for side in (0, 1))
    return int(rule[slot]), on_left, on_right


def _is_possible(choices: NodeChoices, tree: Nested, rows: np.ndarray, depth: int) -> bool:
    """Whether every rule of a tree is available."""
    if tree is None:
        return True
    rule, left, right = tree
    _, rules = choices(rows, depth)
    if rule not in rules:
        return False
    _, left_rows, right_rows = rules[rule]
    return _is_possible(choices, left, left_rows, depth + 1) and _is_possible(
        choices, right, right_rows, depth + 1
    )


class _Place(NamedTuple):
    """A node of a tree: the sides to it from the root, its subtree and its rows."""

    path: tuple[int, ...]
    node: Nested
    rows: np.ndarray


def _places(choices: NodeChoices, place: _Place) -> Iterator[_Place]:
    yield place
    if place.node is not None:
        rule, *below = place.node
        _, *sides = choices(place.rows, len(place.path)).rules[rule]
        for side in (0, 1):
            yield from _places(choices, _Place((*place.path, side), below[side], sides[side]))


def _law_of_edit(choices: NodeChoices, tree: Nested) -> dict[Nested, float]:
    """Trees after one edit with their probabilities; none where no edit has a place."""
    splits, changes, merges = [], [], []  # each place with the weights of what it may become
    for path, node, rows in _places(choices, _Place((), tree, choices.root_rows)):
        _, rules = choices(rows, len(path))
        weight = {rule: np.exp(log_weight) for rule, (log_weight, _, _) in rules.items()}
        if node is None:
            if weight:
                splits.append((path, {(rule, None, None): w for rule, w in weight.items()}))
            continue
        _, left, right = node
        changed = {(rule, left, right): w for rule, w in weight.items()}
        possible = [new for new in changed if _is_possible(choices, new, rows, len(path))]
        changes.append((path, {new: changed[new] for new in possible}))
        if left is None and right is None:
            merges.append((path, {None: 1.0}))
    kinds = [places for places in (splits, changes, merges) if places]
    law: dict[Nested, float] = defaultdict(float)
    for places in kinds:
        for path, weight in places:
            share = 1 / len(kinds) / len(places) / sum(weight.values())
            for new, w in weight.items():
                law[_replaced(tree, path, new)] += share * w
    return dict(law)


def _replaced(tree: Nested, path: tuple[int, ...], new: Nested) -> Nested:
    """Put another subtree at a path."""
    if not path or tree is None:
        return new
    rule, *below = tree
    below[path[0]] = _replaced(below[path[0]], path[1:], new)
    return rule, *below
