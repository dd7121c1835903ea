"""What chains and particles walk on: rules as sets of rows, a prior, a leaf family and limits.

Sets of rows are words of bits, so the rows of a node are its parent's intersected with its rule's
side, and counting them is counting bits. The facts of a node that a prior asks for follow from how
many of its rows lie on the left of every rule. Where constraints look at the path, a node's words
of rows are followed by one more, what it remembers of its path.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.bitsets import pack
from bdtppl.inference.precision import as_float64
from bdtppl.inference.statistics import row_statistics
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design, midpoint
from bdtppl.models.leaves import CountTable, Leaf
from bdtppl.models.path_memory import PathMemory
from bdtppl.models.priors import Node, Rule, TreePrior, require_rules_apart, rule_law
from bdtppl.models.rule_laws import DenseRules, RuleLaw

__all__ = [
    "Available",
    "Model",
    "NodeTerms",
    "NodeWeights",
    "available_rules",
    "children",
    "code_above",
    "leaf_scores",
    "leaf_statistics",
    "log_rule",
    "node_terms",
    "node_weights",
    "pose",
    "split_scores",
    "thresholds",
]

_UNROLLED = 32  # words of a set that are counted in one fused operation


class Model(NamedTuple):
    """Tables of rules, and what scores trees; n rows, W words, R rules, d features, s statistics.

    A node's set of rows is W words, or W + 1 where there is a `path`.

    A rule is a cut after one code of a feature, with missing values on one side. Rules of one
    feature and side of missing values lie side by side, in the order of their cuts. Rules that no
    tree uses stand in the table too: the cut after a feature's last code, which keeps its total,
    and, where missing values go left, one before its first code, which keeps their number.

    Attributes
    ----------
    left_rows, left_words
        uint64 [W, R] and [R, W]; rows on the left, twice: one to count them in all rules, one to
        look a rule up.
    rows_at
        uint64 [W, R]; rows at the code below the cut.
    rows_below, rows_above
        uint64 [W, R], or None where no value is missing; rows with a value on either side.
    every_row
        uint64 [W] or [W + 1]; the root's set.
    feature
        int32 [R].
    low
        int32 [R]; flat code position (see `Design`) below the cut.
    missing_left
        bool [R].
    first, last
        int32 [R]; ends of the rule's run.
    can_cut
        bool [R]; whether a tree may use the rule.
    low_edge, high_edge
        float64 [R]; least and greatest training value of the code below the cut.
    threshold
        float64 [R]; the cut.
    place, num_items
        int [R] and [d]; place in the list of the feature's rules, and its length (see
        `bdtppl.models.rule_laws.RuleTable`).
    by_feature
        float64 [R, d]; one where the rule splits on the feature.
    statistics
        float64 [n, s]; leaf statistics of single rows.
    classes
        uint64 [W, s], or None; rows of each class, where the statistics count classes.
    table
        Log marginals of counts of classes, or None.
    min_leaf, max_depth
        float64 scalars; limits.
    path
        What nodes remember of their paths, or None where no constraint looks at them.
    directions
        int [d]; directions of monotone features, or None.
    prior, leaf
        The model's numbers, float64.
    """

    left_rows: jax.Array
    left_words: jax.Array
    rows_at: jax.Array
    rows_below: jax.Array | None
    rows_above: jax.Array | None
    every_row: jax.Array
    feature: jax.Array
    low: jax.Array
    missing_left: jax.Array
    first: jax.Array
    last: jax.Array
    can_cut: jax.Array
    low_edge: jax.Array
    high_edge: jax.Array
    threshold: jax.Array
    place: jax.Array
    num_items: jax.Array
    by_feature: jax.Array
    statistics: jax.Array
    classes: jax.Array | None
    table: CountTable | None
    min_leaf: jax.Array
    max_depth: jax.Array
    path: PathMemory | None
    directions: jax.Array | None
    prior: Any
    leaf: Any


def pose(
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints | None = None,
) -> Model:
    """Tabulate rules and rows; repeated rows are written out.

    Parameters
    ----------
    design
        Training rows.
    y
        Targets [n].
    prior
        Node-wise tree prior.
    leaf
        Leaf family.
    constraints
        Limits on the tree.

    Raises
    ------
    ValueError
        If the targets do not fit the rows, or the prior not the constraints.
    """
    y = np.asarray(y)
    if y.shape != (design.num_rows,):
        raise ValueError(
            f"y must have one entry per row, shape ({design.num_rows},); got {y.shape}."
        )
    constraints = Constraints() if constraints is None else constraints
    require_rules_apart(prior, constraints)
    allowed = constraints.allows(design.names)
    path, directions = constraints.path_memory(design.names), constraints.directions(design.names)
    row = np.repeat(np.arange(design.num_rows), design.weights)
    codes = design.codes[row]
    runs = []
    for j in range(design.num_features):
        for missing_left in (False, True) if design.has_missing[j] else (False,):
            runs.append((j, missing_left, np.arange(-int(missing_left), design.num_codes[j])))
    feature = np.concatenate([np.full(len(code), j) for j, _, code in runs])
    missing_left = np.concatenate([np.full(len(code), side) for _, side, code in runs])
    code = np.concatenate([code for _, _, code in runs])
    sizes = np.array([len(code) for _, _, code in runs])
    ends = np.cumsum(sizes)
    last = np.repeat(ends - 1, sizes)
    low = design.offset[feature] + np.maximum(code, 0)
    values, is_value = codes[:, feature], codes[:, feature] >= 0
    left_words = pack(((values <= code) & (is_value | missing_left)).T)
    num_sides = 1 + design.has_missing
    rows_at = _by_word(is_value & (values == code))
    rows_below = rows_above = None
    if design.has_missing.any():
        rows_below, rows_above = _by_word(is_value & (values <= code)), _by_word(values > code)
    statistics = row_statistics(leaf, y[row], np.ones(len(row)))
    table = getattr(leaf, "log_marginal_table", lambda num_rows: None)(len(row))
    if not isinstance(table, CountTable):
        table = None
    max_depth = np.inf if constraints.max_depth is None else constraints.max_depth
    every_row = pack(np.ones((1, len(row)), bool))[0]
    if path is not None:
        every_row = np.append(every_row, path.start)
    with jax.enable_x64(True):
        return Model(
            left_rows=jnp.asarray(np.ascontiguousarray(left_words.T)),
            left_words=jnp.asarray(left_words),
            rows_at=rows_at,
            rows_below=rows_below,
            rows_above=rows_above,
            every_row=jnp.asarray(every_row),
            feature=jnp.asarray(feature, jnp.int32),
            low=jnp.asarray(low, jnp.int32),
            missing_left=jnp.asarray(missing_left),
            first=jnp.asarray(np.repeat(ends - sizes, sizes), jnp.int32),
            last=jnp.asarray(last, jnp.int32),
            can_cut=jnp.asarray((np.arange(len(code)) != last) & (code >= 0) & allowed[feature]),
            low_edge=jnp.asarray(np.nan_to_num(design.low_edge)[low]),
            high_edge=jnp.asarray(np.nan_to_num(design.high_edge)[low]),
            threshold=jnp.asarray(
                design.cut_threshold[np.minimum(low + (code >= 0), len(design.low_edge) - 1)]
            ),
            place=jnp.asarray(np.maximum(code, 0) * num_sides[feature] + missing_left),
            num_items=jnp.asarray((design.num_codes - 1) * num_sides),
            by_feature=jnp.asarray(np.eye(design.num_features)[feature]),
            statistics=jnp.asarray(statistics),
            classes=None if table is None else jnp.asarray(pack(statistics.T > 0).T),
            table=jax.tree.map(jnp.asarray, table),
            min_leaf=jnp.float64(constraints.min_leaf),
            max_depth=jnp.float64(max_depth),
            path=jax.tree.map(jnp.asarray, path),
            directions=None if directions is None else jnp.asarray(directions),
            prior=as_float64(prior.resolve(design)),
            leaf=as_float64(leaf),
        )


def _by_word(is_in: np.ndarray) -> jax.Array:
    """Pack sets of rows [n, R] word by word, uint64 [W, R]."""
    with jax.enable_x64(True):
        return jnp.asarray(np.ascontiguousarray(pack(is_in.T).T))


def _meet(words: jax.Array, sets: jax.Array) -> jax.Array:
    """Say whether nodes' sets have a row in common with others [W, r], bool [m, r]."""

    def add(shared, w):
        own = lax.dynamic_index_in_dim(words, w, 1)
        return shared | (own & lax.dynamic_index_in_dim(sets, w, 0))

    shared = jnp.zeros((words.shape[0], sets.shape[1]), words.dtype)
    return _over_words(len(sets), add, shared) != 0


def _over_words(num_words: int, add, start: jax.Array) -> jax.Array:
    """Add up over words, in one fused operation where they are few."""
    if num_words > _UNROLLED:
        return lax.fori_loop(0, num_words, lambda w, total: add(total, w), start)
    for w in range(num_words):
        start = add(start, w)
    return start


def _count(words: jax.Array, sets: jax.Array) -> jax.Array:
    """Count the rows that nodes' sets share with others [W, r], int32 [m, r]."""

    def add(total, w):
        own = lax.dynamic_index_in_dim(words, w, 1)
        shared = own & lax.dynamic_index_in_dim(sets, w, 0)
        return total + lax.population_count(shared).astype(jnp.int32)

    return _over_words(len(sets), add, jnp.zeros((words.shape[0], sets.shape[1]), jnp.int32))


def children(model: Model, rows: jax.Array, rule: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Part the sets of nodes between their left and right children.

    Parameters
    ----------
    model
        The model.
    rows
        uint64 [m, W] or [m, W + 1]; sets of the nodes.
    rule
        int32 [m]; rules that split them.
    """
    side = model.left_words[rule]
    if model.path is None:
        return rows & side, rows & ~side
    own, memory = rows[:, :-1], rows[:, -1]
    left, right = model.path.children(memory, model.feature[rule], thresholds(model, rows, rule))
    return (
        jnp.concatenate([own & side, left[:, None]], axis=1),
        jnp.concatenate([own & ~side, right[:, None]], axis=1),
    )


def thresholds(model: Model, rows: jax.Array, rule: jax.Array) -> jax.Array:
    """Look up the thresholds of nodes' rules [m], float64 [m]."""
    return _thresholds(model, _meet(rows, model.rows_at))[jnp.arange(len(rule)), rule]


def _thresholds(model: Model, is_present: jax.Array) -> jax.Array:
    """Threshold of every rule in nodes, float64 [m, R]; see `Available` for the argument."""
    if model.prior.rules == "cuts":
        return jnp.broadcast_to(model.threshold[None], is_present.shape)
    above = _next_present(model, is_present)
    return midpoint(model.high_edge[None], model.low_edge[above], jnp)


class Available(NamedTuple):
    """Rules of m nodes.

    Attributes
    ----------
    is_rule
        bool [m, R]; whether the rule is available.
    num_left
        int32 [m, R]; rows on its left, those with missing values counted on their side.
    is_present
        bool [m, R]; whether the node has a row at the code below the cut.
    num_rows
        int32 [m]; rows in the node.
    num_feature_rules
        float64 [m, d]; available rules of each feature.
    num_features
        float64 [m]; features with an available rule.
    """

    is_rule: jax.Array
    num_left: jax.Array
    is_present: jax.Array
    num_rows: jax.Array
    num_feature_rules: jax.Array
    num_features: jax.Array


def available_rules(model: Model, rows: jax.Array, depth: jax.Array) -> Available:
    """Find the available rules of nodes.

    Parameters
    ----------
    model
        The model.
    rows
        uint64 [m, W] or [m, W + 1]; sets of the nodes.
    depth
        int32 [m]; splits above them.
    """
    num_left, is_present = _count(rows, model.left_rows), _meet(rows, model.rows_at)
    own = rows[:, : len(model.left_rows)]
    total = lax.population_count(own).astype(jnp.int32).sum(axis=1, keepdims=True)
    least = jnp.maximum(model.min_leaf, 1)
    is_rule = model.can_cut[None] & (num_left >= least) & (total - num_left >= least)
    # Rows without a value part nothing by themselves.
    if model.rows_above is not None and model.rows_below is not None:
        is_rule &= _meet(rows, model.rows_above) & _meet(rows, model.rows_below)
    if model.prior.rules == "gaps":  # the rule of a gap is the cut next to the code below it
        is_rule &= is_present
    is_rule &= (depth < model.max_depth)[:, None]
    if model.path is not None:
        threshold = _thresholds(model, is_present)
        is_rule &= model.path.allows(rows[:, -1:], model.feature[None], threshold)
    num_feature_rules = _by_feature(model, is_rule)
    num_features = (num_feature_rules > 0).sum(axis=1).astype(float)
    return Available(is_rule, num_left, is_present, total[:, 0], num_feature_rules, num_features)


def _by_feature(model: Model, flags: jax.Array) -> jax.Array:
    """Count flags [m, R] of each feature's rules, float64 [m, d]."""
    # Counts are exact in float32, whose products are twice as fast.
    return (flags.astype(jnp.float32) @ model.by_feature.astype(jnp.float32)).astype(float)


class NodeTerms(NamedTuple):
    """What m nodes add to a tree's score.

    Attributes
    ----------
    log_stop, log_rule, leaf_score
        float64 [m]; log weights of stopping and of the node's rule, and log marginal of its rows.
        The rule's is -inf where it is not available. Rules that make the same partition, where the
        prior counts partitions, share its weight equally.
    has_rule
        bool [m]; whether any rule is available.
    """

    log_stop: jax.Array
    log_rule: jax.Array
    leaf_score: jax.Array
    has_rule: jax.Array


def node_terms(
    model: Model, rows: jax.Array, depth: jax.Array, rule: jax.Array | None = None
) -> NodeTerms:
    """Score nodes with rows [m, W] at depths [m], if they stop and if they split by a rule [m].

    For leaves, which have no rule, its weight is -inf.
    """
    found = available_rules(model, rows, depth)
    node = _node_facts(model, found, depth)
    return NodeTerms(
        jnp.broadcast_to(model.prior.log_stop(node), depth.shape),
        jnp.full(depth.shape, -jnp.inf)
        if rule is None
        else _log_rule(model, rows, found, node, rule),
        leaf_scores(model, rows),
        node.has_rule,
    )


def log_rule(
    model: Model, rows: jax.Array, depth: jax.Array, found: Available, rule: jax.Array
) -> jax.Array:
    """Weigh one rule of each node (see `NodeTerms`) whose available rules are known."""
    return _log_rule(model, rows, found, _node_facts(model, found, depth), rule)


def _log_rule(
    model: Model, rows: jax.Array, found: Available, node: Node, rule: jax.Array
) -> jax.Array:
    place = jnp.maximum(rule, 0)
    every = jnp.arange(len(place))
    feature = model.feature[place]
    shared_by = 1.0
    law = rule_law(model.prior)
    if law is not None:
        shares = _log_shares(model, law, found, node)
        facts = Rule(feature, log_share=shares[every, place])
    else:
        cuts_of_gap, width, total_width = _gap(model, found, place)
        if model.prior.counts_partitions:
            shared_by = _num_equivalent(model, found, rows, place)
        facts = Rule(
            feature,
            jnp.log(cuts_of_gap),
            jnp.log(jnp.maximum(found.num_feature_rules[every, feature], 1)),
            jnp.log(width / total_width),
            jnp.log(shared_by),
        )
    log_weight = model.prior.log_rule(node, facts) - jnp.log(shared_by)
    return jnp.where(found.is_rule[every, place], log_weight, -jnp.inf)


def _node_facts(model: Model, found: Available, depth: jax.Array) -> Node:
    """Facts of m nodes; their boxes only where they are read."""
    node = Node(
        depth.astype(float),
        found.num_features > 0,
        found.num_rows.astype(float),
        jnp.log(jnp.maximum(found.num_features, 1)),
    )
    num_features = model.by_feature.shape[1]
    reads = set(model.prior.node_facts)
    law = rule_law(model.prior)
    if law is not None:
        reads |= law.reads(num_features)[0]
    if reads.isdisjoint(("least", "greatest")):
        return node
    is_present = found.is_present

    def extreme(reduce, edge, none):
        values = jnp.where(is_present, edge[None], none).T
        found = reduce(values, model.feature, num_features, indices_are_sorted=True).T
        return jnp.where(jnp.isinf(found), jnp.nan, found)

    return node._replace(
        least=extreme(jax.ops.segment_min, model.low_edge, jnp.inf),
        greatest=extreme(jax.ops.segment_max, model.high_edge, -jnp.inf),
    )


def _log_shares(model: Model, law: RuleLaw, found: Available, node: Node) -> jax.Array:
    """Log probability of every rule given that its node splits, float64 [m, R]."""
    cuts_of_gap, width = _every_gap(model, found)
    rule = Rule(
        model.feature[None],
        threshold=_thresholds(model, found.is_present),
        width=width / cuts_of_gap,
        num_left=found.num_left.astype(float),
        num_right=(found.num_rows[:, None] - found.num_left).astype(float),
    )
    each = jax.tree.map(lambda fact: fact[:, None], node)
    features = jnp.arange(model.by_feature.shape[1])[None]
    table = DenseRules(model.feature, model.place, model.num_items, model.by_feature)
    return law.log_shares(
        table,
        found.is_rule,
        law.weigh_features(each, features),
        law.weigh_cuts(each, rule),
    )


class NodeWeights(NamedTuple):
    """The prior's weights of all that m nodes may do.

    Attributes
    ----------
    log_stop
        float64 [m]; log weight of stopping.
    log_rules
        float64 [m, R]; log weight of splitting by each rule as in `NodeTerms`, -inf where it is not
        available.
    has_rule
        bool [m]; whether any rule is available.
    """

    log_stop: jax.Array
    log_rules: jax.Array
    has_rule: jax.Array


def node_weights(model: Model, rows: jax.Array, depth: jax.Array) -> NodeWeights:
    """Weigh stopping and every rule at nodes with rows [m, W] and depths [m]."""
    prior = model.prior
    found = available_rules(model, rows, depth)
    node = _node_facts(model, found, depth)
    shared_by = _every_num_equivalent(model, found, rows) if prior.counts_partitions else 1.0
    law = rule_law(prior)
    if law is not None:
        facts = Rule(model.feature[None], log_share=_log_shares(model, law, found, node))
    else:
        cuts_of_gap, width = _every_gap(model, found)
        total_width = jnp.where(found.is_rule, width / cuts_of_gap, 0.0) @ model.by_feature
        facts = Rule(
            model.feature[None],
            jnp.log(cuts_of_gap),
            jnp.log(jnp.maximum(found.num_feature_rules @ model.by_feature.T, 1)),
            jnp.log(width / (jnp.maximum(total_width, 1e-300) @ model.by_feature.T)),
            jnp.log(shared_by),
        )
    each = jax.tree.map(lambda fact: fact[:, None], node)
    log_rules = prior.log_rule(each, facts) - jnp.log(shared_by)
    return NodeWeights(
        jnp.broadcast_to(prior.log_stop(node), depth.shape),
        jnp.where(found.is_rule, log_rules, -jnp.inf),
        node.has_rule,
    )


def leaf_statistics(model: Model, rows: jax.Array) -> jax.Array:
    """Sum leaf statistics over nodes' rows [m, W], float64 [m, s]."""
    if model.classes is not None:
        return _count(rows, model.classes).astype(float)
    row = jnp.arange(len(model.statistics))
    is_in = (rows[:, row // 64] >> (row % 64).astype(rows.dtype)[None]) & 1
    return is_in.astype(float) @ model.statistics


def leaf_scores(model: Model, rows: jax.Array) -> jax.Array:
    """Log marginals of nodes' rows [m, W], float64 [m]."""
    return _log_marginals(model, leaf_statistics(model, rows))


def split_scores(model: Model, rows: jax.Array) -> jax.Array:
    """Log marginals of both sides of every rule in nodes with rows [m, W], summed; [m, R]."""
    left = _left_statistics(model, rows)
    right = leaf_statistics(model, rows)[:, None] - left
    return _log_marginals(model, left) + _log_marginals(model, right)


def _log_marginals(model: Model, statistics: jax.Array) -> jax.Array:
    """Log marginals [...] of statistics [..., s]."""
    if model.table is None:
        return model.leaf.log_marginal(statistics)
    counts = statistics.astype(jnp.int32)
    scores = model.table.total[counts.sum(axis=-1)]
    for place, each in enumerate(model.table.each):
        scores += each[counts[..., place]]
    return scores


def _left_statistics(model: Model, rows: jax.Array) -> jax.Array:
    """Sum leaf statistics over the left side of every rule, float64 [m, R, s]."""
    if model.classes is not None:
        own_rows = rows[:, : len(model.left_rows)]
        each = [_count(own_rows & own[None], model.left_rows) for own in model.classes.T]
        return jnp.stack(each, axis=-1).astype(float)
    num_words, num_rules = model.left_rows.shape
    bit = jnp.arange(64, dtype=rows.dtype)
    rest = num_words * 64 - len(model.statistics)
    statistics = jnp.pad(model.statistics, ((0, rest), (0, 0))).reshape(num_words, 64, -1)

    def add(w, total):  # the rows of one word, spelt out
        own = ((rows[:, w, None] >> bit[None]) & 1).astype(float)
        left = ((model.left_rows[w][None] >> bit[:, None]) & 1).astype(float)
        return total + jnp.einsum("mb,bs,br->mrs", own, statistics[w], left)

    total = jnp.zeros((len(rows), num_rules, statistics.shape[-1]))
    return lax.fori_loop(0, num_words, add, total)


def _gap(model: Model, found: Available, place: jax.Array):
    """Cuts in the gap of one rule of each node, its width, and that of all its feature's rules.

    What the prior does not read is not computed.
    """
    num_left = found.num_left
    every = jnp.arange(len(place))
    if model.path is not None:  # which may rule out some cuts of a gap
        cuts_of_gap, width = _every_gap(model, found)
        total = jnp.where(found.is_rule, width / cuts_of_gap, 0.0) @ model.by_feature
        own_total = jnp.maximum(total[every, model.feature[place]], 1e-300)
        return cuts_of_gap[every, place], width[every, place], own_total
    present = found.is_present
    above = _next_present(model, present)
    in_gap = model.first[None] == model.first[place][:, None]
    in_gap &= num_left == num_left[every, place][:, None]
    below = jnp.argmax(in_gap & present, axis=1)
    cuts_of_gap = jnp.ones(len(place))
    if model.prior.rules == "cuts":
        cuts_of_gap = (in_gap & found.is_rule).sum(axis=1).astype(float)
    widths = model.low_edge[above] - model.high_edge[None]
    width = widths[every, below]
    total = jnp.where(found.is_rule & present, widths, 0.0) @ model.by_feature
    feature = model.feature[place]
    return jnp.maximum(cuts_of_gap, 1.0), width, jnp.maximum(total[every, feature], 1e-300)


def _every_gap(model: Model, found: Available) -> tuple[jax.Array, jax.Array]:
    """Cuts in the gap of every rule, and its width, float64 [m, R] each; see `_gap`."""
    present = found.is_present
    above = _next_present(model, present)
    place = jnp.arange(present.shape[1])[None]
    below = jnp.maximum(lax.cummax(jnp.where(present, place, 0), 1), model.first[None])
    cuts_of_gap = jnp.ones(present.shape)
    if model.prior.rules == "cuts":
        cuts_of_gap = jnp.maximum(model.low[above] - model.low[below], 1).astype(float)
    return cuts_of_gap, model.low_edge[above] - model.high_edge[below]


def _next_present(model: Model, present: jax.Array) -> jax.Array:
    """Rule next to the code above each cut that a node has, int32 [m, R]; at most the last one."""
    num_rules = present.shape[1]
    upcoming = jnp.where(present, jnp.arange(num_rules)[None], num_rules)
    upcoming = jnp.roll(upcoming, -1, axis=1).at[:, -1].set(num_rules)
    return jnp.minimum(lax.cummin(upcoming, 1, reverse=True), model.last[None])


def code_above(model: Model, rows: jax.Array, rule: jax.Array) -> jax.Array:
    """Flat code position above the cuts of nodes with rows [m, W], int32 [m]."""
    present = _meet(rows, model.rows_at)
    above = _next_present(model, present)
    return model.low[above[jnp.arange(len(rule)), rule]]


def _num_equivalent(model: Model, found: Available, rows: jax.Array, place: jax.Array) -> jax.Array:
    """Count rules that part a node's rows like one of its rules, float64 [m]."""
    left = rows & model.left_words[place]

    def compare(w, same):
        word, own = rows[:, w, None], left[:, w, None]
        side = word & model.left_rows[w][None]
        return same[0] & (side == own), same[1] & (side == (word ^ own))

    start = jnp.ones(found.is_rule.shape, bool)
    same_side, other_side = lax.fori_loop(0, len(model.left_rows), compare, (start, start))
    return jnp.maximum(((same_side | other_side) & found.is_rule).sum(axis=1), 1).astype(float)


def _every_num_equivalent(model: Model, found: Available, rows: jax.Array) -> jax.Array:
    """Count rules that part a node's rows like each of its rules, float64 [m, R]."""

    def count(place):
        return _num_equivalent(model, found, rows, jnp.full(len(rows), place))

    return lax.map(count, jnp.arange(found.is_rule.shape[1])).T
