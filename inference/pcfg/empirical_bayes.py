"""Empirical Bayes: hyperparameters that maximise the exact log evidence.

Evidence and gradient are exact, so a quasi-Newton method finds the maximum in a few dozen steps, on
the unconstrained scale of each parameter.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.distributions import biject_to

from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.marginal import log_evidence_function
from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior

__all__ = ["EmpiricalBayes", "empirical_bayes"]


class EmpiricalBayes(NamedTuple):
    """Fitted hyperparameters.

    Attributes
    ----------
    prior, leaf
        The model at the end, of plain numbers.
    log_evidence
        float64 [steps + 1]; log evidence before each step and at the end.
    is_converged
        Whether the gradient vanished within the steps allowed.
    """

    prior: TreePrior
    leaf: Leaf
    log_evidence: np.ndarray
    is_converged: bool


@in_float64
def empirical_bayes(
    exact: ExactPosterior,
    *,
    parameters: Collection[str] | None = None,
    max_steps: int = 100,
    tolerance: float = 1e-4,
) -> EmpiricalBayes:
    """Maximise the exact log evidence over hyperparameters with L-BFGS.

    Parameters
    ----------
    exact
        Exact posterior to start from; it is not changed.
    parameters
        Names of the parameters of prior and leaf family to fit, such as ``log_phi`` or
        ``concentration``; the default is all that a family declares in ``parameter_support``.
    max_steps
        Most steps.
    tolerance
        Largest absolute gradient, in nats per unit of the unconstrained scale, to stop at.

    Raises
    ------
    ValueError
        If a parameter does not exist, or starts at the edge of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import LeafPenalty
    >>> grammar = compile_grammar(Design.from_matrix(np.arange(8.0)[:, None]))
    >>> exact = ExactPosterior(grammar, LeafPenalty(2.0), DirichletCategorical.symmetric(2),
    ...     np.array([0, 0, 1, 1, 1, 1, 0, 0]))
    >>> fitted = empirical_bayes(exact, parameters=["log_phi"])
    >>> bool(fitted.log_evidence[-1] > exact.log_evidence)
    True
    """
    model = {"prior": exact.prior, "leaf": exact.leaf}
    known = {
        name: (part, support)
        for part, value in model.items()
        for name, support in value.parameter_support.items()
    }
    chosen = list(known) if parameters is None else list(parameters)
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"There is no parameter {name!r} to fit; there are {', '.join(sorted(known))}."
            )
    to_support = {name: biject_to(known[name][1]) for name in chosen}
    start = {
        name: to_support[name].inv(jnp.asarray(getattr(model[known[name][0]], name), float))
        for name in chosen
    }
    for name, value in start.items():
        if not jnp.isfinite(value).all():
            raise ValueError(
                f"{name} starts at the edge of its range, {getattr(model[known[name][0]], name)}, "
                "where no gradient leads away; start it inside, or leave it out of parameters."
            )

    def model_at(position: dict) -> tuple[TreePrior, Leaf]:
        changed = {"prior": {}, "leaf": {}}
        for name, value in position.items():
            changed[known[name][0]][name] = to_support[name](value)
        return tuple(replace(model[part], **changed[part]) for part in model)

    statistics = padded(exact.statistics, len(exact.chart.has_rule))
    log_evidence = log_evidence_function(exact.grammar, exact.prior, statistics)

    def loss(position: dict) -> jax.Array:
        return -log_evidence(*model_at(position))

    optimiser = optax.lbfgs()
    value_and_gradient = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(position, state):
        value, gradient = value_and_gradient(position, state=state)
        updates, state = optimiser.update(
            gradient, state, position, value=value, grad=gradient, value_fn=loss
        )
        return optax.apply_updates(position, updates), state, value, gradient

    position, state, trace, is_converged = start, optimiser.init(start), [], False
    for _ in range(max_steps):
        next_position, state, value, gradient = step(position, state)
        trace.append(-float(value))
        largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient))
        if largest <= tolerance:
            is_converged = True
            break
        position = next_position
    prior, leaf = jax.tree.map(np.asarray, model_at(position))
    prior, leaf = (jax.tree.map(lambda a: a if a.ndim else float(a), m) for m in (prior, leaf))
    trace.append(-float(loss(position)))
    return EmpiricalBayes(prior, leaf, np.array(trace), is_converged)
