"""One sweep over the trees of a sum, compiled for CPUs.

Trees are complete binary arrays: the children of node v are 2 v + 1 and 2 v + 2. A leaf with the
rows' total precision A and total precision times residual B has the marginal likelihood, up to
what all trees share, sqrt(q / (A + q)) exp(B^2 / (2 (A + q))), where q is the prior precision of
its value. Moves of one tree, given all others:

- A node whose subtree is a leaf or one split is redrawn among the leaf and all splits. The
  histogram of its rows over the bins of each feature, summed up along the bins, has the two sums of
  both sides of every rule.
- The rule of a split with splits below it is redrawn among all rules, those below it held. Here
  each leaf below has a histogram of the node's rows, as if all went to its side.
- Both moves are quicker over the rules of some features alone. The features are partitioned into
  blocks of one size, which begin at a random place. One block is drawn given the node: of a split
  that of its feature, of a leaf that of a feature with its prior probability. Given a block of
  probability p, the leaf is p times as likely beside the block's splits as without it. The features
  of one column, such as the sets of levels of a category, count as one (`RowTables`).

In a product of noise variances the residual of a row is its squared error over the values of all
other trees. A leaf with N rows whose residuals add up to S has the marginal likelihood, but for
what all trees share, c Gamma((v + N) / 2) / ((v l + S) / 2)^((v + N) / 2), where v and l are the
degrees of freedom and the scale of its prior, and c is the constant that makes it 1 without rows.
The moves are the same.

All draw from full conditionals, so every draw is accepted (Gibbs sampling). Leaf values are
integrated out, and drawn after them.
"""

import math

import numba
import numpy as np

from bdtppl.inference.additive.complete_trees import (
    find_leaves,
    follow_rule,
    inlined,
    inner,
    is_leaf,
    node_exists,
    node_splits,
    vectorised,
)
from bdtppl.inference.additive.row_sums import (
    clear,
    fill_histograms,
    sum_left,
    sums_of_leaves,
    totals,
)

# A loop that finds a maximum is vectorised only where no number may be NaN or a signed zero. The
# compiler may not reorder sums: it optimises a function again in each function that calls it, and
# which of these versions runs depends on what a process compiled and what it loaded.
_finds_maximum = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})

_LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_ROUNDS_TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: adding it rounds, into the low bits
_EXPONENT_OF_1 = 1023.0
_LEAST_LOG = -690.0

GROUPS = 100  # times the number of groups of a block, added to the level of a move


@inlined
def uniforms_of_move(internal):
    """Count the uniform numbers that a move reads: one, and for each node of a level three."""
    return 1 + 3 * (internal + 1) // 2


def uniforms_of_visit(levels: int, num_moves: int) -> int:
    """Count the uniform numbers that a visit of a tree reads."""
    return 1 + num_moves * uniforms_of_move(2**levels - 1)


@inner
def _exponentials(room, count, largest):
    """Write exp(gain - largest) times weight into weight [count]; such loops use vector units.

    The argument is k ln 2 + f with an integer k: the series of exp(f) is within 1e-15, and k goes
    into the exponent of a number that multiplies it.
    """
    gain, weight, scaled, bits = room.gain, room.weight, room.scaled, room.bits
    for q in range(count):
        x = max(gain[q] - largest, _LEAST_LOG)
        shifted = x * _LOG2_E + (_ROUNDS_TO_INTEGER + _EXPONENT_OF_1)
        f = x - (shifted - (_ROUNDS_TO_INTEGER + _EXPONENT_OF_1)) * _LN_2
        scaled[q] = shifted
        p = 1 / 39916800.0
        p = p * f + 1 / 3628800.0
        p = p * f + 1 / 362880.0
        p = p * f + 1 / 40320.0
        p = p * f + 1 / 5040.0
        p = p * f + 1 / 720.0
        p = p * f + 1 / 120.0
        p = p * f + 1 / 24.0
        p = p * f + 1 / 6.0
        p = p * f + 0.5
        p = p * f + 1.0
        p = p * f + 1.0
        weight[q] *= p
    for q in range(count):
        bits[q] = bits[q] << 52
    total = 0.0
    for q in range(count):
        weight[q] *= scaled[q]
        total += weight[q]
    return total


@inner
def _chosen(weight, count, total, uniform):
    """Draw an index in proportion to weights [count] of a known total."""
    left = uniform * total
    last = -1
    for q in range(count):
        if weight[q] > 0:
            last = q
            left -= weight[q]
            if left <= 0:
                return q
    return last


@inlined
def _block_of(group, width, uniform, num_groups):
    """Find the first and the end of the groups of a block; of width 0 it has all."""
    if width == 0 or width >= num_groups:
        return 0, num_groups
    begin = int(uniform * width)
    low = (group + begin) // width * width - begin
    return max(low, 0), min(low + width, num_groups)


@_finds_maximum
def _score_splits(on_left, precision, rows, chance, total, a, n, scale, own, fewest, gain, weight):
    """Write the log gain of each rule, and its weight but for that; returns the largest gain.

    A loop reads few arrays: only then does the compiler use vector units.
    """
    half = 0.5 * scale * scale
    both = a + 2 * own
    for q in range(len(chance)):
        u = scale * precision[q] + own
        v = both - u
        left, right = on_left[q], total - on_left[q]
        weight[q] = 1 / (u * v)
        gain[q] = half * (left * left * v + right * right * u) * weight[q]
    for q in range(len(chance)):
        weight[q] = chance[q] * np.sqrt(weight[q])
    for q in range(len(chance)):
        fits = (rows[q] > fewest) & (n - rows[q] > fewest)
        weight[q] = weight[q] if fits else 0.0
        gain[q] = gain[q] if fits else 0.0
    largest = 0.0
    for q in range(len(chance)):
        largest = max(largest, gain[q])
    return largest


@inlined
def _log_of_noise_leaf(prior, squares, count):
    """Log marginal likelihood of a leaf of variances, but for the constant."""
    half = 0.5 * (prior.degrees + count)
    if len(prior.log_gamma) > 0:
        log_gamma = prior.log_gamma[int(count + 0.5)]
    else:
        log_gamma = math.lgamma(half)
    return log_gamma - half * math.log(0.5 * (prior.rate + max(squares, 0.0)))


@inner
def _redraw_noise_node(rows, prior, room, s, level, channels, low, high, total, uniform):
    """Draw the leaf (-1) or the split of a node of variances; see `_redraw_node`."""
    counted = channels - 1
    squares, weights, n, fewest = total[0], total[1], total[counted], prior.min_leaf - 0.5
    largest = of_leaf = _log_of_noise_leaf(prior, squares, weights)
    of_one = -_log_of_noise_leaf(prior, 0.0, 0.0)  # what one leaf more multiplies
    if n <= 2 * fewest or prior.log_split[level] == -np.inf:
        return -1
    sum_left(rows, room, s, channels, low, high)
    first, end = rows.first_rule[low], rows.first_rule[high]
    on_left, weight_left = room.sums[s, 0, first:end], room.sums[s, 1, first:end]
    count = room.sums[s, counted, first:end]
    chance = prior.rule[first:end]
    gain, weight = room.gain, room.weight
    for q in range(end - first):
        fits = count[q] > fewest and n - count[q] > fewest
        weight[q] = chance[q] if fits else 0.0
        gain[q] = of_leaf
        if fits:
            gain[q] = of_one + _log_of_noise_leaf(prior, on_left[q], weight_left[q])
            gain[q] += _log_of_noise_leaf(prior, squares - on_left[q], weights - weight_left[q])
            largest = max(largest, gain[q])
    of_splits = _exponentials(room, end - first, largest)
    factor = np.exp(prior.log_split[level] + 2 * prior.log_stop[level + 1])
    stop = chance.sum() * np.exp(prior.log_stop[level] + of_leaf - largest)
    if uniform[0] * (stop + factor * of_splits) > stop and of_splits > 0:
        return first + _chosen(weight, end - first, of_splits, uniform[1])
    return -1


@inner
def _redraw_node(rows, prior, room, s, level, scale, each_count, low, high, uniform):
    """Draw the leaf (-1) or the split of a node from its histogram, by two uniform numbers."""
    channels = 3 if each_count else 2
    total = np.empty(3)
    totals(rows, room, s, channels, low, total)
    if prior.degrees > 0:
        return _redraw_noise_node(rows, prior, room, s, level, channels, low, high, total, uniform)
    own = prior.precision
    b, a = scale * total[0], scale * total[1]
    largest = b * b / (2 * (a + own))
    of_leaf = largest
    counted = channels - 1
    n, fewest = total[counted], prior.min_leaf - 0.5
    if n > 2 * fewest and prior.log_split[level] > -np.inf:
        sum_left(rows, room, s, channels, low, high)
        first, end = rows.first_rule[low], rows.first_rule[high]
        sums, chance = room.sums[s], prior.rule[first:end]
        best = _score_splits(
            sums[0, first:end], sums[1, first:end], sums[counted, first:end], chance, total[0], a,
            n, scale, own, fewest, room.gain, room.weight,
        )  # fmt: skip
        largest = max(largest, best)
        of_splits = _exponentials(room, end - first, largest)
        below = prior.log_stop[level + 1]
        of_splits_log = prior.log_split[level] + 2 * below
        factor = np.exp(of_splits_log) * own
        stop = np.exp(prior.log_stop[level] + of_leaf - largest) * np.sqrt(own / (a + own))
        stop *= chance.sum()
        if uniform[0] * (stop + factor * of_splits) > stop and of_splits > 0:
            return first + _chosen(room.weight, end - first, of_splits, uniform[1])
    return -1


@inlined
def _redraw_level(
    tree, level, width, rows, prior, room, residual, precision, scale, each_count, rule, leaf,
    uniform,
):  # fmt: skip
    """Redraw the nodes of a level whose subtrees are leaves or one split, over blocks of groups."""
    slot_of, node_of, low, high = room.node
    slot_of[:] = -1
    num_slots, num_groups = np.int64(0), len(rows.offset) - 1
    for v in range(2**level - 1, 2 ** (level + 1) - 1):
        if not node_exists(rule, tree, v):
            continue
        q, left = rule[tree, v], 2 * v + 1
        if q >= 0:
            if node_splits(rule, tree, left) or node_splits(rule, tree, left + 1):
                continue
            slot_of[left] = slot_of[left + 1] = num_slots
        elif width > 0:
            q = _chosen(prior.rule, len(prior.rule), 1.0, uniform[1 + 3 * num_slots])
        slot_of[v] = num_slots
        node_of[num_slots] = v
        group = rows.group[q] if q >= 0 else 0
        low[num_slots], high[num_slots] = _block_of(group, width, uniform[0], num_groups)
        num_slots += 1
    if num_slots == 0:
        return
    clear(rows, room, num_slots)
    fill_histograms(rows, room, residual, precision, each_count, leaf, num_slots)
    for s in range(num_slots):
        v = node_of[s]
        q = _redraw_node(
            rows, prior, room, s, level, scale, each_count, low[s], high[s],
            uniform[3 * s + 2 : 3 * s + 4],
        )  # fmt: skip
        if rule[tree, v] >= 0:  # rows of its children come back
            left = 2 * v + 1
            here, one, other = np.uint8(v), np.uint8(left), np.uint8(left + 1)
            for i in range(len(leaf)):
                leaf[i] = here if (leaf[i] == one) | (leaf[i] == other) else leaf[i]
        rule[tree, v] = q
        if q >= 0:
            follow_rule(v, q, rows, leaf)


@inlined
def _side_of(below, node):
    """Return 0 if a node is below the left child of another one, 1 if the right one, else -1."""
    child = below
    while below > node:
        child, below = below, (below - 1) // 2
    return child - (2 * node + 1) if below == node and child > node else -1


@inlined
def _redraw_rule(
    tree, node, width, rows, prior, room, residual, precision, scale, each_count, rule, leaf, begin,
    uniform,
):  # fmt: skip
    """Redraw the rule of a split with splits below it, which are held, over a block of groups."""
    left = 2 * node + 1
    if not node_splits(rule, tree, left) and not node_splits(rule, tree, left + 1):
        return
    channels = 3 if each_count else 2
    slot_of, _, low, high = room.node
    slot_of[:] = -1
    on_left = num_slots = np.int64(0)
    for side in range(2):
        for v in range(node, len(slot_of)):
            if is_leaf(rule, tree, v) and _side_of(v, node) == side:
                slot_of[v] = num_slots
                num_slots += 1
        on_left = num_slots if side == 0 else on_left
    group, num_groups = rows.group[rule[tree, node]], len(rows.offset) - 1
    low[:num_slots], high[:num_slots] = _block_of(group, width, begin, num_groups)
    place = room.leaf[2]
    clear(rows, room, num_slots)
    for side in range(2):  # where all rows would go on that side
        for i in range(len(leaf)):
            place[i] = left + side if slot_of[leaf[i]] >= 0 else 0
        find_leaves(tree, left + side, rows, rule, place)
        fill_histograms(rows, room, residual, precision, each_count, place, num_slots)
    own, fewest, counted = prior.precision, prior.min_leaf - 0.5, channels - 1
    start = rows.first_rule[low[0]]
    num_rules = rows.first_rule[high[0]] - start
    gain, weight = room.gain, room.weight
    for q in range(num_rules):
        gain[q] = 0.0
        weight[q] = 1.0
    total = np.empty(3)
    half = 0.5 * scale * scale
    for s in range(num_slots):
        sum_left(rows, room, s, channels, low[0], high[0])
        totals(rows, room, s, channels, low[0], total)
        sums = room.sums[s, :, start : start + num_rules]
        is_left = s < on_left
        for q in range(num_rules):
            b = sums[0, q] if is_left else total[0] - sums[0, q]
            a = sums[1, q] if is_left else total[1] - sums[1, q]
            n = sums[counted, q] if is_left else total[counted] - sums[counted, q]
            if n <= fewest:
                gain[q] = -np.inf
            elif prior.degrees > 0:
                gain[q] += _log_of_noise_leaf(prior, b, a)
            else:
                u = scale * a + own
                gain[q] += half * b * b / u
                weight[q] *= own / u
    largest = -np.inf
    for q in range(num_rules):
        weight[q] = np.sqrt(weight[q]) * prior.rule[start + q]
        if weight[q] > 0:
            largest = max(largest, gain[q])
    for q in range(num_rules):
        if gain[q] == -np.inf:
            gain[q] = largest
            weight[q] = 0.0
    total_weight = _exponentials(room, num_rules, largest)
    rule[tree, node] = start + _chosen(weight, num_rules, total_weight, uniform)
    for i in range(len(leaf)):
        leaf[i] = node if slot_of[leaf[i]] >= 0 else leaf[i]
    find_leaves(tree, node, rows, rule, leaf)


@inner
def redraw_values(
    tree, prior, room, residual, precision, scale, each_count, rule, value, leaf, normal
):  # fmt: skip
    """Draw the values of a tree's leaves."""
    a, b = sums_of_leaves(tree, room, precision, residual, each_count, rule, leaf)
    for v in range(value.shape[1]):
        value[tree, v] = 0.0
        if is_leaf(rule, tree, v):
            total = scale * a[v] + prior.precision
            value[tree, v] = scale * b[v] / total + normal[v] / np.sqrt(total)


@inner
def move(
    tree, visit, rows, prior, room, residual, precision, scale, each_count, rule, leaf, moves,
    uniform,
):  # fmt: skip
    """Make the moves of a visit, from uniform numbers."""
    of_move = uniforms_of_move(rule.shape[1])
    for k in range(moves.shape[1]):
        kind = moves[visit, k]
        own = uniform[1 + k * of_move : 1 + (k + 1) * of_move]
        if kind >= 0:
            _redraw_level(
                tree, kind % GROUPS, kind // GROUPS, rows, prior, room, residual, precision, scale,
                each_count, rule, leaf, own,
            )  # fmt: skip
            continue
        width, level = divmod(-1 - kind, GROUPS)
        first = 2**level - 1
        for node in range(first, 2 * first + 1):
            if node_splits(rule, tree, node):
                _redraw_rule(
                    tree, node, width, rows, prior, room, residual, precision, scale, each_count,
                    rule, leaf, own[0], own[1 + node - first],
                )  # fmt: skip


@vectorised
def sweep_noise(
    rows, prior, room, each_count, ratio, rule, value, moves, uniform, generator
):  # fmt: skip
    """Redraw all trees of a product of variances once, in place.

    Parameters
    ----------
    rows, prior, room, each_count, rule, moves, uniform
        As in `sweep`; ``prior`` with the numbers of variances.
    ratio
        float64 [n]; squared errors over the product of all trees; changed.
    value
        float64 [m, 2^(levels + 1) - 1]; values of leaves, 1 elsewhere.
    generator
        numpy.random.Generator.
    """
    weights, leaf = rows.weights, room.leaf[0]
    for tree in range(len(rule)):
        own, own_value = uniform[tree], value[tree]
        leaf[:] = 0
        find_leaves(tree, np.int64(0), rows, rule, leaf)
        for i in range(len(ratio)):
            ratio[i] *= own_value[leaf[i]]
        visit = int(own[0] * len(moves))
        move(
            tree, visit, rows, prior, room, ratio, weights, 1.0, each_count, rule, leaf, moves, own
        )  # fmt: skip
        count, squares = sums_of_leaves(tree, room, weights, ratio, each_count, rule, leaf)
        for v in range(len(own_value)):
            own_value[v] = 1.0
            if is_leaf(rule, tree, v):
                chi = generator.chisquare(prior.degrees + count[v])
                own_value[v] = (prior.rate + squares[v]) / chi
        for i in range(len(ratio)):
            ratio[i] /= own_value[leaf[i]]


@vectorised
def sweep(
    rows, prior, room, precision, scale, each_count, left, rule, value, moves, uniform, normal
):
    """Redraw all trees once, one after the other; arrays are changed in place.

    Parameters
    ----------
    rows, prior, room
        `bdtppl.inference.additive.tables.RowTables`, `SumPriorTables`, and `Room`.
    precision, scale
        float64 [n] and a factor; their product is the precision of each target, weights included.
    each_count
        Whether rows must be counted apart from precisions; otherwise these are all 1.
    left
        float64 [n]; targets less all trees.
    rule
        int32 [m, 2^levels - 1]; rule of each node, -1 where it is no split.
    value
        float64 [m, 2^(levels + 1) - 1]; values of leaves, 0 elsewhere.
    moves
        int64 [visits, k]; what one visit of a tree does, drawn anew for each. GROUPS * w + l
        redraws the nodes of level l over blocks of w groups, and -1 - (GROUPS * w + l) the rules of
        the splits of level l with splits below; w = 0 is for all groups at once.
    uniform, normal
        float64 [m, `uniforms_of_visit`] and [m, 2^(levels + 1) - 1]; random numbers from 0 to 1,
        and standard normal ones.
    """
    num_trees, nothing = len(rule), np.zeros(value.shape[1])
    before = nothing
    room.leaf[:] = 0
    for tree in range(num_trees + 1):
        own, leaf, leaf_before = nothing, room.leaf[tree % 2], room.leaf[1 - tree % 2]
        if tree < num_trees:
            own = value[tree]
            leaf[:] = 0
            find_leaves(tree, np.int64(0), rows, rule, leaf)
        for i in range(len(left)):
            left[i] = left[i] - before[leaf_before[i]] + own[leaf[i]]
        if tree == num_trees:
            return
        visit = int(uniform[tree, 0] * len(moves))
        move(
            tree, visit, rows, prior, room, left, precision, scale, each_count, rule, leaf, moves,
            uniform[tree],
        )  # fmt: skip
        redraw_values(
            tree, prior, room, left, precision, scale, each_count, rule, value, leaf, normal[tree]
        )  # fmt: skip
        before = own
