"""Shapes of soft trees against a recursion over nested pairs."""

import itertools
from collections import Counter

import exact_problems as ep
import numpy as np
import pytest

from bdtppl.models.soft.topology import (
    DEFAULT_MOVES,
    Topology,
    TopologyPrior,
    neighbours,
    topologies,
)


def nested(num_splits):
    """List all shapes as nested pairs; a leaf is None."""
    if num_splits == 0:
        return [None]
    return [
        (left, right)
        for on_left in range(num_splits)
        for left in nested(on_left)
        for right in nested(num_splits - 1 - on_left)
    ]


def code(tree):
    return "0" if tree is None else "1" + code(tree[0]) + code(tree[1])


def mirrored(tree):
    return None if tree is None else (mirrored(tree[1]), mirrored(tree[0]))


def routes(tree):
    """Turns on the way to each leaf, as (number of the split in preorder, 1 left or -1 right)."""
    number = iter(range(100))

    def walk(node, turns):
        if node is None:
            yield dict(turns)
            return
        own = next(number)
        yield from walk(node[0], [*turns, (own, 1)])
        yield from walk(node[1], [*turns, (own, -1)])

    return list(walk(tree, []))


SHAPES = [tree for n in range(5) for tree in nested(n)]


def test_all_shapes_are_listed_once_and_no_code_begins_another():
    for n in range(6):
        assert {shape.code for shape in topologies(n)} == set(map(code, nested(n)))
        assert len(topologies(n)) == len(nested(n))
    codes = sorted(code(tree) for tree in SHAPES)
    assert not any(b.startswith(a) for a, b in itertools.pairwise(codes))


@pytest.mark.parametrize("tree", SHAPES, ids=code)
def test_facts_of_shapes(tree):
    shape = Topology(code(tree))
    turns = routes(tree)
    assert shape.num_leaves == len(turns) == shape.num_splits + 1
    expected = [[turn.get(j, 0) for j in range(shape.num_splits)] for turn in turns]
    assert shape.paths.tolist() == expected
    assert shape.leaf_depths.tolist() == [len(turn) for turn in turns]
    assert shape.depth == max(map(len, turns))
    above = [min(list(turn).index(j) for turn in turns if j in turn) for j in range(len(turns) - 1)]
    assert shape.split_depths.tolist() == above
    assert shape.mirrored.code == code(mirrored(tree))
    assert shape.unordered_code == shape.mirrored.unordered_code
    assert all(shape in set(larger.pruned()) for larger in shape.grown())
    assert all(shape in set(smaller.grown()) for smaller in shape.pruned())


def test_mirror_images_are_those_that_exchanges_reach():
    def images(tree):
        if tree is None:
            return {None}
        return {pair for a in images(tree[0]) for b in images(tree[1]) for pair in ((a, b), (b, a))}

    for one in nested(4):
        found = {s for s in topologies(4) if s.unordered_code == Topology(code(one)).unordered_code}
        assert found == {Topology(code(tree)) for tree in images(one)}


def test_steps_of_the_walk():
    for shape in [Topology(), Topology("100"), Topology("1100100")]:
        found = neighbours(shape)
        assert sum(found.values()) == pytest.approx(1)
        made = {
            name: weight
            for name, weight in DEFAULT_MOVES.items()
            if name != "prune" or shape.num_splits
        }
        total = sum(made.values())
        expected = Counter()
        for larger in shape.grown():
            expected[larger] += made["grow"] / total / shape.num_leaves
        for smaller in shape.pruned():
            expected[smaller] += made["prune"] / total / len(list(shape.pruned()))
        expected[shape] += made["stay"] / total
        assert found == pytest.approx(dict(expected))
    assert max(s.num_splits for s in neighbours(Topology("100"), max_splits=1)) == 1


def check_prior(prior, drawn_from):
    """Draws have the law of the product over nodes; a false alarm is one in 10^4."""
    rng = np.random.default_rng(0)
    drawn = Counter(drawn_from.sample(rng).code for _ in range(20_000))
    expected = {s.code: np.exp(prior.log_prob(s)) for n in range(4) for s in topologies(n)}
    rest = 1 - sum(expected.values())
    larger = sum(count for name, count in drawn.items() if name not in expected)
    drawn = Counter({name: drawn[name] for name in expected} | {"larger": larger})
    assert ep.g_test(drawn, expected | {"larger": rest}) > ep.FALSE_ALARM


def test_draws_of_the_prior():
    check_prior(TopologyPrior(0.9, 1.0), TopologyPrior(0.9, 1.0))


def test_draws_of_another_prior_are_noticed():
    with pytest.raises(AssertionError):
        check_prior(TopologyPrior(0.9, 1.0), TopologyPrior(0.87, 1.0))


def test_the_prior_adds_up_to_one_and_can_be_cut_off():
    prior = TopologyPrior(0.5, 1.0)
    assert sum(np.exp(prior.log_prob(s)) for n in range(9) for s in topologies(n)) == pytest.approx(
        1, abs=1e-3
    )
    rng = np.random.default_rng(0)
    assert max(prior.sample(rng, max_splits=1).num_splits for _ in range(200)) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology("10"), "ends before"),
        (lambda: Topology("000"), "continues after"),
        (lambda: Topology("1a0"), "string of 0 and 1"),
        (
            lambda: neighbours(Topology(), moves={"swap": 1}),
            "moves must name some of .*; got 'swap'",
        ),
        (lambda: neighbours(Topology(), moves={"grow": -1}), "at least 0"),
        (lambda: neighbours(Topology(), moves={"prune": 1}), "No move"),
        (lambda: TopologyPrior(1.5), "alpha must be in"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("max_splits", [0, 1, 4])
def test_mass_of_what_is_allowed(max_splits):
    prior = TopologyPrior(0.8, 0.5)
    allowed = [shape for n in range(max_splits + 1) for shape in topologies(n)]
    mass = np.exp([prior.log_prob(shape) for shape in allowed])
    assert np.exp(prior.log_mass(max_splits)) == pytest.approx(mass.sum())
    if max_splits:
        assert np.exp(prior.log_mass(max_splits, with_leaf=False)) == pytest.approx(mass[1:].sum())
        assert np.exp(prior.log_mass(with_leaf=False)) == pytest.approx(0.8)


def test_trees_that_do_not_end_are_refused():
    with pytest.raises(ValueError, match="hardly end: set max_splits"):
        TopologyPrior(0.95, 0.0).sample(np.random.default_rng(0))
