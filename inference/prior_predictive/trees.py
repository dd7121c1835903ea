"""The four queries of a prior over trees, as in stochastic logic programming.

Draw a tree, list the trees with their probabilities, sum the weights of all trees, and compute the
probability of one. If the prior's weights sum to one at every node, draws grow top-down without a
chart of the table. Other priors use sums and draws of the exact chart.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, section 2.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.exact_cost import Budget, exact_within_budget
from bdtppl.inference.hard.shapes import LEAF, Shape, roots
from bdtppl.inference.hard.written_trees import as_shape, root_rows, write_out
from bdtppl.inference.metropolis.growth import grown_trees
from bdtppl.inference.metropolis.state import state_of
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.arguments import require_integer
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.node_scores import node_weights, require_defined
from bdtppl.models.hard.packed_model import PackedModel, children
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.prior_kinds import Rules, TreePrior, require_tree_prior, require_weighs
from bdtppl.models.priors import DepthDecay
from bdtppl.models.pytrees import describe_kind

NO_LIKELIHOOD = DirichletCategorical.symmetric(1)  # of one class, so the likelihood is 1
_CAPACITY = 31  # initial slots of draws
_TREES_A_PIECE = 4096  # trees drawn at once


class EnumeratedTrees(NamedTuple):
    """All trees of a prior.

    Attributes
    ----------
    trees
        `Tree` batch [m], the most probable first.
    log_prob
        float64 [m]; log probabilities.
    """

    trees: Tree
    log_prob: np.ndarray


class PriorTrees:
    """The distribution of trees under a node-wise prior on a design.

    Different rules make different trees, even if they make the same partition; a prior that counts
    partitions shares their weight among their rules.

    Parameters
    ----------
    design
        Rows.
    prior
        Node-wise tree prior.
    constraints
        Limits on the trees.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the prior is not node-wise, or a feature is monotone.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.models.priors import DepthDecay
    >>> from bdtppl.models.hard.tree import Tree
    >>> law = PriorTrees(Design.from_matrix(np.arange(3.0)[:, None]), DepthDecay(0.5, 1.0))
    >>> round(float(np.exp(law.log_prob(Tree.from_nested({})))), 12), law.log_mass
    (0.5, 0.0)
    """

    def __init__(self, design: Design, prior: TreePrior, constraints: Constraints | None = None):
        constraints = Constraints() if constraints is None else constraints
        for name, value, kind in (
            ("design", design, Design),
            ("constraints", constraints, Constraints),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}; got {describe_kind(value)}.")
        require_tree_prior("prior", prior)
        require_weighs(prior, "PriorTrees", "nodes")
        constraints.require_free_leaves("A prior without targets")
        self.design = design
        self.prior = prior
        self.constraints = constraints

    @cached_property
    def _model(self) -> PackedModel:
        return _without_targets(self.design, self.prior, self.constraints)

    @cached_property
    def _exact(self) -> ExactPosterior | BoxPosterior:
        return exact_prior(self.design, self.prior, self.constraints)

    @cached_property
    def log_mass(self) -> float:
        """Log of the sum of the weights of all trees; 0 for a normalised prior."""
        return 0.0 if self.prior.is_normalised else self._exact.log_prior_normaliser

    def sample(self, rng_key: jax.Array, num_draws: int) -> Tree:
        """Draw trees, `Tree` batch [num_draws].

        Raises
        ------
        ValueError
            If the number of draws is not a positive integer.
        """
        require_integer("num_draws", num_draws)
        if self.prior.is_normalised:
            return self._grown(rng_key, num_draws)
        return self._exact.sample_trees(rng_key, num_draws)

    @in_float64
    def _grown(self, rng_key: jax.Array, num_draws: int) -> Tree:
        keys = jax.random.split(rng_key, num_draws)
        parts, piece = [], min(_TREES_A_PIECE, padded_size(num_draws))
        for start in range(0, num_draws, piece):
            # The last piece is filled with existing draws.
            some = np.resize(np.arange(start, min(start + piece, num_draws)), piece)
            shape = jax.tree.map(np.asarray, _grow(keys[some], self._model))
            parts.append(write_out(self._model, shape).trees)
        return Tree.concatenate(parts)[:num_draws]

    @in_float64
    def log_prob(self, trees: Tree) -> np.ndarray:
        """Return log probabilities of trees [...], float64 [...]; -inf for excluded ones."""
        flat = trees.reshape(-1)
        shape = as_shape(self._model, self.design, flat, trees.capacity)
        log_prior = np.asarray(state_of(self._model, shape).log_prior)
        require_defined(np.isnan(log_prior))
        return log_prior.reshape(trees.batch_shape) - self.log_mass

    @in_float64
    def enumerate(self, limit: int = 10_000) -> EnumeratedTrees:
        """List all trees with their log probabilities.

        Parameters
        ----------
        limit
            Most trees to list.

        Raises
        ------
        ValueError
            If there are more trees.
        """
        listed = list(islice(_trees(self._model), limit + 1))
        if len(listed) > limit:
            raise ValueError(
                f"There are more than limit={limit:,} trees: use fewer bins, a smaller max_depth, "
                "a larger min_leaf, or a larger limit."
            )
        log_weight = np.array([weight for weight, _ in listed])
        order = np.argsort(-log_weight, kind="stable")
        trees = write_out(self._model, laid_out([listed[i][1] for i in order])).trees
        return EnumeratedTrees(trees, log_weight[order] - np.logaddexp.reduce(log_weight))


def exact_prior(
    design: Design, prior: TreePrior, constraints: Constraints, *, max_subproblems: int = 500_000
) -> ExactPosterior | BoxPosterior:
    """Make the exact posterior of rows without targets, which is the prior.

    Raises
    ------
    ValueError
        If the prior has no distribution without targets, or its sums are too large.
    """
    constraints.require_free_leaves("A prior without targets")
    nothing = np.zeros(design.num_rows, int)
    model = TreeModel(design, nothing, prior, NO_LIKELIHOOD, constraints)
    return exact_within_budget(model, budget=Budget(subproblems=max_subproblems))[0]


def _without_targets(design: Design, prior: TreePrior, constraints: Constraints) -> PackedModel:
    nothing = np.zeros(design.num_rows, int)
    return PackedModel.of(TreeModel(design, nothing, prior, NO_LIKELIHOOD, constraints))


def _grow(rng_keys: jax.Array, model: PackedModel) -> Shape:
    """Grow a tree for each key; the capacity is doubled until all have room."""
    capacity = _CAPACITY
    while True:
        growth = grown_trees(rng_keys, model, capacity=capacity)
        require_defined(np.isnan(growth.log_normaliser))
        if not np.asarray(growth.overflows).any():
            return growth.state.shape
        capacity = 2 * capacity + 1


@in_float64
def has_root_rule(design: Design, rules: Rules, constraints: Constraints | None = None) -> bool:
    """Return whether the root of a tree over all rows has an available rule.

    Parameters
    ----------
    design
        Rows.
    rules
        "gaps" or "cuts" (see `bdtppl.models.prior_kinds.TreePrior`).
    constraints
        Limits on the trees.
    """
    prior: Any = DepthDecay(rules=rules)
    limits = Constraints() if constraints is None else constraints
    choices = NodeChoices(_without_targets(design, prior, limits))
    return bool(choices(choices.root_rows, 0).rules)


Nested = tuple[int, Any, Any] | None  # a rule and two subtrees, or a leaf

_weigh = jax.jit(node_weights)


class NodeOptions(NamedTuple):
    """Choices of a node.

    Attributes
    ----------
    log_stop
        Log weight of stopping.
    rules
        Log weight and rows of the two children, uint64 [W] each, of each available rule.
    """

    log_stop: float
    rules: dict[int, tuple[float, np.ndarray, np.ndarray]]


class NodeChoices:
    """Choices of single nodes by their rows, uint64 [W], and depth, with a cache."""

    def __init__(self, model: PackedModel):
        self.model = model
        self.root_rows = np.asarray(root_rows(model, roots(1, 1)))[0, 0]
        self._known: dict[tuple[bytes, int], NodeOptions] = {}

    def __call__(self, rows: np.ndarray, depth: int) -> NodeOptions:
        """Return the choices of a node, from the cache or computed."""
        key = rows.tobytes(), depth
        if key not in self._known:
            weights = _weigh(self.model, rows[None], jnp.full(1, depth, jnp.int32))
            log_rules = np.asarray(weights.log_rules[0])
            require_defined(np.isnan(np.append(log_rules, weights.log_stop)))
            rules = np.flatnonzero(log_rules > -np.inf)
            repeated = jnp.repeat(rows[None], len(rules), axis=0)
            sides = children(self.model, repeated, jnp.asarray(rules))
            entries = zip(log_rules[rules].tolist(), *map(np.asarray, sides), strict=True)
            self._known[key] = NodeOptions(
                float(weights.log_stop[0]), dict(zip(rules.tolist(), entries, strict=True))
            )
        return self._known[key]


def _trees(model: PackedModel) -> Iterator[tuple[float, Nested]]:
    """Grow trees in all ways, each with its log weight."""
    choices = NodeChoices(model)

    def below(rows: np.ndarray, depth: int) -> Iterator[tuple[float, Nested]]:
        log_stop, rules = choices(rows, depth)
        if log_stop > -np.inf:
            yield log_stop, None
        for rule, (log_rule, left_rows, right_rows) in rules.items():
            for log_left, left in below(left_rows, depth + 1):
                for log_right, right in below(right_rows, depth + 1):
                    yield log_rule + log_left + log_right, (rule, left, right)

    return below(choices.root_rows, 0)


def laid_out(trees: Sequence[Nested]) -> Shape:
    """Convert trees to arrays, breadth first."""
    queues: list[list[Nested]] = [[tree] for tree in trees]
    for queue in queues:
        for node in queue:
            queue += [] if node is None else node[1:]
    rule = np.full((len(trees), max(map(len, queues))), LEAF)
    for row, queue in zip(rule, queues, strict=True):
        row[: len(queue)] = [LEAF if node is None else node[0] for node in queue]
    return Shape.breadth_first(rule)
