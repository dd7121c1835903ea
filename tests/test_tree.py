"""Trees as arrays: routing against a plain recursive router, batches, and round trips."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree, route

NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 1e-300, 0.1 + 0.2])
VALUES = st.one_of(NUMBERS, st.just(math.nan), st.floats(allow_nan=True, allow_infinity=False))
STUMP = {"feature": 1, "threshold": 0.5, "missing_left": True, "left": {}, "right": {}}
DEEP = {
    "feature": 0,
    "threshold": 1.0,
    "missing_left": False,
    "left": {"feature": 1, "threshold": 0.0, "missing_left": False, "left": {}, "right": {}},
    "right": {"feature": 1, "threshold": 0.0, "missing_left": True, "left": {}, "right": STUMP},
}


def nested_trees():
    """Nested dictionaries of trees on two features."""

    def split(children):
        return st.builds(
            lambda feature, threshold, missing_left, left, right: {
                "feature": feature,
                "threshold": threshold,
                "missing_left": missing_left,
                "left": left,
                "right": right,
            },
            st.integers(0, 1),
            NUMBERS,
            st.booleans(),
            children,
            children,
        )

    return st.recursive(st.just({}), split, max_leaves=8)


MATRICES = st.lists(st.lists(VALUES, min_size=2, max_size=2), min_size=1, max_size=6).map(np.array)


def leaf_path(nested, row):
    """Sides that lead a row to its leaf, by plain recursion."""
    if "feature" not in nested:
        return ""
    value = row[nested["feature"]]
    left = nested["missing_left"] if math.isnan(value) else value < nested["threshold"]
    side = "left" if left else "right"
    return side[0] + leaf_path(nested[side], row)


def path_to(tree, slot):
    """Sides that lead from the root of one tree to a slot."""
    for parent in range(slot):
        for side in ("left", "right"):
            if tree.feature[parent] >= 0 and getattr(tree, side)[parent] == slot:
                return path_to(tree, parent) + side[0]
    assert slot == 0
    return ""


def stack(trees):
    return Tree.concatenate([tree.reshape(1) for tree in trees])


def check_routes(nested, trees, matrix, router=route):
    """Every row of every tree [b] ends in the leaf that recursion finds."""
    slots = router(trees, matrix)
    assert slots.shape == (len(nested), len(matrix))
    for number, (each, ends) in enumerate(zip(nested, slots, strict=True)):
        tree = trees[number]
        assert tree.is_leaf[ends].all()
        for row, slot in zip(matrix, ends, strict=True):
            assert path_to(tree, int(slot)) == leaf_path(each, row)


@given(nested=st.lists(nested_trees(), min_size=1, max_size=4), matrix=MATRICES)
def test_routes_are_those_of_recursion(nested, matrix):
    check_routes(nested, stack(map(Tree.from_nested, nested)), matrix)


def test_routes_of_many_trees_and_rows():
    rng = np.random.default_rng(0)
    nested = [(STUMP, DEEP, {})[i] for i in rng.integers(0, 3, 90)]
    trees = stack(map(Tree.from_nested, nested))
    matrix = rng.normal(size=(50, 2))
    matrix[rng.random((50, 2)) < 0.2] = np.nan
    check_routes(nested, trees, matrix)
    whole = route(trees, matrix)
    np.testing.assert_array_equal(
        route(trees.reshape(9, 10), matrix), whole.reshape(9, 10, len(matrix))
    )
    assert route(trees[3], matrix).shape == (50,)
    assert route(trees, matrix[:0]).shape == (90, 0)
    with pytest.raises(IndexError):  # and no memory beyond the matrix is read
        route(trees, matrix[:, :0])


def test_a_value_on_the_threshold_goes_right_to_the_last_bit():
    # float32 would not tell these apart.
    threshold = 0.1 + 0.2
    tree = Tree.from_nested({"feature": 0, "threshold": threshold, "left": {}, "right": {}})
    values = [np.nextafter(threshold, 0), threshold, np.nextafter(threshold, 1), np.nan]
    assert route(tree, np.array(values)[:, None]).tolist() == [1, 2, 2, 2]


# ----------------------------------------------------------------------------------- round trips


@given(nested=nested_trees(), room=st.integers(0, 3))
def test_nested_and_json_round_trip(nested, room):
    tree = Tree.from_nested(nested, capacity=_count(nested) + room)
    assert tree.capacity == tree.num_nodes + room
    assert tree.to_nested() == nested
    assert Tree.from_nested(json.loads(json.dumps(tree.to_nested()))).to_nested() == nested


def _count(nested):
    return 1 + sum(_count(nested[s]) for s in ("left", "right")) if "feature" in nested else 1


def _leaves(nested):
    return sum(_leaves(nested[s]) for s in ("left", "right")) if "feature" in nested else 1


def _depth(nested):
    return 1 + max(_depth(nested[s]) for s in ("left", "right")) if "feature" in nested else 0


@given(nested=st.lists(nested_trees(), min_size=1, max_size=4))
def test_counts_of_a_batch(nested):
    trees = stack(map(Tree.from_nested, nested))
    assert trees.batch_shape == (len(nested),)
    assert trees.num_nodes.tolist() == list(map(_count, nested))
    assert trees.num_leaves.tolist() == list(map(_leaves, nested))
    assert trees.depth.tolist() == list(map(_depth, nested))
    assert trees.is_used.sum(axis=1).tolist() == list(map(_count, nested))
    assert trees.is_leaf.sum(axis=1).tolist() == list(map(_leaves, nested))
    assert np.all(trees.feature[~trees.is_used] == -1)
    assert np.all(np.isnan(trees.threshold) == (trees.feature < 0))
    for number, each in enumerate(nested):
        assert trees[number].to_nested() == each
        depths = [len(path_to(trees[number], s)) for s in range(_count(each))]
        assert trees[number].node_depth[: _count(each)].tolist() == depths
    # A child lies in a later slot than its parent.
    slots = np.arange(trees.capacity)
    assert np.all((trees.left > slots) | (trees.feature < 0))
    assert np.all((trees.right > slots) | (trees.feature < 0))


def test_batch_axes():
    trees = stack(map(Tree.from_nested, [STUMP, DEEP, {}, STUMP])).reshape(2, 2)
    assert trees.batch_shape == (2, 2)
    assert trees[1].batch_shape == (2,)
    assert trees[0, 1].to_nested() == DEEP
    assert trees[:, 0].num_nodes.tolist() == [3, 1]
    with pytest.raises(IndexError, match="no batch axis"):
        trees[0, 1][0]
    with pytest.raises(ValueError, match="One tree is needed"):
        trees.to_nested()
    with pytest.raises(ValueError, match="capacity 2 is too small"):
        Tree.from_nested(STUMP, capacity=2)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ([0, 1], "A node must be a dictionary, {} for a leaf; got"),
        (STUMP | {"left": None}, "A node must be a dictionary, {} for a leaf; got None"),
        (STUMP | {"cut": 0.5}, "threshold, left, right and missing_left; got 'cut'"),
        ({"value": 0.5}, "A split has keys feature, .*; got 'value'"),
        ({"feature": 0, "threshold": 0.5, "left": {}}, "A split needs 'right'; got only feature,"),
        (STUMP | {"feature": 0.5}, "feature must be an integer of at least 0; got 0.5"),
        (STUMP | {"feature": -1}, "feature must be an integer of at least 0; got -1"),
        (STUMP | {"threshold": "low"}, "threshold must be a number; got 'low'"),
    ],
)
def test_nested_nodes_without_sense_are_refused(nested, message):
    with pytest.raises(ValueError, match=message):
        Tree.from_nested(nested)


# ----------------------------------------------------------------------------------------- rules


def test_a_tree_is_shown_by_its_rules():
    assert repr(Tree.from_nested(STUMP)).splitlines()[0] == "Tree(num_leaves=2)"
    assert repr(Tree.from_nested(STUMP)).endswith(Tree.from_nested(STUMP).rules(["x0", "x1"]))
    assert repr(Tree.from_nested({})) == "Tree(num_leaves=1)\nalways"
    assert repr(Tree.from_nested(DEEP).reshape(1)) == "Tree(batch_shape=(1,), capacity=9)"


def test_rules_in_words():
    names = ["age", "smoker"]
    tree = Tree.from_nested(DEEP)
    lines = tree.rules(names, [f"leaf {i}" for i in range(9)]).splitlines()
    assert lines == [
        "age < 1",
        "  smoker < 0: leaf 3",
        "  smoker >= 0: leaf 4",
        "age >= 1",
        "  smoker < 0: leaf 5",
        "  smoker >= 0",
        "    smoker < 0.5: leaf 7",
        "    smoker >= 0.5: leaf 8",
    ]
    matrix = np.array([[0.0, 0.0], [2.0, 1.0], [np.nan, 1.0]])
    design = Design.from_matrix(matrix, is_indicator=np.array([False, True]))
    lines = tree.rules(names, design=design).splitlines()
    assert lines[:2] == ["age < 1", "  not smoker"]
    assert lines[3:5] == ["age >= 1 or missing", "  not smoker"]
    assert lines[-2:] == ["    not smoker", "    smoker"]
    both = Tree.from_nested(STUMP).rules(names, show_missing=[True, True]).splitlines()
    assert both == ["smoker < 0.5 or missing", "smoker >= 0.5"]
    assert Tree.from_nested({}).rules(names, ["seven"]) == "always: seven"


# ----------------------------------------------------------------------------- mutation twins


def _changed(trees, **fields):
    arrays = {n: getattr(trees, n) for n in ("feature", "threshold", "missing_left")}
    arrays |= {n: getattr(trees, n) for n in ("left", "right", "num_nodes")}
    return Tree(**(arrays | fields))


MUTATIONS = {
    "a value on the threshold goes left": lambda t: _changed(
        t, threshold=np.nextafter(t.threshold, np.inf)
    ),
    "missing values go to the other side": lambda t: _changed(t, missing_left=~t.missing_left),
    "sides swapped": lambda t: _changed(t, left=t.right, right=t.left),
    "another feature": lambda t: _changed(t, feature=np.where(t.feature >= 0, 1 - t.feature, -1)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_router_is_noticed(name):
    trees = stack(map(Tree.from_nested, [STUMP, DEEP]))
    matrix = np.array([[0.0, 0.5], [1.0, 0.0], [np.nan, 0.5], [2.0, np.nan], [2.0, 3.0]])
    check_routes([STUMP, DEEP], trees, matrix)
    broken = MUTATIONS[name](trees)
    with pytest.raises(AssertionError):
        check_routes([STUMP, DEEP], trees, matrix, lambda _, rows: route(broken, rows))
