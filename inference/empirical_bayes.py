"""Empirical Bayes: hyperparameters that maximise the exact log evidence.

Evidence and gradient are exact, so a quasi-Newton method finds the maximum in a few dozen steps, on
the unconstrained scale of each parameter.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.distributions import biject_to
from scipy.optimize import minimize

from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior


class EmpiricalBayes(NamedTuple):
    """Fitted hyperparameters.

    Attributes
    ----------
    prior, leaf
        The final model, of plain numbers.
    log_evidence
        float64 [evaluations + 1]; log evidence at each evaluation, and at the end.
    is_converged
        Whether the gradient vanished within the allowed steps.
    """

    prior: TreePrior
    leaf: Leaf
    log_evidence: np.ndarray
    is_converged: bool


@jax.jit
def _constrained(supports: dict[str, Any], positions: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: biject_to(supports[name])(each) for name, each in positions.items()}


@jax.jit
def _unconstrained(support: Any, value: np.ndarray) -> jax.Array:
    return biject_to(support).inv(value)


@jax.jit
def _pulled_back(supports: dict, positions: dict, by_value: dict) -> dict[str, jax.Array]:
    return jax.vjp(partial(_constrained, supports), positions)[1](by_value)[0]


def _ending(is_over: Callable[[], bool]) -> Callable[[np.ndarray], None]:
    def after_step(position: np.ndarray) -> None:
        if is_over():
            raise StopIteration

    return after_step


@in_float64
def empirical_bayes(
    exact: Any,
    *,
    parameters: Collection[str] | None = None,
    max_steps: int = 100,
    tolerance: float = 1e-4,
    units: Mapping[str, float] = MappingProxyType({}),
    reach: float | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> EmpiricalBayes:
    """Maximise the exact log evidence over hyperparameters with L-BFGS.

    Parameters
    ----------
    exact
        Exact posterior to start from, by a chart
        (`bdtppl.inference.pcfg.exact.ExactPosterior`) or by boxes
        (`bdtppl.inference.boxes.exact.BoxPosterior`); it is not changed.
    parameters
        Names of the parameters of prior and leaf family to fit, such as ``log_phi`` or
        ``concentration``; default: all in a family's ``parameter_support``.
    max_steps
        Most steps; each step evaluates at most two points.
    tolerance
        Largest absolute gradient at which to stop, in nats per unit of the unconstrained scale.
    units
        Units of parameters whose range is the real line; default 1.
    reach
        Limit of moves on the unconstrained scale; None for no limit. The evidence of targets
        without noise has no maximum.
    is_over
        Called after each step; returns whether to stop.

    Raises
    ------
    ValueError
        If a parameter does not exist, or starts at the edge of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.inference.pcfg.exact import ExactPosterior
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
    known, start = _unconstrained_starts(model, parameters)
    chosen, supports = list(start), {name: known[name][1] for name in start}
    ends = np.cumsum([np.size(start[name]) for name in chosen])[:-1]

    def positions_at(position: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: own.reshape(np.shape(start[name])) * units.get(name, 1.0)
            for name, own in zip(chosen, np.split(position, ends), strict=True)
        }

    def model_at(position: np.ndarray) -> dict[str, Any]:
        changed = dict(model)
        for name, value in _constrained(supports, positions_at(position)).items():
            part = known[name][0]
            changed[part] = replace(changed[part], **{name: _as_numpy(value)})
        return changed

    trace = []

    def loss(position: np.ndarray) -> tuple[float, np.ndarray]:
        changed = exact.with_model(**model_at(position))
        trace.append(float(changed.log_evidence))
        by = {part: changed.gradient(part) for part in {known[name][0] for name in chosen}}
        by_value = {name: np.asarray(getattr(by[known[name][0]], name), float) for name in chosen}
        slopes = _pulled_back(supports, positions_at(position), by_value)
        own = [np.ravel(slopes[name]) * units.get(name, 1.0) for name in chosen]
        return -trace[-1], -np.concatenate(own)

    start_at = np.concatenate([np.ravel(start[name]) / units.get(name, 1.0) for name in chosen])
    limits = {"maxiter": max_steps, "maxfun": 2 * max_steps}
    options = {**limits, "gtol": tolerance, "ftol": 0.0}
    bounds = None if reach is None else [(at - reach, at + reach) for at in start_at]
    given = {"jac": True, "bounds": bounds, "options": options, "callback": _ending(is_over)}
    found = minimize(loss, start_at, method="L-BFGS-B", **given)
    fitted = model_at(found.x)
    return EmpiricalBayes(
        fitted["prior"],
        fitted["leaf"],
        np.array([*trace, -float(found.fun)]),
        bool(np.abs(found.jac).max() <= tolerance),
    )


def _unconstrained_starts(
    model: Mapping[str, Any], parameters: Collection[str] | None
) -> tuple[dict[str, tuple[str, Any]], dict[str, np.ndarray]]:
    """Return each parameter's part and range, and unconstrained starts of chosen ones."""
    known = {
        name: (part, support)
        for part, value in model.items()
        for name, support in value.parameter_support.items()
    }
    chosen = list(known) if parameters is None else list(parameters)
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"parameters must be some of {', '.join(sorted(known))}; got {name!r}."
            )
    start = {}
    for name in chosen:
        part, support = known[name]
        value = getattr(model[part], name)
        start[name] = np.asarray(_unconstrained(support, np.asarray(value, float)))
        if not np.isfinite(start[name]).all():
            raise ValueError(
                f"{name} starts at the edge of its range, {value}, where no gradient leads away; "
                "start it inside, or leave it out of parameters."
            )
    return known, start


def _as_numpy(value: Any) -> Any:
    """Convert a JAX number to a float, and an array to NumPy."""
    return np.asarray(value) if np.ndim(value) else float(value)
