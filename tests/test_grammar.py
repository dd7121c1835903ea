"""The compiled grammar against brute force: reachable sets of rows, productions and their facts."""

import dataclasses
import itertools
import math
import re
import tracemalloc
from collections import Counter, OrderedDict, defaultdict

import enumeration as en
import exact_problems as ep
import numpy as np
import pytest

from bdtppl.inference.exact_cost import estimate_subproblems
from bdtppl.inference.pcfg import compiler
from bdtppl.inference.pcfg.compiler import TooManySubproblems, compile_grammar
from bdtppl.inference.pcfg.hashing import HashTable
from bdtppl.models.arrays.bitsets import pack, unpack
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.prior_kinds import weighs_each_cut
from bdtppl.models.priors import DepthDecay

CASES = [(m, f, seed) for m in ep.MODELS for f in ep.FAMILIES for seed in range(500, 504)]


# -------------------------------------------------------------------------------- brute force


def reachable(problem):
    """Sets of rows that a tree can meet, with the least depth of each."""
    depth_of, frontier = {problem.all_rows: 0}, [problem.all_rows]
    for rows in frontier:
        for rule in en.available_rules(problem, rows, depth_of[rows]):
            for child in en.part(problem, rows, rule):
                if child not in depth_of:
                    depth_of[child] = depth_of[rows] + 1
                    frontier.append(child)
    return depth_of


def check_grammar(case, found):
    """Everything that the grammar states, node by node."""
    problem = case.problem
    depth_of = reachable(problem)
    rows = ep.node_rows(found)
    assert len(rows) == found.num_subproblems == len(depth_of)
    assert set(rows) == set(depth_of)
    assert rows[found.root] == problem.all_rows
    assert np.all(np.diff(found.height) >= 0)
    np.testing.assert_array_equal(found.num_rows, [len(node) for node in rows])
    for node, members in enumerate(rows):
        available = en.available_rules(problem, members, depth_of[members])
        first, stop = found.first_production[node : node + 2]
        productions = range(first, stop)
        assert found.has_rule[node] == bool(available)
        listed = [ep.rules_of_production(found, e) for e in productions]
        assert Counter(itertools.chain(*listed)) == Counter(available)
        for production, rules in zip(productions, listed, strict=True):
            assert found.parent[production] == node
            for rule in rules:
                children = en.part(problem, members, rule)
                assert (rows[found.left[production]], rows[found.right[production]]) == children
        check_facts(case, found, node, members, available)
        children = [*found.left[first:stop], *found.right[first:stop]]
        tallest = max((int(found.height[child]) for child in children), default=-1)
        assert found.height[node] == tallest + 1
    limit = problem.max_depth
    assert found.depth_limit == min(int(found.height[-1]), math.inf if limit is None else limit)


def check_facts(case, found, node, members, available):
    """Numbers that priors read, of one node."""
    problem = case.problem
    uses = Counter(rule.feature for rule in available)
    if available:
        assert found.num_features[node] == len(uses)
    partitions = defaultdict(list)
    for production in range(*found.first_production[node : node + 2]):
        rules = ep.rules_of_production(found, production)
        pair = frozenset(en.part(problem, members, rules[0]))
        partitions[pair].append(production)
        equivalent = [r for r in available if frozenset(en.part(problem, members, r)) == pair]
        assert found.num_equivalent[production] == len(equivalent)
        assert found.num_cuts[production] == len(rules)
        assert found.num_feature_cuts[production] == uses[rules[0].feature]
        widths = {
            r: case_width(problem, members, r) for r in available if r.feature == rules[0].feature
        }
        share = sum(widths[r] for r in rules) / math.fsum(widths.values())
        assert abs(found.width_share[production] - share) < 1e-12
    firsts = {production for productions in partitions.values() for production in productions[:1]}
    for production in range(*found.first_production[node : node + 2]):
        assert found.is_first_of_partition[production] == (production in firsts)


def case_width(problem, members, rule):
    """Width of a gap, or of a cut's share of its gap."""
    low, high = en.enclosing_gap(problem, members, rule)
    width = problem.bucket_low[rule.feature][high] - problem.bucket_high[rule.feature][low]
    return width if problem.rules == "gaps" else width / (high - low)


@pytest.mark.parametrize(("model", "family", "seed"), CASES)
def test_grammar_equals_brute_force(model, family, seed):
    case = ep.random_case(model, family, seed)
    check_grammar(case, case.grammar)


@pytest.mark.parametrize("rules", ["gaps", "cuts"])
def test_chunks_change_nothing(rules, monkeypatch):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 7, (18, 2)).astype(float) ** 2
    matrix[rng.random((18, 2)) < 0.1] = np.nan
    weights, y, constraints = rng.integers(1, 4, 18), np.zeros(18, int), Constraints(min_leaf=2)
    problem, cuts = ep.state(matrix, weights, constraints, rules=rules)
    case = dataclasses.replace(
        ep.random_case(f"leaf penalty, {rules}", "classes", 0),
        matrix=matrix,
        y=y,
        weights=weights,
        cuts=cuts,
        binning={},
        constraints=constraints,
        problem=problem,
    )
    monkeypatch.setattr(compiler, "_CHUNK_ENTRIES", 1)
    assert case.grammar.num_subproblems > 200
    check_grammar(case, case.grammar)


def test_sums_over_rows():
    case = ep.random_case("depth decay, gaps", "values", 511, weighted=True, repeated=True)
    found, values = case.grammar, np.random.default_rng(0).normal(size=(len(case.y), 2))
    sums = found.node_sums(found.cell_sums(values))
    expected = [values[sorted(rows)].sum(axis=0) for rows in ep.node_rows(found)]
    np.testing.assert_allclose(sums, expected, atol=1e-12)


# ----------------------------------------------------------------------------------- numbering


def rules_in_order(design, codes, cells, sizes, constraints, each_cut):
    """Rules of a set of cells: the two sides and the positions of codes, in the grammar's order."""
    for f, offset in enumerate(design.offset[:-1].tolist()):
        present = sorted({codes[c][f] for c in cells} - {-1})
        for low, high in itertools.pairwise(present):
            cuts = range(low + 1, high + 1) if each_cut else [None]
            for cut, missing in itertools.product(cuts, [False, True][: 1 + design.has_missing[f]]):
                left = frozenset(c for c in cells if -missing <= codes[c][f] <= low)
                right = cells - left
                rows = [sum(sizes[c] for c in side) for side in (left, right)]
                if min(rows) >= constraints.min_leaf:
                    cut_at = None if cut is None else offset + cut
                    yield left, right, offset + low, offset + high, cut_at, missing


def numbered(design, constraints, each_cut, chunk, order=sorted):
    """Arrays of the grammar, by sets of cells and sums of their keys in Python's integers.

    New children of a chunk are numbered in the order of their keys, and nodes then by height.
    """
    codes, cell_of_row = np.unique(design.codes, axis=0, return_inverse=True)
    codes, sizes = codes.tolist(), np.bincount(cell_of_row.ravel()).tolist()
    keys = np.random.default_rng(0).integers(1, 2**64, len(codes), dtype=np.uint64).tolist()
    found, depth, rules_of = [frozenset(range(len(codes)))], 0, {}
    begin = 0
    while begin < len(found) and depth != constraints.max_depth:
        level = found[begin:]
        for start in range(0, len(level), chunk):
            nodes = level[start : start + chunk]
            settings = sizes, constraints, each_cut
            rules_of |= {c: list(rules_in_order(design, codes, c, *settings)) for c in nodes}
            children = {side for c in nodes for rule in rules_of[c] for side in rule[:2]}
            new = {sum(keys[c] for c in side) % 2**64: side for side in children - set(found)}
            found += [new[key] for key in order(new)]
        begin, depth = begin + len(level), depth + 1
    height = {}
    for cells in sorted(found, key=len):
        sides = [side for rule in rules_of.get(cells, []) for side in rule[:2]]
        height[cells] = max((height[side] for side in sides), default=-1) + 1
    found.sort(key=height.get)
    number = {cells: i for i, cells in enumerate(found)}
    productions = [rule for cells in found for rule in rules_of.get(cells, [])]
    left, right, low, high, cut, missing = zip(*productions, strict=True)
    return {
        "members": pack(np.array([[c in cells for c in range(len(codes))] for cells in found])),
        "height": [height[cells] for cells in found],
        "first_production": np.cumsum([0, *(len(rules_of.get(cells, [])) for cells in found)]),
        "left": [number[side] for side in left],
        "right": [number[side] for side in right],
        "low": low,
        "high": high,
        "cut": cut if each_cut else None,
        "missing_left": missing if design.has_missing.any() else None,
        "num_rows": [sum(sizes[c] for c in cells) for cells in found],
    }


def check_numbering(found, expected):
    for name, values in expected.items():
        array = getattr(found, name)
        assert (array is None) == (values is None)
        np.testing.assert_array_equal(array, values, err_msg=name)


NUMBERED = {
    "plain": ({}, {}, False),
    "missing values": ({"missing": True}, {}, False),
    "small leaves apart": ({"missing": True}, {"min_leaf": 3}, False),
    "two levels": ({}, {"max_depth": 2}, False),
    "each cut of a grid": ({"grid": 9}, {}, True),
    "each cut, missing values": ({"missing": True, "grid": 6}, {"min_leaf": 2}, True),
}


def numbered_case(name, monkeypatch):
    """Design, grammar and settings of a case that has more than one chunk."""
    columns, limits, each_cut = NUMBERED[name]
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 6, (22, 3)).astype(float) ** 2
    if columns.get("missing"):
        matrix[rng.random(len(matrix)) < 0.2, 1] = np.nan
    weights = rng.integers(1, 4, len(matrix))
    design = Design.from_matrix(matrix, weights=weights, grid=columns.get("grid"))
    constraints = Constraints(**limits)
    monkeypatch.setattr(compiler, "_CHUNK_ENTRIES", 1)
    settings = {"rules": "cuts" if each_cut else "gaps", "each_cut": each_cut, "keep": False}
    found = compile_grammar(design, constraints=constraints, **settings)
    assert found.num_subproblems > 128
    return design, found, (constraints, each_cut, 1)


@pytest.mark.parametrize("name", NUMBERED)
def test_nodes_and_productions_are_numbered_like_those_of_a_plain_search(name, monkeypatch):
    design, found, settings = numbered_case(name, monkeypatch)
    check_numbering(found, numbered(design, *settings))


def test_another_numbering_is_noticed(monkeypatch):
    design, found, settings = numbered_case("missing values", monkeypatch)
    for other in (
        numbered(design, *settings, order=lambda keys: sorted(keys, reverse=True)),
        numbered(design, *settings[:2], 2),
        numbered(design, *settings) | {"left": found.right, "right": found.left},
    ):
        with pytest.raises(AssertionError):
            check_numbering(found, other)


# ----------------------------------------------------------------------- many words, many keys


def test_a_line_has_all_its_runs():
    # Runs of n values: n (n + 1) / 2; each of length k has k - 1 places: C(n + 1, 3) productions.
    n = 150
    found = compile_grammar(Design.from_matrix(np.arange(float(n))[:, None]))
    assert found.num_subproblems == n * (n + 1) // 2
    assert found.num_productions == math.comb(n + 1, 3)
    assert found.height[-1] == n - 1
    assert found.members.shape[1] == 3
    members = found.membership(np.arange(found.num_subproblems))
    assert np.all(members.sum(axis=1) == found.num_rows)
    starts = (np.diff(members.astype(int), axis=1, prepend=0) == 1).sum(axis=1)
    assert np.all(starts == 1)
    assert len(np.unique(members, axis=0)) == len(members)
    assert np.all(found.num_equivalent == 1)


def test_a_full_table_has_all_its_boxes():
    sides = (9, 10, 2)
    matrix = np.array(list(itertools.product(*map(range, sides))), float)
    found = compile_grammar(Design.from_matrix(np.concatenate([matrix, matrix[:7]])))
    runs = [n * (n + 1) // 2 for n in sides]
    places = [math.comb(n + 1, 3) for n in sides]
    assert found.num_cells == math.prod(sides)
    assert found.num_subproblems == math.prod(runs)
    expected = sum(places[f] * math.prod(r for g, r in enumerate(runs) if g != f) for f in range(3))
    assert found.num_productions == expected


@pytest.mark.parametrize("num_slots", [2, 16, 4096])
def test_hash_table_against_a_dictionary(num_slots):
    rng = np.random.default_rng(num_slots)
    table, known = HashTable(num_slots), {}
    for size in (1, 5, 0, 300, 40, 3000, 3000):
        # A few values of the low bits, the last one among them: long runs of taken slots that
        # reach round the table's end.
        high = rng.integers(0, max(2, size // 2), size, dtype=np.uint64)
        low = np.array([0, 1, 2**19, 2**20 - 1], np.uint64)[high % np.uint64(4)]
        keys = (high << np.uint64(20)) + low
        ids, first = table.insert(keys)
        assert np.all(np.diff(keys[first]) < 2**63)  # ascending
        new = [key for key in dict.fromkeys(keys.tolist()) if key not in known]
        assert len(first) == len(new)
        assert set(keys[first].tolist()) == set(new)
        for place, position in enumerate(first):
            known[int(keys[position])] = len(known)
            assert ids[position] == table.size - len(first) + place
        assert ids.tolist() == [known[key] for key in keys.tolist()]
        assert table.size == len(known)


def test_bitsets():
    bits = np.random.default_rng(0).random((20, 130)) < 0.3
    words = pack(bits)
    assert words.shape == (20, 3)
    np.testing.assert_array_equal(unpack(words, 130), bits)
    for word, bit in itertools.product(range(3), range(64)):
        if 64 * word + bit < 130:
            held = (words[:, word] >> np.uint64(bit)) & np.uint64(1)
            np.testing.assert_array_equal(held, bits[:, 64 * word + bit])


# ------------------------------------------------------------------------- shared identities


class _Colliding:
    """Generator whose first keys are 1, 2, 3, ...: many sets of rows share their sums."""

    def __init__(self, rng):
        self.rng, self.calls = rng, 0

    def integers(self, low, high, size, dtype):
        self.calls += 1
        if self.calls == 1:
            return np.arange(1, size + 1, dtype=dtype)
        return self.rng.integers(low, high, size, dtype=dtype)


def test_sets_that_share_an_identity_are_found_out_and_compiled_again(monkeypatch):
    case = ep.random_case("leaf penalty, gaps", "classes", 512, num_rows=9, min_leaf=1)
    make, seeds = np.random.default_rng, []

    def generator(seed):
        seeds.append(seed)
        return _Colliding(make(seed)) if seed == 0 else make(seed)

    monkeypatch.setattr(compiler, "_cache", OrderedDict())
    monkeypatch.setattr(np.random, "default_rng", generator)
    found = compile_grammar(case.design, constraints=case.constraints, keep=False)
    assert seeds == [0, 1]
    monkeypatch.undo()
    check_grammar(case, found)
    # Unnoticed, they would have given another grammar.
    monkeypatch.setattr(np.random, "default_rng", generator)
    monkeypatch.setattr(compiler, "_is_verified", lambda *_: True)
    monkeypatch.setattr(compiler, "_cache", OrderedDict())
    wrong = compile_grammar(case.design, constraints=case.constraints, keep=False)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        check_grammar(case, wrong)


def test_a_production_to_a_wrong_child_is_not_verified():
    found = ep.random_case("leaf penalty, gaps", "classes", 513).grammar
    child, rng = np.stack([found.left, found.right], axis=1), np.random.default_rng(0)
    assert compiler._is_verified(found.members, found.first_production, child, rng)
    for production in range(0, found.num_productions, 7):
        wrong = child.copy()
        wrong[production, 0] = (wrong[production, 0] + 1) % found.num_subproblems
        assert not compiler._is_verified(found.members, found.first_production, wrong, rng)


# ----------------------------------------------------------------------------- budget and cache


def test_budget_is_kept_and_explained():
    design = Design.from_matrix(np.arange(30.0)[:, None])
    with pytest.raises(TooManySubproblems, match="max_subproblems=100") as caught:
        compile_grammar(design, max_subproblems=100)
    found, levels = map(int, re.findall(r": (\d+) were found after (\d+)", str(caught.value))[0])
    assert found > 100
    assert levels >= 1
    assert compile_grammar(design, max_subproblems=465).num_subproblems == 465
    # A grammar in the cache is under the same budget.
    with pytest.raises(TooManySubproblems):
        compile_grammar(design, max_subproblems=464)


@pytest.mark.slow
@pytest.mark.parametrize("each_cut", [False, True])
@pytest.mark.parametrize(("num_rows", "num_features"), [(30_000, 10), (2_000, 100)])
def test_the_size_of_a_large_table_is_estimated_in_little_memory(num_rows, num_features, each_cut):
    matrix = np.random.default_rng(0).normal(size=(num_rows, num_features))
    matrix[::9, 1] = np.nan
    prior = DepthDecay(rules="cuts", over="rules" if each_cut else "features")
    assert weighs_each_cut(prior) is each_cut
    design, y = Design.from_matrix(matrix), np.zeros(num_rows, int)
    model = TreeModel(design, y, prior, DirichletCategorical.symmetric(2))
    tracemalloc.start()
    try:
        assert estimate_subproblems(model) == np.inf
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6


def test_cache_tells_models_apart():
    matrix = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
    design = Design.from_matrix(matrix)
    found = compile_grammar(design)
    assert compile_grammar(Design.from_matrix(matrix.copy())) is found
    others = [
        compile_grammar(design, rules="cuts"),
        compile_grammar(design, constraints=Constraints(min_leaf=2)),
        compile_grammar(design, constraints=Constraints(features=(0,))),
        compile_grammar(Design.from_matrix(matrix * 2)),
        compile_grammar(Design.from_matrix(matrix, weights=[1, 2, 1])),
        compile_grammar(Design.from_matrix(matrix, names=("a", "b"))),
    ]
    assert all(other is not found for other in others)
    assert compile_grammar(design) is found


# ----------------------------------------------------------------------------- mutation twins


def _drop_last_production(found):
    first = found.first_production.copy()
    first[-1] -= 1
    fields = {n: getattr(found, n)[:-1] for n in ("left", "right", "low", "high")}
    missing = None if found.missing_left is None else found.missing_left[:-1]
    return dataclasses.replace(found, first_production=first, missing_left=missing, **fields)


MUTATIONS = {
    "sides swapped": lambda g: dataclasses.replace(g, left=g.right, right=g.left),
    "rows not repeated": lambda g: dataclasses.replace(g, num_rows=np.ones_like(g.num_rows)),
    "heights too large": lambda g: dataclasses.replace(g, height=g.height + 1),
    "missing rows elsewhere": lambda g: dataclasses.replace(g, missing_left=~g.missing_left),
    "a production lost": _drop_last_production,
    "no depth limit": lambda g: dataclasses.replace(g, constraints=Constraints()),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_grammar_is_noticed(name):
    case = ep.random_case(
        "leaf penalty, gaps", "classes", 523, missing=True, weighted=True, max_depth=2, min_leaf=1
    )
    assert case.design.has_missing.any()
    check_grammar(case, case.grammar)
    with pytest.raises(AssertionError):
        check_grammar(case, MUTATIONS[name](case.grammar))


@pytest.mark.parametrize(
    "fact", ["num_cuts", "num_feature_cuts", "num_features", "width_share", "_group_partitions"]
)
def test_a_broken_fact_is_noticed(fact):
    case = ep.random_case("leaf penalty, cuts", "classes", 521, binning={"grid": 4}, copied=True)
    broken = dataclasses.replace(case.grammar)
    values = getattr(broken, fact)
    if fact == "_group_partitions":
        values = (values[0] * 0 + 1, values[1])
    elif fact == "width_share":
        values = values * 1.01
    else:
        values = values + 1
    broken.__dict__[fact] = values
    with pytest.raises(AssertionError):
        check_grammar(case, broken)
