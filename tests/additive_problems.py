"""Small tables on which all sums of trees can be enumerated, and the law of these."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from bdtppl.inference.additive import tables
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.inference.additive.kernels import sweep
from bdtppl.inference.additive.monotone import sweep_monotone
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior

VARIANCE, OFFSET, LEAF_SCALE = 0.3, 0.4, 0.6
LEAF = -1
DECAY = {1: 1.0, 2: 1.0, 3: 0.25}  # so slow that trees of three levels are not rare


class Problem(NamedTuple):
    """A table, targets, and the prior; all else that is written here follows from them."""

    design: Design
    y: np.ndarray
    prior: AdditivePrior

    def kernel(self, moves) -> AdditiveKernel:
        return AdditiveKernel(self.prior, self.design, self.y, moves)


@cache
def problem(kind: str, levels: int, num_trees: int, *, cuts: int = 3, features: int = 3):
    """Simulate a table: "plain", "missing", with "weights" of rows, or with "columns".

    In the last one the first two features are 0 or 1, may miss values, and are one column.
    """
    rng = np.random.default_rng(7)
    num_rows = 18
    matrix = rng.integers(0, cuts + 1, (num_rows, features)).astype(float)
    matrix[: cuts + 1] = np.arange(cuts + 1)[:, None]  # every cut is there
    y = OFFSET + 0.8 * (matrix[:, 0] > 1) * (matrix[:, 1] > 0) + 0.5 * rng.normal(size=num_rows)
    weights = 0.7 * rng.integers(1, 4, num_rows) if kind == "weights" else None
    if kind == "missing":
        matrix[rng.random(num_rows) < 0.3, 0] = np.nan
    column = None
    if kind == "columns":
        matrix[:, :2] = np.where(matrix[:, :1] == 3, np.nan, matrix[:, :2] > 1)
        column = np.maximum(np.arange(features) - 1, 0)
    design = Design.from_matrix(matrix, weights=weights, column=column)
    prior = AdditivePrior(
        LEAF_SCALE,
        0.2,
        OFFSET,
        num_trees=num_trees,
        max_depth=levels,
        min_leaf=2,
        beta=DECAY[levels],
    )
    return Problem(design, y, prior)


def rules(of: Problem) -> list[tuple[int, int, bool]]:
    """List (feature, cut, whether missing values go left)."""
    design = of.design
    return [
        (j, cut, left)
        for j in range(design.num_features)
        for left in ([False, True] if design.has_missing[j] else [False])
        for cut in range(1, design.num_codes[j])
    ]


def goes_left(of: Problem, rule) -> np.ndarray:
    feature, cut, missing_left = rule
    codes = of.design.codes[:, feature]
    return np.where(codes < 0, missing_left, codes < cut)


def trees(of: Problem) -> list[tuple[tuple, float, list[np.ndarray]]]:
    """List all trees: what its nodes are, its log prior probability, and the rows of its leaves."""
    every = rules(of)
    number = Counter(feature for feature, *_ in every)
    column = of.design.column.tolist()
    num_columns = len(set(column))
    prior = of.prior
    is_left = {rule: goes_left(of, rule) for rule in every}

    def below(inside: np.ndarray, depth: int) -> list[tuple[tuple, float, list[np.ndarray]]]:
        if inside.sum() < prior.min_leaf:
            return []
        split = prior.alpha * (1 + depth) ** -prior.beta if depth < prior.max_depth else 0.0
        found = [((LEAF,), math.log1p(-split), [inside])]
        for rule in every if split > 0 else []:
            share = 1 / num_columns / column.count(column[rule[0]])
            chance = math.log(split * share / number[rule[0]])
            sides = (below(inside & side, depth + 1) for side in (is_left[rule], ~is_left[rule]))
            for left, right in itertools.product(*sides):
                nodes = (rule, left[0], right[0])
                found.append((nodes, chance + left[1] + right[1], left[2] + right[2]))
        return found

    return below(np.ones(len(of.y), bool), 0)


def log_marginal(of: Problem, leaves: list[np.ndarray], y: np.ndarray) -> float:
    """Log density of targets given which rows share leaf values, by the covariance of all."""
    # The power of a normal density is, but for a constant, one of a variance divided by it.
    indicator = np.array(leaves, float)
    covariance = np.diag(VARIANCE / of.design.weights) + LEAF_SCALE**2 * indicator.T @ indicator
    sign, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    assert sign > 0
    return -0.5 * (log_det + y @ np.linalg.solve(covariance, y))


class Law(NamedTuple):
    """The posterior of the structure of all trees at a known noise variance."""

    structures: list[tuple]
    leaves: list[list[list[np.ndarray]]]
    probability: np.ndarray


def law(of: Problem) -> Law:
    """Enumerate sums of trees."""
    structures, leaves, logs = [], [], []
    for each in itertools.product(trees(of), repeat=of.prior.num_trees):
        structures.append(tuple(nodes for nodes, *_ in each))
        leaves.append([rows for *_, rows in each])
        together = [rows for *_, rows in each]
        prior = sum(chance for _, chance, _ in each)
        logs.append(prior + log_marginal(of, list(itertools.chain(*together)), of.y - OFFSET))
        if of.prior.monotone:
            logs[-1] += np.log(max(chance_of_order(of, each[0][0], together[0]), 1e-300))
    weight = np.exp(np.array(logs) - max(logs))
    return Law(structures, leaves, weight / weight.sum())


def orders(of: Problem, nodes: tuple) -> list[tuple[int, int]]:
    """List pairs of leaves whose second one must not have the lower value, by trying all codes."""

    def walk(nodes, codes, first):
        if nodes == (LEAF,):
            return first
        (j, cut, to_left), left, right = nodes
        goes = to_left if codes[j] < 0 else codes[j] < cut
        return walk(left, codes, first) if goes else walk(right, codes, first + count(left))

    def count(nodes):
        return 1 if nodes == (LEAF,) else count(nodes[1]) + count(nodes[2])

    found = set()
    numbers, missing = bins_of(of.design)
    for codes in itertools.product(*map(range, [-m for m in missing], numbers)):
        for j, sign in enumerate(of.prior.monotone):
            if sign and 0 <= codes[j] < numbers[j] - 1:
                pair = (
                    walk(nodes, codes, 0),
                    walk(nodes, (*codes[:j], codes[j] + 1, *codes[j + 1 :]), 0),
                )
                found |= {pair[::sign]} if pair[0] != pair[1] else set()
    return sorted(found)


def are_in_order(of: Problem, nodes: tuple, values: np.ndarray) -> np.ndarray:
    """Say which sets of values [..., leaves] of a tree are in order."""
    is_so = [values[..., low] <= values[..., high] for low, high in orders(of, nodes)]
    return np.all(is_so, axis=0) if is_so else np.ones(values.shape[:-1], bool)


def chance_of_order(of: Problem, nodes: tuple, leaves: list[np.ndarray], number=20_000) -> float:
    """Estimate how probable it is a posteriori that the values of one tree are in order."""
    indicator = np.array(leaves, float) * of.design.weights / VARIANCE
    precision = indicator.sum(axis=1) + 1 / LEAF_SCALE**2
    normal = np.random.default_rng(1).normal(size=(number, len(leaves)))
    values = indicator @ (of.y - OFFSET) / precision + normal / np.sqrt(precision)
    return float(are_in_order(of, nodes, values).mean())


def values_given(of: Problem, leaves: list[list[np.ndarray]], rng) -> list[np.ndarray]:
    """Draw the values of all leaves given all structures, a list for each tree."""
    indicator = np.array(list(itertools.chain(*leaves)), float)
    weighted = indicator * of.design.weights / VARIANCE
    precision = weighted @ indicator.T + np.eye(len(indicator)) / LEAF_SCALE**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ weighted @ (of.y - OFFSET)
    values = rng.multivariate_normal(mean, covariance, method="cholesky")
    return np.split(values, np.cumsum([len(rows) for rows in leaves])[:-1])


def as_state(of: Problem, kernel: AdditiveKernel, structure, leaves, values):
    """Write a sum of trees as a state of the kernel."""
    start = kernel.init()
    rows = kernel.rows
    numbers = {
        (int(j), int(last) + 1, bool(missing >= 0)): q
        for q, (j, last, missing) in enumerate(
            zip(rows.feature, rows.last, rows.missing, strict=True)
        )
    }
    for tree, nodes in enumerate(structure):
        rank = iter(range(len(leaves[tree])))

        def visit(nodes, slot, tree=tree, rank=rank):
            if nodes == (LEAF,):
                start.value[0, tree, slot] = values[tree][next(rank)]
                return
            start.rule[0, tree, slot] = numbers[nodes[0]]
            visit(nodes[1], 2 * slot + 1)
            visit(nodes[2], 2 * slot + 2)

        visit(nodes, 0)
    left = of.y - OFFSET - by_tree(kernel, start.rule[0], start.value[0]).sum(axis=0)
    return start._replace(left=left[None], variance=VARIANCE)


def by_tree(kernel: AdditiveKernel, rule: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Find the value of each row in each tree, float64 [m, n], by following rules."""
    rows = kernel.rows
    found = np.empty((len(rule), rows.bins.shape[1]))
    for tree, own in enumerate(found):
        for i, bins in enumerate(rows.bins.T):
            slot = 0
            while slot < rule.shape[1] and (q := rule[tree, slot]) >= 0:
                bin = bins[rows.feature[q]]
                is_left = bin <= rows.last[q] or bin == rows.missing[q]
                slot = 2 * slot + 2 - int(is_left)
            own[i] = value[tree, slot]
    return found


def structure_of(kernel: AdditiveKernel, rule: np.ndarray) -> tuple:
    """Read the trees of a state, as `trees` writes them."""
    rows = kernel.rows

    def visit(tree, slot):
        q = tree[slot] if slot < len(tree) else -1
        if q < 0:
            return (LEAF,)
        own = int(rows.feature[q]), int(rows.last[q]) + 1, bool(rows.missing[q] >= 0)
        return own, visit(tree, 2 * slot + 1), visit(tree, 2 * slot + 2)

    return tuple(visit(tree, 0) for tree in rule)


def prior_of(of: Problem, kernel: AdditiveKernel):
    """Look up what sweeps read of the prior, at equal weights of features."""
    return tables.prior_tables(of.prior, kernel.rows, kernel.init().feature_weight)


def moved(kernel: AdditiveKernel, state, prior, room, rng):
    """Sweep once at the known noise variance."""
    shared = (
        kernel.rows,
        prior,
        room,
        kernel.rows.weights,
        1 / VARIANCE,
        kernel.design.has_weights,
        state.left[0],
        state.rule[0],
        state.value[0],
        kernel.moves,
    )
    uniform, normal = kernel.random_numbers(rng, kernel.moves)
    if kernel.prior.monotone:
        sweep_monotone(*shared, uniform, np.array(kernel.prior.monotone), rng)
    else:
        sweep(*shared, uniform, normal)
    return state


def after_moves(of: Problem, moves, starts: int, change=lambda tables: tables, keeps_order=True):
    """Start at draws of the enumerated law, move, and count where the moves end."""
    known, kernel = law(of), of.kernel(moves)
    if not keeps_order:
        kernel = replace(kernel, prior=replace(kernel.prior, monotone=()))
    rng, room, prior = np.random.default_rng(5), kernel.make_room(), change(prior_of(of, kernel))
    ended: Counter = Counter()
    for k in rng.choice(len(known.probability), starts, p=known.probability):
        values = values_given(of, known.leaves[k], rng)
        while of.prior.monotone and not are_in_order(of, known.structures[k][0], values[0]):
            values = values_given(of, known.leaves[k], rng)
        state = as_state(of, kernel, known.structures[k], known.leaves[k], values)
        for _ in range(3):
            moved(kernel, state, prior, room, rng)
        ended[structure_of(kernel, state.rule[0])] += 1
    expected = dict(zip(known.structures, known.probability.tolist(), strict=True))
    return ended, expected


def fitted(of: Problem, known: Law, k: int, rng) -> np.ndarray:
    """Draw the values that rows have in each tree of a structure, [tree, n]."""
    values = values_given(of, known.leaves[k], rng)
    return np.array(
        [
            np.array(own) @ np.array(leaves, float)
            for own, leaves in zip(values, known.leaves[k], strict=True)
        ]
    )


def prior_state(kernel: AdditiveKernel, rng):
    """Draw a state from the prior: all is drawn again until all leaves have rows enough.

    ``left`` is that of targets of 0: less the sum.
    """
    prior, design = kernel.prior, kernel.design
    has_rule = design.has_cut
    while True:
        state = kernel.init()
        if prior.draws_leaf_scale:
            state.leaf_factors[:] = rng.normal(size=(prior.num_sums, 2))
            state.leaf_factors[:, 0] *= prior.leaf_scale
            state.leaf_factors[:, 1] = 1 / np.abs(state.leaf_factors[:, 1])
        weight = np.where(has_rule, 1 / has_rule.sum(), 0.0)
        if prior.sparsity is not None:
            each = np.full(has_rule.sum(), prior.sparsity / has_rule.sum())
            weight[has_rule] = rng.dirichlet(each)
        left = np.zeros((prior.num_sums, design.num_rows))
        if all(
            _draw_tree(
                kernel,
                weight,
                *(part[which, tree] for part in state[:2]),
                left[which],
                rng,
                state.leaf_scale[which],
            )
            for which in range(prior.num_sums)
            for tree in range(prior.num_trees)
        ) and all(
            keeps_order(kernel, state.rule[which, tree], state.value[which, tree])
            for which in range(prior.num_sums)
            for tree in range(prior.num_trees)
        ):
            variance = 1.0
            if prior.link == "identity":
                degrees = prior.noise_degrees
                variance = degrees * prior.noise_scale / rng.chisquare(degrees)
            if not all(
                _draw_tree(kernel, weight, *(part[tree] for part in noise_of(state)), None, rng)
                for tree in range(prior.noise_trees)
            ):
                continue
            if state.linear.size:
                shape = prior.num_sums, len(blocks_of(kernel))
                deviation = np.abs(rng.standard_cauchy(shape))
                deviation *= [scale for scale, _ in blocks_of(kernel)]
                sizes = [columns.shape[1] for _, columns in blocks_of(kernel)]
                linear = np.repeat(deviation, sizes, axis=1) * rng.normal(size=state.linear.shape)
                for place, j in enumerate(np.flatnonzero(has_rule) if prior.monotone else []):
                    if prior.monotone[j] * linear[0, place] < 0:
                        linear[0, place] *= -1
                left -= linear @ linear_columns(kernel).T
                state = state._replace(linear=linear, linear_deviation=deviation)
            state = state._replace(left=left, variance=variance, feature_weight=weight)
            if prior.noise_trees:
                state = state._replace(variance=np.mean(kernel.variances(state)))
            return state


def keeps_order(kernel: AdditiveKernel, rule: np.ndarray, value: np.ndarray) -> bool:
    """Say whether a tree is monotone, by its values at all combinations of bins."""
    rows, direction = kernel.rows, kernel.prior.monotone
    if not direction:
        return True
    sizes = [np.arange(n + m) for n, m in zip(*bins_of(kernel.design), strict=True)]
    at = np.zeros([len(size) for size in sizes])
    for bins in itertools.product(*sizes):
        node = 0
        while node < len(rule) and rule[node] >= 0:
            q = rule[node]
            own = bins[rows.feature[q]]
            node = 2 * node + 2 - int(own <= rows.last[q] or own == rows.missing[q])
        at[bins] = value[node]
    return all(
        not sign or (sign * np.diff(at.take(np.arange(known), axis=j), axis=j) >= 0).all()
        for j, (sign, known) in enumerate(zip(direction, bins_of(kernel.design)[0], strict=True))
    )


def bins_of(design: Design) -> tuple[list[int], list[int]]:
    """Count the bins of each feature, and those of missing values."""
    return design.num_codes.tolist(), design.has_missing.astype(int).tolist()


def noise_of(state):
    return state.noise_rule, state.noise_value


def blocks_of(kernel: AdditiveKernel) -> list[tuple[float, np.ndarray]]:
    """List the prior median and the columns of each block of linear terms."""
    prior, design = kernel.prior, kernel.design
    blocks = []
    if prior.linear_scale is not None:
        blocks.append((prior.linear_scale, standardised(design, design.has_cut)))
    for place, feature in enumerate(prior.groups):
        group = design.matrix[:, prior.groups[0]]
        factor = standardised(design, [feature]) if place else np.ones((len(group), 1))
        blocks.append((prior.group_scale, (group[:, None] == np.unique(group)) * factor))
    return blocks


def linear_columns(kernel: AdditiveKernel) -> np.ndarray:
    return np.concatenate([columns for _, columns in blocks_of(kernel)], axis=1)


def standardised(design: Design, features) -> np.ndarray:
    """Columns of mean 0 and variance 1, missing values being 0."""
    columns = design.matrix[:, features]
    known = ~np.isnan(columns) * design.weights[:, None]
    mean = (known * np.nan_to_num(columns)).sum(axis=0) / known.sum(axis=0)
    around = np.nan_to_num(columns - mean)
    return np.clip(around / np.sqrt((known * around**2).sum(axis=0) / known.sum(axis=0)), -4, 4)


def _draw_tree(kernel: AdditiveKernel, weight, rule, value, left, rng, scale=1.0) -> bool:
    """Draw a tree from the prior into the arrays of a state, and say whether it is allowed.

    Without ``left`` it is one of a product of variances.
    """
    prior, rows = kernel.prior, kernel.rows
    if left is None:
        value[:] = 1.0
    chance = weight[rows.feature] / np.bincount(rows.feature, minlength=len(weight))[rows.feature]
    inside = {0: np.ones(rows.bins.shape[1], bool)}
    for slot in range(len(value)):
        if slot not in inside:
            continue
        depth = int(np.log2(slot + 1))
        split = prior.alpha * (1 + depth) ** -prior.beta if depth < prior.max_depth else 0.0
        if rng.random() < split:
            q = rule[slot] = rng.choice(len(chance), p=chance / chance.sum())
            bins = rows.bins[rows.feature[q]]
            side = (bins <= rows.last[q]) | (bins == rows.missing[q])
            own = inside.pop(slot)
            inside[2 * slot + 1], inside[2 * slot + 2] = own & side, own & ~side
        else:
            value[slot] = scale * rng.normal()
            if left is None:
                degrees, scale = map(float, prior.noise_leaf)
                value[slot] = degrees * scale / rng.chisquare(degrees)
            if left is not None:
                left[inside[slot]] -= value[slot]
    return all(own.sum() >= prior.min_leaf for own in inside.values())


def numbers_of(kernel: AdditiveKernel, state) -> list[float]:
    """Describe a state by a few numbers."""
    f = by_tree(kernel, state.rule[-1], state.value[-1]).sum(axis=0)
    terms = []
    if state.linear.size:
        linear = state.linear[-1] @ linear_columns(kernel).T
        terms = [*np.log(state.linear_deviation[-1]), state.linear[-1, 0], linear.std()]
    if kernel.prior.draws_leaf_scale:
        terms += [np.log(state.leaf_scale[-1])]
    if kernel.prior.monotone:
        terms += [np.mean((f - f.mean()) * (kernel.design.matrix @ kernel.prior.monotone))]
    uses = kernel.rows.feature[state.rule[state.rule >= 0]]
    numbers = [state.variance, np.sum(state.rule >= 0), f[0], f.std(), np.sum(uses == 0)]
    if kernel.prior.noise_trees:
        logs = np.log(kernel.variances(state))
        return [*numbers, np.sum(state.noise_rule >= 0), logs[0], logs.std()]
    if terms:
        return [*numbers, *terms]
    return numbers if kernel.prior.sparsity is None else [*numbers, state.feature_weight[0]]


def log_joint(of: Problem, kernel: AdditiveKernel, state) -> float:
    """Add up the log densities of a state and the targets, term by term."""
    prior, rows, repeats = of.prior, kernel.rows, of.design.weights
    number = np.bincount(rows.feature)

    def of_trees(rule, value, log_density):
        total = 0.0
        for tree in range(len(rule)):
            for slot in range(value.shape[1]):
                if slot > 0 and rule[tree, (slot - 1) // 2] < 0:
                    continue
                depth = int(np.log2(slot + 1))
                split = prior.alpha * (1 + depth) ** -prior.beta if depth < prior.max_depth else 0.0
                q = rule[tree, slot] if slot < rule.shape[1] else -1
                if q >= 0:
                    j = rows.feature[q]
                    total += np.log(split * state.feature_weight[j] / number[j])
                else:
                    total += np.log1p(-split) + log_density(value[tree, slot])
        return total

    def of_variance(degrees, scale):
        return stats.invgamma(degrees / 2, scale=degrees * scale / 2).logpdf

    total = of_trees(state.rule[0], state.value[0], stats.norm(scale=state.leaf_scale[0]).logpdf)
    if prior.draws_leaf_scale:
        total += stats.halfcauchy.logpdf(state.leaf_scale[0], scale=prior.leaf_scale)
    f = np.full(len(of.y), float(prior.offset))
    if prior.offset_feature is not None:
        f += prior.offset_factor * of.design.matrix[:, prior.offset_feature]
    f += by_tree(kernel, state.rule[0], state.value[0]).sum(axis=0)
    own = iter(state.linear[0])
    for (median, columns), scale in zip(blocks_of(kernel), state.linear_deviation[0], strict=True):
        coefficient = np.array([next(own) for _ in columns.T])
        f += columns @ coefficient
        total += stats.norm.logpdf(coefficient, scale=scale).sum()
        total += stats.halfcauchy.logpdf(scale, scale=median)
    variances = np.full(len(of.y), float(state.variance))
    if prior.noise_trees:
        law = of_variance(*map(float, prior.noise_leaf))
        total += of_trees(state.noise_rule, state.noise_value, law)
        variances = by_tree(kernel, state.noise_rule, state.noise_value).prod(axis=0)
    else:
        total += of_variance(prior.noise_degrees, prior.noise_scale)(state.variance)
    return total + repeats @ stats.norm.logpdf(of.y, f, np.sqrt(variances))
