"""Dataclasses that JAX sees through."""

import jax
import jax.numpy as jnp
import pytest

from bdtppl.models.priors import DescriptionLength, LeafPenalty
from bdtppl.models.pytrees import pytree_dataclass, setting


@pytree_dataclass
class Line:
    slope: float
    kind: str = setting(default="solid")


@pytree_dataclass
class SteeperLine(Line):
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Line(1.0), SteeperLine(1.0)),
        (Line(1.0), Line(1.0, "dashed")),
        (LeafPenalty(1.0), DescriptionLength(1.0, rules="gaps")),
    ],
)
def test_two_classes_or_settings_are_two_structures(one, other):
    """Compiled functions are kept by structure: one that is taken for another gives its results."""
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.tree.structure(one) == jax.tree.structure(jax.tree.map(lambda x: x + 1, one))


def test_numbers_are_traced_and_settings_are_not():
    doubled = jax.jit(lambda line: jax.tree.map(lambda x: 2 * x, line))(Line(jnp.float32(1.5)))
    assert isinstance(doubled, Line)
    assert (float(doubled.slope), doubled.kind) == (3.0, "solid")
    ((path, _),) = jax.tree_util.tree_leaves_with_path(Line(1.0))
    assert jax.tree_util.keystr(path) == ".slope"
