"""Trajectories made point by point against the usual recursion over subtrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bdtppl.inference.nuts import trajectory
from bdtppl.inference.nuts.trajectory import begin_trajectory, extend

PRECISION = np.array([[1.0, 0.6], [0.6, 4.0]])
INVERSE_MASS = np.array([1.5, 0.4])
STEP_SIZE, MOST_DOUBLINGS = 0.07, 7


def log_density(position):
    return -position @ PRECISION @ position / 2


def gradient(position):
    return -PRECISION @ position


def leapfrog(position, momentum, direction):
    step = direction * STEP_SIZE
    half = momentum + step / 2 * gradient(position)
    position = position + step * INVERSE_MASS * half
    return position, half + step / 2 * gradient(position)


def turns(points):
    """Whether the ends of points, from left to right, come nearer to each other."""
    momenta = np.array([momentum for _, momentum in points])
    way = (momenta.sum(axis=0) - (momenta[0] + momenta[-1]) / 2) * INVERSE_MASS
    return momenta[0] @ way <= 0 or momenta[-1] @ way <= 0


def subtree(point, depth, direction):
    """Points of a subtree in the order of their making, and whether it is whole."""
    if depth == 0:
        return [leapfrog(*point, direction)], True
    first, is_whole = subtree(point, depth - 1, direction)
    if not is_whole:
        return first, False
    second, is_whole = subtree(first[-1], depth - 1, direction)
    points = first + second
    return points, is_whole and not turns(points)


def by_recursion(position, momentum, directions):
    """Points of a whole trajectory, from left to right, and the number of steps."""
    points = [(position, momentum)]
    num_steps = 0
    for depth, direction in enumerate(directions):
        new, is_whole = subtree(points[-1 if direction > 0 else 0], depth, direction)
        num_steps += len(new)
        if not is_whole:
            break
        points = points + new if direction > 0 else new[::-1] + points
        if turns(points):
            break
    return points, num_steps


@jax.jit
def point_by_point(position, momentum, uniform):
    def add(carry):
        found, number = carry
        found = extend(found, log_density, STEP_SIZE, INVERSE_MASS, uniform[number])
        return found, number + 1

    start = begin_trajectory(position, momentum, MOST_DOUBLINGS), 0
    return jax.lax.while_loop(lambda carry: ~carry[0].is_over, add, start)[0]


def check_agreement(repeats=40):
    rng = np.random.default_rng(0)
    lengths = []
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        for _ in range(repeats):
            position, momentum = rng.normal(size=(2, 2))
            uniform = rng.random((200, 3))
            # A direction is drawn where a doubling begins, after 1, 2, 4, ... evaluations.
            at = uniform[2 ** np.arange(MOST_DOUBLINGS) - 1, 2]
            points, num_steps = by_recursion(position, momentum, np.where(at < 0.5, 1, -1))
            found = point_by_point(position, momentum, uniform)
            assert found.num_steps == num_steps
            assert not found.is_divergent
            drawn = np.array([where for where, _ in points]) - np.asarray(found.draw.position)
            assert np.abs(drawn).sum(axis=1).min() < 1e-10
            lengths.append(num_steps)
    assert len(set(lengths)) > 5


def test_trajectories_are_those_of_the_recursion():
    check_agreement()


def test_subtrees_that_turn_back_unnoticed_are_found_out(monkeypatch):
    def deaf(old, momentum, total, inverse_mass):
        _, first, sum_before = kept(old, momentum, total, inverse_mass)
        return jnp.bool_(False), first, sum_before

    kept = trajectory._subtrees
    monkeypatch.setattr(trajectory, "_subtrees", deaf)
    point_by_point.clear_cache()
    with pytest.raises(AssertionError):
        check_agreement()
    point_by_point.clear_cache()


def check_share(uniform):
    """Of two points the second is drawn with its weight over the first's; a false alarm 6e-5."""

    @jax.jit
    @jax.vmap
    def run(uniform):
        found = begin_trajectory(jnp.array([0.5, -0.2]), jnp.array([0.5, 1.0]), 1)
        for number in range(2):
            found = extend(found, log_density, 0.5, INVERSE_MASS, uniform[number])
        return found

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        found = jax.tree.map(np.asarray, run(uniform))
    assert (found.is_over & (found.num_steps == 1)).all()
    is_second = found.draw.energy != found.start
    share = np.minimum(np.exp(found.start - found.subtree_draw.energy), 1)
    assert 0.3 < share.mean() < 0.999
    error = np.sqrt((share * (1 - share)).sum())
    assert abs(is_second.sum() - share.sum()) < 4 * error


def test_draws_are_taken_by_their_weights():
    uniform = np.random.default_rng(1).random((4000, 2, 3))
    check_share(uniform)
    uniform[:, 1, 1] = 0.0  # the second is always taken
    with pytest.raises(AssertionError):
        check_share(uniform)


def check_draws_within_a_subtree(uniform):
    """Of its two points the later is drawn with its share of their weights; a false alarm 6e-5."""

    @jax.jit
    @jax.vmap
    def run(uniform):
        found = begin_trajectory(jnp.array([1.5, -0.2]), jnp.array([0.5, 1.0]), 2)
        for number in range(4):
            found = extend(found, log_density, 0.4, INVERSE_MASS, uniform[number])
        return found.num_steps, found.subtree_draw.energy

    def energies(uniform):
        return jax.tree.map(np.asarray, run(uniform))

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        later, earlier = (energies(replaced(uniform, (3, 0), by)) for by in (0.0, 1.0))
        num_steps, drawn = energies(uniform)
    whole = num_steps == 3
    assert whole.mean() > 0.9
    share = 1 / (1 + np.exp(later[1] - earlier[1])[whole])
    error = np.sqrt((share * (1 - share)).sum())
    assert abs((drawn == later[1])[whole].sum() - share.sum()) < 4 * error


def replaced(uniform, place, by):
    uniform = uniform.copy()
    uniform[(slice(None), *place)] = by
    return uniform


def test_points_of_a_subtree_are_drawn_by_their_weights():
    uniform = np.random.default_rng(2).random((4000, 4, 3))
    check_draws_within_a_subtree(uniform)
    with pytest.raises(AssertionError):
        check_draws_within_a_subtree(replaced(uniform, (3, 0), 0.9 * uniform[:, 3, 0]))
