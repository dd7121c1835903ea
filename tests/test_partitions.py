"""Trees that part rows alike are told from others, by row sets written out node by node."""

import numpy as np
import pandas as pd
import pytest

from bdtppl import (
    ExactTreeClassifier,
    GFlowNetTreeClassifier,
    MetropolisTreeClassifier,
    plot_structures,
)
from bdtppl.inference.hard import partitions
from bdtppl.inference.hard.partitions import group_by_leaves, group_by_rows
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, DescriptionLength, LeafPenalty

RNG = np.random.default_rng(5)
X = RNG.integers(0, 5, (12, 2)).astype(float)
X[[2, 7], [0, 1]] = np.nan


def grown(depth: int) -> dict:
    if depth == 0 or RNG.random() < 0.3:
        return {}
    return {
        "feature": int(RNG.integers(2)),
        "threshold": float(RNG.choice([0.5, 1.2, 1.7, 2.5, 3.1, 3.6])),
        "missing_left": bool(RNG.integers(2)),
        "left": grown(depth - 1),
        "right": grown(depth - 1),
    }


def written_out(node: dict, rows: frozenset) -> tuple:
    """Row sets of all nodes, with the features of splits and the sides of missing values."""
    if not node:
        return (rows,)
    values = X[:, node["feature"]]
    left = {
        row
        for row in rows
        if (node["missing_left"] if np.isnan(values[row]) else values[row] < node["threshold"])
    }
    own = rows, node["feature"], node["missing_left"]
    sides = frozenset(left), rows - frozenset(left)
    return own, *(
        written_out(node[s], part) for s, part in zip(("left", "right"), sides, strict=True)
    )


def leaves(node: tuple) -> list[frozenset]:
    """Row sets of the leaves of what is written out, without empty ones."""
    if len(node) == 1:
        return [node[0]] * bool(node[0])
    return leaves(node[1]) + leaves(node[2])


def check(group) -> None:
    """Two trees are one if all their nodes have the same rows, and if not they are not."""
    nested = [grown(2) for _ in range(300)]
    first, index = group(Tree.concatenate([Tree.from_nested(n).reshape(1) for n in nested]), X)
    keys = [written_out(n, frozenset(range(len(X)))) for n in nested]
    assert len(first) == len(set(keys)) < len({str(n) for n in nested})
    assert len(set(zip(keys, index.tolist(), strict=True))) == len(first)
    np.testing.assert_array_equal(index[first], np.arange(len(first)))


def test_trees_of_the_same_leaves_are_one_partition(monkeypatch):
    """The leaves' row sets are written out; leaves without rows do not count."""
    nested = [grown(2) for _ in range(300)]
    trees = Tree.concatenate([Tree.from_nested(n).reshape(1) for n in nested])
    keys = [frozenset(leaves(written_out(n, frozenset(range(len(X)))))) for n in nested]
    for pairs in (partitions._PAIRS, 50):
        monkeypatch.setattr(partitions, "_PAIRS", pairs)
        first, index = group_by_leaves(trees, X)
        assert len(first) == len(set(keys)) < len(group_by_rows(trees, X)[0])
        assert len(set(zip(keys, index.tolist(), strict=True))) == len(first)
        np.testing.assert_array_equal(index[first], np.arange(len(first)))


def test_trees_that_part_rows_alike_are_one(monkeypatch):
    check(group_by_rows)
    monkeypatch.setattr(partitions, "_PAIRS", 50)  # a few trees at a time
    check(group_by_rows)


def two_orders_of_splits():
    """Two columns and four cells of rows, each of another class."""
    x = np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 6, axis=0)
    return x, np.repeat(["a", "b", "c", "d"], 6)


@pytest.mark.slow
def test_two_orders_of_splits_are_one_partition():
    """They have the same leaves, and so by symmetry the same probability."""
    x, y = two_orders_of_splits()
    model = ExactTreeClassifier(bins=None, prior=DepthDecay(0.9, 1.0)).fit(x, y)
    one, other, third = model.k_best(3).probability
    assert one == pytest.approx(other)
    best = model.k_best(1, by="partition")
    assert best.probability[0] == pytest.approx(one + other)
    assert model.map_probability_ == pytest.approx(one)
    found = model.structures()
    assert (found.by, found.probability[0]) == ("partition", pytest.approx(one + other))
    assert len(set(map(str, model.structures("tree").ranked))) > len(found.probability)
    assert model.structures("tree").probability[:3] == pytest.approx([one, other, third])
    ax, *_ = plot_structures(model)
    assert ax.get_title() == f"no. 1, posterior probability {one + other:.3g}"
    ax, *_ = plot_structures(model, by="tree")
    assert ax.get_title() == f"no. 1, posterior probability {one:.3g}"
    with pytest.raises(ValueError, match="by must be 'tree' or 'partition'; got 'row'"):
        model.k_best(3, by="row")


@pytest.mark.slow
def test_draws_of_two_orders_of_splits_are_one_partition():
    """Every other draw has the other order; 2,000 fair draws differ by less than 6 errors."""
    x, y = two_orders_of_splits()
    model = ExactTreeClassifier(
        bins=None, prior=DepthDecay(0.9, 1.0), draws=500, random_state=0
    ).fit(x, y)
    first, tree = model.posterior_.partitions
    share = np.bincount(tree.ravel()).max() / tree.size
    best = model.k_best(1, by="partition").probability[0]
    assert share == pytest.approx(best, abs=6 * np.sqrt(best * (1 - best) / tree.size))
    assert len(first) == tree.max() + 1 < len(model.posterior_.structures[0])


@pytest.mark.parametrize(
    "twin",
    [
        lambda trees, x: partitions.group(trees, trees.threshold),
        lambda trees, x: partitions.group(trees, np.zeros_like(trees.threshold)),
        lambda trees, x: group_by_rows(trees, x[:6]),
    ],
    ids=["each cut", "features alone", "half of the rows"],
)
def test_another_grouping_is_noticed(twin):
    with pytest.raises(AssertionError):
        check(twin)


@pytest.mark.slow
def test_rules_of_a_partition_are_not_counted_twice():
    """Each has all of the partition's weight, under a prior that counts partitions."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 2))
    y = np.where((x[:, 0] > 0) ^ (rng.random(40) < 0.1), "yes", "no")
    model = {
        "prior": LeafPenalty(1.0, rules="cuts"),
        "leaf": DirichletCategorical.symmetric(2, 0.5),
        "grid": 30,
        "max_depth": 2,
        "random_state": 0,
    }
    best = ExactTreeClassifier(**model).fit(x, y).k_best(1)
    found = GFlowNetTreeClassifier(**model, steps=5).fit(x, y)  # exact, for trees so small
    assert found.k_best(1).probability[0] == pytest.approx(best.probability[0])
    _, tree = found.posterior_.distinct
    first, _ = found.posterior_.structures
    assert tree.max() + 1 > len(first)  # there is something to count twice


@pytest.mark.slow
def test_cuts_of_one_gap_are_one_structure_by_every_inference():
    """A category is one column of 0 and 1, which 99 cuts of a grid part alike."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["u", "v"], 80)})
    y = np.where((table.b == "u") ^ (rng.random(80) < 0.1), "yes", "no")
    model = {
        "prior": DescriptionLength(),
        "leaf": DirichletCategorical.symmetric(2, 0.1),
        "grid": 99,
        "max_depth": 2,
        "random_state": 0,
    }
    exact = ExactTreeClassifier(**model).fit(table, y)
    best = exact.k_best(2).probability
    assert best[0] == pytest.approx(99 * np.exp(exact.map_log_joint_ - exact.log_partition_))
    for other in (
        GFlowNetTreeClassifier(**model, steps=20),
        MetropolisTreeClassifier(**model, warmup=500),
    ):
        other.fit(table, y)
        found = other.structures()
        # Of at least 200 effective draws; 6 standard deviations: 1 false alarm in 500 million.
        error = 6 * np.sqrt(best[0] * (1 - best[0]) / 200)
        assert found.probability[0] == pytest.approx(best[0], abs=error)
        assert other.k_best(1).probability[0] == pytest.approx(best[0], abs=error)
        assert len({other.rules(rank) for rank in range(2)}) == 2
