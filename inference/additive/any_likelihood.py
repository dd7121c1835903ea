"""A sum of trees under any likelihood that is twice differentiable in the sum.

Let f be the sum of m trees at n rows, and r the sum of all trees but one. The log likelihood is
expanded to second order around r, using the sums of mixed derivatives over a row. The tree then has
normal targets g / a with precisions a, where g is the gradient and a the absolute second
derivative. A move of `bdtppl.inference.additive.kernels` is reversible for the tree's distribution
given these targets, and is the proposal of a Metropolis-Hastings step. As r does not depend on the
tree, only the ratio of the likelihood and its expansion enters the acceptance probability. Chains
therefore have the right distribution for any likelihood; acceptance is higher if the expansion is
accurate over the reach of one tree.

If rows are very informative, the expansion is too inaccurate, and nothing is accepted. Then a first
tree is grown from scratch by the expansion around r, and the likelihood is expanded again around r
plus this tree's values, which do not depend on the replaced tree either.

If the log likelihood is quadratic in f with independent rows, no acceptance step is needed: one
Gibbs sweep redraws all trees.

References
----------
Chipman, George and McCulloch 2010, section 3.1 (one tree given all others); Gamerman 1997, Sampling
from the posterior distribution in generalized linear mixed models (proposals by expansion).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.additive.in_jax import SumState, TreeSweep
from bdtppl.models.hard.additive import AdditivePrior

_MOST_STEPS, _LEAST_STEP = 100, 1e-3
_LEAST_SHARE = 1e-3  # of the mean second derivative, if the row's own vanishes
_ROUNDING = 1e-4
_TINY = 1e-12
_PROBES = 3

Terms = Callable[[jax.Array], Any]
"""From f [n] to a pytree of arrays whose sum is the log likelihood."""


def total_of(terms: Any) -> jax.Array:
    """Sum all terms of a pytree."""
    return sum((jnp.sum(each) for each in jax.tree.leaves(terms)), jnp.zeros(()))


def gradient_and_curvature(terms: Terms, f: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the gradient [n], and minus the Hessian's row sums [n], of the log likelihood."""
    gradient = jax.grad(lambda f: total_of(terms(f)))
    slope, curve = jax.jvp(gradient, (f,), (jnp.ones_like(f),))
    return slope, -curve


def is_normal(terms: Terms, key: jax.Array, num_rows: int, scale: float = 1.5) -> bool:
    """Return whether the log likelihood is quadratic in f with independent rows.

    Its second derivatives are compared at random points of some ``scale``: they must be equal,
    diagonal and nowhere negative, and rows with zero curvature must have zero slope. Each row is
    compared with itself up to rounding, so more informative rows do not matter. An analytic
    function that is not quadratic fails with probability 1.
    """
    gradient = jax.grad(lambda f: total_of(terms(f)))

    @jax.jit
    def derivatives(f: jax.Array, signs: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope, along = jax.jvp(gradient, (f,), (signs,))
        return slope, -signs * along

    first = None
    for probe in range(_PROBES):
        at, along = jax.random.split(jax.random.fold_in(key, probe))
        f = scale * probe * jax.random.normal(at, (num_rows,))
        signs = jax.random.rademacher(along, (num_rows,), dtype=f.dtype)
        slope, curve = derivatives(f, signs)
        first = curve if first is None else first
        is_same = jnp.abs(curve - first) <= _ROUNDING * jnp.abs(first)
        is_right = is_same & jnp.where(slope == 0, curve >= 0, curve > 0) & jnp.isfinite(curve)
        if not bool(is_right.all() & (curve > 0).any()):
            return False
    return True


def redraw_all(
    sweep: TreeSweep, terms: Terms, f: jax.Array, trees: SumState, weight: jax.Array, key: jax.Array
) -> tuple[SumState, jax.Array]:
    """Redraw all trees given a quadratic log likelihood; return new trees and their sum.

    Parameters
    ----------
    sweep
        The redraws.
    terms
        Terms of the log likelihood.
    f, trees
        The sum [n] and its trees.
    weight
        float [d]; weights of features.
    key
        Key.
    """
    slope, precision = gradient_and_curvature(terms, f)
    has_target = precision > 0
    target = f + jnp.where(has_target, slope / jnp.where(has_target, precision, 1.0), 0.0)
    precision = jnp.maximum(precision, 0.0)
    return sweep(trees, target, precision, weight, sweep.random_numbers(key))


def redraw_each(
    sweep: TreeSweep,
    terms: Terms,
    f: jax.Array,
    trees: SumState,
    weight: jax.Array,
    key: jax.Array,
    power: Any = 1.0,
    twice: Any = False,
) -> tuple[SumState, jax.Array, jax.Array]:
    """Propose a new tree for each one in turn, and accept it by Metropolis-Hastings.

    Parameters
    ----------
    sweep
        The proposals. Each visit must make one move: several are not reversible.
    terms, f, trees, weight
        As in `redraw_all`.
    key
        Key.
    power
        Power of the likelihood, above 0 and at most 1; see `first_power`.
    twice
        Whether to expand twice, around a first tree, too.

    Returns
    -------
    trees, f
        The final sum and trees.
    accepted
        Share of accepted proposals.
    """
    numbers_key, accept_key, first_key = jax.random.split(key, 3)
    uniform, normal = sweep.random_numbers(numbers_key)
    growing = sweep.growing()
    first_uniform, first_normal = growing.random_numbers(first_key)
    seed = SumState(*(part[:1] for part in growing.start()))
    chance = jax.random.uniform(accept_key, (len(trees.rule),))

    def visit(carry, t):
        trees, f, now, accepted = carry
        own = SumState(*(lax.dynamic_slice_in_dim(part, t, 1) for part in trees))
        before = sweep.sums(own)
        others = f - before

        def targets(around):
            slope, precision = gradient_and_curvature(terms, others + around)
            slope, precision = power * slope, power * _precision(slope, precision)
            precision = jnp.maximum(precision, _LEAST_SHARE * precision.mean() + _TINY)
            return slope + precision * around, precision

        def targets_around_a_tree(_, first):
            numbers = first_uniform[t][None], first_normal[t][None]
            slope, precision = first
            return targets(growing(seed, slope / precision, precision, weight, numbers)[1])

        # A loop of zero or one turn, because JAX does not batch conditions around calls that batch
        # themselves.
        slope, precision = lax.fori_loop(
            0, jnp.asarray(twice, jnp.int32), targets_around_a_tree, targets(jnp.zeros_like(f))
        )
        proposed, after = sweep(
            own, slope / precision, precision, weight, (uniform[t][None], normal[t][None])
        )
        then = terms(others + after)
        gain = power * total_of(jax.tree.map(jnp.subtract, then, now))
        log_ratio = _log_ratio(gain, slope, precision, before, after)
        is_taken = jnp.log(chance[t]) < log_ratio

        def choose(new, old):
            return jnp.where(is_taken, new, old)

        own = jax.tree.map(choose, proposed, own)
        trees = SumState(
            *(
                lax.dynamic_update_slice_in_dim(part, new, t, 0)
                for part, new in zip(trees, own, strict=True)
            )
        )
        f = choose(others + after, f)
        now = jax.tree.map(choose, then, now)
        return (trees, f, now, accepted + is_taken), None

    start = trees, f, terms(f), jnp.zeros((), jnp.int32)
    (trees, f, _, accepted), _ = lax.scan(visit, start, jnp.arange(len(trees.rule)))
    # The sum is computed anew, so that rounding does not pile up.
    return trees, sweep.sums(trees).astype(f.dtype), (accepted / len(trees.rule)).astype(f.dtype)


def best_level(terms: Terms, num_rows: int) -> float:
    """Find the initial constant of f by Newton steps of the log likelihood, from 0.

    Steps are halved until they gain; if nothing gains or is finite, the constant is 0.
    """

    @jax.jit
    def at(level: float) -> tuple[jax.Array, jax.Array, jax.Array]:
        f = jnp.full(num_rows, level)
        slope, curve = gradient_and_curvature(terms, f)
        return total_of(terms(f)), slope.sum(), jnp.abs(curve.sum()) + _TINY

    level, (now, slope, curve) = 0.0, at(0.0)
    for _ in range(_MOST_STEPS):
        step = float(slope / curve)
        while abs(step) > _LEAST_STEP and not at(level + step)[0] > now:
            step /= 2
        if not abs(step) > _LEAST_STEP:
            break
        level += step
        now, slope, curve = at(level)
    return level if math.isfinite(level) else 0.0


def first_power(prior: AdditivePrior, terms: Terms, f: jax.Array) -> float:
    """Choose the power of the likelihood at the start of warm-up.

    The expansion overshoots far from the bulk of the posterior, and all proposals are rejected.
    With this power the likelihood moves a leaf of all rows by about one prior standard deviation.
    """
    slope = float(jax.jit(lambda f: jnp.abs(gradient_and_curvature(terms, f)[0]).sum())(f))
    return min(1.0, 1.0 / (float(prior.leaf_scale) * slope + _TINY))


def _precision(slope: jax.Array, curve: jax.Array) -> jax.Array:
    """Choose the precisions [n] of normal targets; any function of the other trees is valid.

    If the curvature is negligible, as for a Laplace distribution, it is the squared slope, whose
    mean is also the Fisher information.
    """
    curve = jnp.abs(curve)
    return jnp.where(curve < _LEAST_SHARE * slope**2, slope**2, curve)


def _log_ratio(gain, slope, precision, before, after):
    """Return the log likelihood's gain from a new tree less that of its expansion."""
    return gain - jnp.sum((after - before) * (slope - 0.5 * precision * (after + before)))
