"""A Markov kernel over sums of trees: each tree is redrawn given all others, then the noise.

The law is that of `bdtppl.models.hard.additive` given targets. Latent variables of labels are drawn
before each sum (`bdtppl.inference.additive.latent`). As in BlackJAX, ``step`` takes a key and a
state and returns a new state and information on the step; ``advance`` does the same in place, for
long chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from bdtppl.inference.additive.complete_trees import evaluate
from bdtppl.inference.additive.kernels import (
    GROUPS,
    sweep,
    sweep_noise,
    uniforms_of_visit,
)
from bdtppl.inference.additive.latent import draw_polya_gamma, draw_truncated
from bdtppl.inference.additive.leaf_scale import draw_leaf_factors
from bdtppl.inference.additive.linear import LinearTerm
from bdtppl.inference.additive.monotone import sweep_monotone
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.row_sums import Room, sweep_room
from bdtppl.inference.additive.tables import (
    RowTables,
    SumPriorTables,
    chances_of_rules,
    noise_tables,
    prior_tables,
    row_tables,
)
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior, class_probabilities

Moves = Sequence[Sequence[int]]

_FIRST_DRAWS = 30  # of the linear term
_MOST_PROBITS = 1000  # latent variables that a row's weight may stand for
_QUICK_VISITS = 6  # over one group, for each over a block
_LEAST_BLOCK, _BLOCKS = 3, 8  # groups of a block: more effective draws a second than all groups


def _block_width(rows: RowTables) -> int:
    return max(_LEAST_BLOCK, (len(rows.offset) - 1) // _BLOCKS)


def default_moves(levels: int, width: int) -> Moves:
    """List the visits: each redraws the nodes of one level, or the rules of one level.

    Most visits read the rules of one group of features, because these visits are quick. The others
    let splits change their feature in one move, to one of the same block of ``width`` groups.
    """
    by_one = [[GROUPS + level] for level in range(levels)]
    nodes = [[GROUPS * width + level] for level in range(levels)]
    return _QUICK_VISITS * by_one + nodes + [[-1 - own] for (own,) in nodes[:-1]]


class AdditiveState(NamedTuple):
    """One state of a chain: sums of m trees of at most L levels, n rows.

    Attributes
    ----------
    rule
        int32 [sums, m, 2^L - 1]; number of the rule of each node of the complete binary tree
        (`bdtppl.inference.additive.tables.RowTables`); -1 where it is no split.
    value
        float64 [sums, m, 2^(L + 1) - 1]; values of leaves, 0 elsewhere.
    target
        float64 [sums, n]; what each sum explains: targets less the offset, or those that latent
        variables make of labels.
    left
        float64 [sums, n]; ``target`` less the sum.
    variance
        Of the noise, the mean over all rows where it differs; 1 for classes.
    feature_weight
        float64 [d].
    noise_rule, noise_value
        int32 [m', 2^L - 1] and float64 [m', 2^(L + 1) - 1]; the trees of the product of variances,
        whose values are 1 where no leaf is. There are none with one variance.
    linear, linear_deviation
        float64 [sums, p] and [sums, blocks]; coefficients of linear terms, and the deviations of
        each block of them. Without such terms both are empty.
    leaf_factors
        float64 [sums, 2]; their product is the standard deviation of the values of leaves.
    """

    rule: np.ndarray
    value: np.ndarray
    target: np.ndarray
    left: np.ndarray
    variance: float
    feature_weight: np.ndarray
    noise_rule: np.ndarray
    noise_value: np.ndarray
    linear: np.ndarray
    linear_deviation: np.ndarray
    leaf_factors: np.ndarray

    @property
    def leaf_scale(self) -> np.ndarray:
        """Standard deviation of the values of leaves, float64 [sums]."""
        return np.abs(self.leaf_factors.prod(axis=-1))


class AdditiveInfo(NamedTuple):
    """What is known of a state: its log likelihood, and the number of splits of all trees."""

    log_likelihood: float
    num_splits: int


@dataclass(frozen=True, eq=False)
class AdditiveKernel:
    """Draws sums of trees given targets.

    Attributes
    ----------
    prior
        Prior of sums.
    design, y
        Training rows [n] and targets; of classes the indices.
    moves
        What a visit of a tree does (`bdtppl.inference.additive.kernels.sweep`).
    rows
        The rows and rules that sweeps read.
    terms
        The linear terms of each sum, and which of the coefficients are theirs.
    offsets
        float64 [sums, n]; what is added to each sum.
    order
        int64 [n]; rows by their bins and targets. Latent variables are drawn in this order, so that
        the order of the rows does not matter, and a linear term has its rows in it.
    """

    prior: AdditivePrior
    design: Design
    y: np.ndarray
    moves: Any = None
    rows: RowTables = field(init=False, repr=False)
    terms: tuple[tuple[LinearTerm, slice], ...] = field(init=False, repr=False)
    offsets: np.ndarray = field(init=False, repr=False)
    order: np.ndarray = field(init=False, repr=False)
    _prior_tables: SumPriorTables = field(init=False, repr=False)

    def __post_init__(self):
        rows, moves = row_tables(self.design), self.moves
        if moves is None:
            moves = default_moves(self.prior.max_depth, _block_width(rows))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "offsets", self.prior.offsets_at(self.design.matrix))
        object.__setattr__(self, "order", np.lexsort((self.y, *rows.bins)))
        object.__setattr__(self, "moves", np.array(moves, np.int64))
        tables = prior_tables(self.prior, rows, self.design.equal_weights)
        object.__setattr__(self, "_prior_tables", tables)
        weights, terms = rows.weights, []
        columns = self.prior.linear_columns(self.design)
        of_rows = columns(self.design.matrix)[self.order]
        sign = columns.signs(self.prior.monotone)
        for own, median in zip(columns.blocks, self.prior.term_scales, strict=True):
            term = LinearTerm(of_rows[:, own], weights[self.order], float(median), sign[own])
            terms.append((term, own))
        object.__setattr__(self, "terms", tuple(terms))
        bad = np.flatnonzero((weights != np.rint(weights)) | (weights > _MOST_PROBITS))
        if self.prior.link == "probit" and bad.size:
            raise ValueError(
                f"link='probit' draws a latent variable for each time that a row counts, so its "
                f"weights must be whole and at most {_MOST_PROBITS:,}; got {weights[bad[0]]:g}. "
                f"Use link='logit'."
            )

    def make_room(self) -> Room:
        """Allocate what `advance` works in; chains that run side by side need one each."""
        size = len(self.y), self.rows.num_bins, len(self.rows.feature)
        return sweep_room(*size, self.prior.max_depth)

    def init(self) -> AdditiveState:
        """Start at trees of one leaf with value 0, and noise as large as the targets' spread."""
        prior, num_rows = self.prior, len(self.y)
        is_real = prior.link == "identity"
        target = np.zeros((prior.num_sums, num_rows))
        if is_real:
            target[:] = self.y - self.offsets
        weights = self.rows.weights
        middle = np.average(target[0], weights=weights)
        spread = np.average((target[0] - middle) ** 2, weights=weights) or float(prior.noise_scale)
        trees = prior.num_sums, prior.num_trees
        num_columns = self.terms[-1][1].stop if self.terms else 0
        nodes, slots = 2**prior.max_depth - 1, 2 ** (prior.max_depth + 1) - 1
        noise_value = np.ones((prior.noise_trees, slots))
        noise_value[:, 0] = spread ** (1 / max(prior.noise_trees, 1))
        return AdditiveState(
            rule=np.full((*trees, nodes), -1, np.int32),
            value=np.zeros((*trees, slots)),
            target=target,
            left=target.copy(),
            variance=float(spread) if is_real else 1.0,
            feature_weight=self.design.equal_weights,
            noise_rule=np.full((prior.noise_trees, nodes), -1, np.int32),
            noise_value=noise_value,
            linear=np.zeros((prior.num_sums, num_columns)),
            linear_deviation=np.tile(prior.term_scales, (prior.num_sums, 1)),
            leaf_factors=np.tile([float(prior.leaf_scale), 1.0], (prior.num_sums, 1)),
        )

    def step(self, rng_key: jax.Array, state: AdditiveState) -> tuple[AdditiveState, AdditiveInfo]:
        """Redraw everything once, from a key of JAX; the state that is given stays as it is."""
        words = np.asarray(jax.random.key_data(rng_key), np.uint64)
        generator = np.random.Generator(np.random.Philox(key=words[0] << np.uint64(32) | words[1]))
        copy = state._replace(
            **{
                name: part.copy()
                for name, part in state._asdict().items()
                if isinstance(part, np.ndarray)
            }
        )
        new = self.advance(generator, copy, self.make_room())
        return new, AdditiveInfo(self.log_likelihood(new), int(np.sum(new.rule >= 0)))

    def advance(
        self,
        generator: np.random.Generator,
        state: AdditiveState,
        room: Room,
        *,
        grows: bool = False,
        precision: np.ndarray | None = None,
    ) -> AdditiveState:
        """Redraw everything once, in place: the arrays of the state change.

        With ``grows`` a visit redraws the nodes of all levels, one after the other, so that a tree
        of one leaf grows to its full depth at once: for the first sweeps, as grow-from-root passes
        do (He and Hahn 2023, Stochastic tree ensembles for regularized nonlinear regression). With
        ``precision``, float64 [n], these are the precisions of the targets, and no noise is drawn.
        """
        prior, rows = self.prior, self.rows
        growing = GROUPS * _block_width(rows) + np.arange(prior.max_depth)[None]
        moves = growing if grows else self.moves
        tables = self._prior_tables
        if prior.sparsity is not None:
            tables = tables._replace(rule=chances_of_rules(rows, state.feature_weight))
        for which in range(prior.num_sums):
            each, factor = self._draw_linear(generator, state, which, precision)
            scale = float(state.leaf_scale[which])
            shared = (
                rows,
                tables._replace(precision=scale**-2),
                room,
                each,
                factor,
                each is not rows.weights or self.design.has_weights,
                state.left[which],
                state.rule[which],
                state.value[which],
                moves,
            )
            uniform, normal = self.random_numbers(generator, moves)
            if prior.monotone:
                sweep_monotone(*shared, uniform, np.array(prior.monotone), generator)
            else:
                sweep(*shared, uniform, normal)
            if prior.draws_leaf_scale:
                self._draw_leaf_scale(generator, state, which, factor * each)
        if precision is not None:
            variance = state.variance
        elif prior.noise_trees:
            variance = self._draw_noise(generator, state, tables, room)
        else:
            variance = self._draw_variance(generator, state)
        return state._replace(
            variance=variance, feature_weight=self._feature_weight(generator, state)
        )

    def begin(self, generator: np.random.Generator, state: AdditiveState) -> AdditiveState:
        """Draw the linear terms and the noise some times, in place, before any tree has grown.

        Trees that come first explain what is linear, and chains take long to find the way back.
        """
        if not self.terms:
            return state
        for _ in range(_FIRST_DRAWS):
            for which in range(self.prior.num_sums):
                self._draw_linear(generator, state, which)
            if not self.prior.noise_trees:
                state = state._replace(variance=self._draw_variance(generator, state))
        return state

    def drawn(self, state: AdditiveState) -> dict[str, np.ndarray]:
        """Return the parts of a state that its draw keeps, by name."""
        prior, fits = self.prior, len(self.rows.feature) <= np.iinfo(np.int16).max
        names = ["value", "variance", "feature_weight"]
        names += ["noise_value"] * (prior.noise_trees > 0)
        names += ["linear", "linear_deviation"] * (len(self.terms) > 0)
        names += ["leaf_scale"] * prior.draws_leaf_scale
        kept = {name: np.asarray(getattr(state, name)) for name in names}
        for name in ("rule", "noise_rule")[: 1 + (prior.noise_trees > 0)]:
            kept[name] = getattr(state, name).astype(np.int16 if fits else np.int32)
        return kept

    def posterior(self, drawn: dict[str, Any], **more: Any) -> SumPosterior:
        """Make a posterior of draws [chain, draw, ...] by name."""
        return SumPosterior(prior=self.prior, design=self.design, y=self.y, **more, **drawn)

    def _draw_variance(self, generator: np.random.Generator, state: AdditiveState) -> float:
        """Draw the one variance of the noise."""
        prior, weights = self.prior, self.rows.weights
        if prior.link != "identity":
            return state.variance
        degrees = float(prior.noise_degrees)
        spread = degrees * float(prior.noise_scale) + weights @ state.left[0] ** 2
        return spread / generator.chisquare(degrees + weights.sum())

    def _draw_linear(
        self,
        generator: np.random.Generator,
        state: AdditiveState,
        which: int,
        precision: np.ndarray | None = None,
    ) -> tuple[np.ndarray, float]:
        """Redraw the targets of a sum, unless precisions are given, and its linear terms, in place.

        The product of the array and the number returned is the precision of the targets.
        """
        factor = 1.0
        if precision is None:
            precision = self._draw_targets(generator, state, which)
            factor = 1.0 if self.prior.noise_trees else 1 / float(state.variance)
        left, order = state.left[which], self.order
        in_order = None if precision is self.rows.weights else precision[order]
        for place, (term, own) in enumerate(self.terms):
            target = left[order] + term.columns @ state.linear[which, own]
            deviation = float(state.linear_deviation[which, place])
            state.linear[which, own], state.linear_deviation[which, place] = term.draw(
                generator, target, in_order, factor, deviation, state.linear[which, own]
            )
            left[order] = target - term.columns @ state.linear[which, own]
        return precision, factor

    def _draw_leaf_scale(
        self,
        generator: np.random.Generator,
        state: AdditiveState,
        which: int,
        precision: np.ndarray,
    ) -> None:
        """Redraw the scale of the leaves of a sum, and all their values with it, in place."""
        value, left = state.value[which], state.left[which]
        explained = state.target[which] - left
        for term, own in self.terms:
            explained[self.order] -= term.columns @ state.linear[which, own]
        times = draw_leaf_factors(
            generator,
            state.leaf_factors[which],
            float(np.sum(value**2)),
            self.prior.num_trees + int(np.sum(state.rule[which] >= 0)),
            explained,
            left + explained,
            precision,
            float(self.prior.leaf_scale),
            len(self.prior.monotone) > 0,
        )
        value *= times
        left += (1 - times) * explained

    def _draw_noise(
        self,
        generator: np.random.Generator,
        state: AdditiveState,
        tables: SumPriorTables,
        room: Room,
    ) -> float:
        """Redraw the trees of the product of variances; returns the mean variance."""
        prior, rows, left = self.prior, self.rows, state.left[0]
        visits = prior.noise_trees, uniforms_of_visit(prior.max_depth, self.moves.shape[1])
        sweep_noise(
            rows,
            noise_tables(prior, rows, tables),
            room,
            self.design.has_weights,
            left * left / self.variances(state),
            state.noise_rule,
            state.noise_value,
            self.moves,
            generator.random(visits),
            generator,
        )
        return float(np.average(self.variances(state), weights=rows.weights))

    def variances(self, state: AdditiveState) -> np.ndarray:
        """Compute the noise variance of each row, float64 [n]."""
        variances = np.full(len(self.y), float(state.variance))
        if self.prior.noise_trees:
            evaluate(self.rows, state.noise_rule, state.noise_value, True, variances)
        return variances

    def random_numbers(
        self, generator: np.random.Generator, moves: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw what one sweep reads: uniform numbers [m, u], and normal ones for all leaves."""
        levels, num_trees = self.prior.max_depth, self.prior.num_trees
        uniform = generator.random((num_trees, uniforms_of_visit(levels, moves.shape[1])))
        return uniform, generator.standard_normal((num_trees, 2 ** (levels + 1) - 1))

    def _draw_targets(
        self, generator: np.random.Generator, state: AdditiveState, which: int
    ) -> np.ndarray:
        """Draw the latent variables of one sum's targets; returns the precisions of these."""
        prior = self.prior
        if prior.noise_trees:
            return self.rows.weights / self.variances(state)
        if prior.link == "identity":
            return self.rows.weights
        own = state.target[which] - state.left[which]
        shift, precision = self.offsets[which], self.rows.weights
        order, weights = self.order, self.rows.weights
        if prior.link == "probit":
            drawn = np.empty(len(own))
            given = (own + shift)[order], (self.y == 1)[order], weights[order]
            draw_truncated(*given, generator, drawn)
            state.target[which, order] = drawn
            state.target[which] -= shift
        else:
            if prior.num_sums > 1:
                others = np.arange(prior.num_sums) != which
                sums = (state.target - state.left + self.offsets)[others]
                shift = shift - logsumexp(sums, axis=0)
            drawn, precision = np.empty((2, len(own)))
            draw_polya_gamma((own + shift)[order], weights[order], generator, drawn)
            precision[order] = drawn
            is_own = self.y == (which if prior.num_sums > 1 else 1)
            state.target[which] = weights * (is_own - 0.5) / precision - shift
        state.left[which] = state.target[which] - own
        return precision

    def log_likelihood(self, state: AdditiveState) -> float:
        """Log likelihood of all targets given a state."""
        prior, weights = self.prior, self.rows.weights
        if prior.link == "identity":
            variances = self.variances(state)
            each = state.left[0] ** 2 / variances + np.log(2 * np.pi * variances)
            return -0.5 * float(weights @ each)
        sums = state.target - state.left + self.offsets
        probability = class_probabilities(prior.link, sums)[np.arange(len(self.y)), self.y]
        return float((weights * np.log(np.maximum(probability, np.finfo(float).tiny))).sum())

    def _feature_weight(self, generator: np.random.Generator, state: AdditiveState) -> np.ndarray:
        """Draw the weights of features given all splits."""
        if self.prior.sparsity is None or not self.design.has_cut.any():
            return state.feature_weight
        used = np.concatenate([own[own >= 0] for own in (state.rule, state.noise_rule)])
        splits = np.bincount(self.rows.feature[used], minlength=self.design.num_features)
        has_rule = self.design.has_cut
        weight = np.zeros(self.design.num_features)
        each = float(self.prior.sparsity) * self.design.equal_weights
        weight[has_rule] = generator.dirichlet((each + splits)[has_rule])
        return weight
