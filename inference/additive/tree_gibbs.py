"""A kernel for NumPyro that redraws sums of trees while another one moves all else."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import MCMC
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger
from numpyro.util import is_prng_key

from bdtppl.inference.additive.any_likelihood import (
    Terms,
    first_power,
    is_normal,
    redraw_all,
    redraw_each,
)
from bdtppl.inference.additive.in_jax import SumState, TreeSweep
from bdtppl.inference.additive.kernel import default_moves
from bdtppl.inference.additive.tree_sum import SumProblem, TreeSum

__all__ = ["TreeGibbs", "TreeGibbsState"]

_HELD = "_bdtppl_held_sums"
_MOST_TEMPERED = 100


class _Held(Messenger):
    """Makes sums of trees constants of a model: their sites keep the values that are given."""

    def __init__(self, values: Mapping[str, jax.Array]):
        super().__init__()
        self.values = values

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["name"] in self.values:
            value = self.values[msg["name"]]
            msg.update(value=value, fn=dist.Delta(value, event_dim=1), is_observed=True)


class _Found(Messenger):
    """Collects the sites that are sums of trees; their values become 0."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.problems: dict[str, SumProblem] = {}

    def process_message(self, msg: dict) -> None:
        if msg["type"] != "sample":
            return
        fn = msg["fn"]
        if isinstance(fn, TreeSum) and msg["value"] is None:
            self.problems[msg["name"]] = fn.problem
            value = jnp.zeros(fn.event_shape)
            msg.update(value=value, fn=dist.Delta(value, event_dim=1), is_observed=True)
        while (fn := getattr(fn, "base_dist", None)) is not None:
            if not isinstance(fn, TreeSum):
                continue
            raise ValueError(
                f"Site {msg['name']!r} is a TreeSum inside a plate or expanded. Its event is the "
                f"vector of all rows: put it outside of the plates, one site for each sum."
            )


def _with_held(model: Any, *args: Any, **kwargs: Any) -> Any:
    with _Held(kwargs.pop(_HELD, {})):
        return model(*args, **kwargs)


class SumTrees(NamedTuple):
    """Trees of a sum, as `bdtppl.inference.additive.in_jax.SumState` has them."""

    rule: jax.Array
    value: jax.Array


class TreeGibbsState(NamedTuple):
    """State of a chain.

    Attributes
    ----------
    z
        Values of all sites: of sums of trees, those of all rows; of the others as the inner kernel
        has them (unconstrained).
    inner
        State of the inner kernel.
    trees, leaf, feature_weight
        For each sum its trees, the leaf of each row in each tree, uint8 [m, n], and the weights of
        features [d].
    tree_acceptance
        float [sums]; share of the trees whose proposals were accepted; 1 for exact redraws.
    i
        Number of the sweep.
    rng_key
        Key of the next one.
    """

    z: dict[str, jax.Array]
    inner: Any
    trees: dict[str, SumTrees]
    leaf: dict[str, jax.Array]
    feature_weight: dict[str, jax.Array]
    tree_acceptance: jax.Array
    i: jax.Array
    rng_key: jax.Array

    @property
    def diverging(self) -> jax.Array:
        """Whether the last trajectory of the inner kernel diverged."""
        return getattr(self.inner, "diverging", jnp.zeros_like(self.i, bool))


class TreeGibbs(MCMCKernel):
    """Redraw every `bdtppl.TreeSum` of a NumPyro model given all else, and move all else.

    Each iteration visits every tree of every sum once. Where the log density of the model is a
    quadratic in the sum with each row apart (normal targets, whatever their means and variances
    depend on), trees are drawn exactly from their conditional law, which the kernel finds out by
    itself. Otherwise each new tree is drawn from the law of a second-order expansion and accepted
    by Metropolis-Hastings (`bdtppl.inference.additive.any_likelihood`).

    Parameters
    ----------
    inner_kernel
        Moves all other sites: NUTS or HMC made from the model, or another kernel that NumPyro's
        Gibbs takes.

    Notes
    -----
    In the first third of warm-up, at most 100 iterations, sums with proposals see a power of the
    likelihood that rises to 1. Extra fields of a run: ``tree_acceptance``, and ``trees``, which
    `samples_at` reads. All of NumPyro's chain methods work; "vectorized" moves one chain after the
    other where trees are redrawn.

    References
    ----------
    Chipman, George and McCulloch 2010; Phan, Pradhan and Jankowiak 2019, Composable effects for
    flexible and accelerated probabilistic programming in NumPyro.
    """

    def __init__(self, inner_kernel: MCMCKernel):
        if getattr(inner_kernel, "model", None) is None:
            raise ValueError("TreeGibbs needs a kernel that is made from a model, as NUTS(model).")
        self._model = inner_kernel.model
        self._inner: Any = inner_kernel.wrap_model(partial(partial, _with_held))
        self._sweeps: dict[str, TreeSweep] = {}
        self._problems: dict[str, SumProblem] = {}
        self._is_normal: dict[str, bool] = {}
        self._first_power: dict[str, float] = {}
        self._found_in: list[Any] = []
        self._num_tempered = 0
        self._is_batch = False

    @property
    def model(self) -> Any:
        """The model."""
        return self._model

    @property
    def sample_field(self) -> str:
        """Field of the state that has the draws."""
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that a run keeps."""
        return "z", "trees", "tree_acceptance", "diverging"

    def get_diagnostics_str(self, state: TreeGibbsState) -> str:
        """Describe the last step, for the progress bar."""
        shares = zip(self._sweeps, np.asarray(state.tree_acceptance), strict=True)
        own = ", ".join(f"{name}: {share:.0%} of trees accepted" for name, share in shares)
        return f"{own}; {self._inner.get_diagnostics_str(state.inner)}"

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> TreeGibbsState:
        """Start each sum at 0.

        Raises
        ------
        ValueError
            If the model has no sum of trees, or initial values are given for one.
        """
        model_kwargs = model_kwargs or {}
        self._find(model_args, model_kwargs)
        if given := sorted(set(init_params or {}) & set(self._sweeps)):
            raise ValueError(f"Sums of trees start at 0: take {given} out of init_params.")
        self._num_tempered = min(_MOST_TEMPERED, num_warmup // 3)
        self._is_batch = not is_prng_key(rng_key)

        def start(rng_key: jax.Array, init_params: Any) -> TreeGibbsState:
            return self._init(rng_key, num_warmup, init_params, model_args, model_kwargs)

        return (jax.vmap(start) if self._is_batch else start)(rng_key, init_params)

    def _find(self, model_args: tuple, model_kwargs: dict) -> None:
        """Find the sums, and whether their conditional laws are normal; once for each data set."""
        given = [*model_args, *model_kwargs, *model_kwargs.values()]
        if self._problems and len(given) == len(self._found_in):
            if all(one is other for one, other in zip(given, self._found_in, strict=True)):
                return
        self._found_in = given
        for known in (self._problems, self._sweeps, self._is_normal, self._first_power):
            known.clear()
        with jax.ensure_compile_time_eval():
            key = jax.random.key(0)
            found = _Found(self._model)
            model = substitute(seed(found, key), substitute_fn=init_to_uniform)
            sites = trace(model).get_trace(*model_args, **model_kwargs)
            self._problems.update(found.problems)
            if not found.problems:
                raise ValueError("The model has no TreeSum: sample it with the inner kernel alone.")
            latent = {
                name: site
                for name, site in sites.items()
                if site["type"] == "sample" and not site["is_observed"]
            }
            if marginal := [
                name for name, site in latent.items() if site["infer"].get("enumerate")
            ]:
                raise ValueError(
                    f"Sites {marginal} are summed out by enumeration, where trees have no terms of "
                    f"the likelihood for each row: draw them, or sum them out in the model."
                )
            values = {name: site["value"] for name, site in latent.items()}
            sums = {name: jnp.zeros(len(p.matrix)) for name, p in found.problems.items()}
            for name, problem in found.problems.items():
                moves = np.array(default_moves(problem.prior.max_depth))
                self._sweeps[name] = TreeSweep(problem.prior, problem.design, moves)
                terms = self._terms(name, sums, values, model_args, model_kwargs)
                self._is_normal[name] = is_normal(terms, key, problem.design.num_rows)
                if not self._is_normal[name]:
                    self._first_power[name] = first_power(problem.prior, terms, sums[name])

    def _terms(
        self, name: str, sums: Mapping, values: Mapping, model_args: tuple, model_kwargs: dict
    ) -> Terms:
        """Make the function from one sum to the terms of the log density, the others held."""
        model = seed(partial(_with_held, self._model), jax.random.key(0))

        def terms(f: jax.Array) -> Any:
            held = {**model_kwargs, _HELD: {**sums, name: f}}
            return compute_log_probs(model, model_args, held, dict(values), sum_log_prob=False)[0]

        return terms

    def _init(
        self, rng_key: jax.Array, num_warmup: int, init_params: Any, args: tuple, kwargs: dict
    ) -> TreeGibbsState:
        rng_key, inner_key = jax.random.split(rng_key)
        starts = {name: sweep.start() for name, sweep in self._sweeps.items()}
        sums = {name: jnp.zeros(sweep.design.num_rows) for name, sweep in self._sweeps.items()}
        held = {**kwargs, _HELD: sums}
        inner = self._inner.init(inner_key, num_warmup, init_params, args, held)
        z = getattr(inner, self._inner.sample_field)
        weights = {
            name: jnp.asarray(sweep.design.has_cut / sweep.design.has_cut.sum(), float)
            for name, sweep in self._sweeps.items()
        }
        return TreeGibbsState(
            z={**z, **sums},
            inner=inner,
            trees={name: SumTrees(start.rule, start.value) for name, start in starts.items()},
            leaf={name: start.leaf for name, start in starts.items()},
            feature_weight=weights,
            tree_acceptance=jnp.ones(len(starts)),
            i=jnp.zeros((), jnp.int32),
            rng_key=rng_key,
        )

    def sample(
        self, state: TreeGibbsState, model_args: tuple, model_kwargs: dict | None
    ) -> TreeGibbsState:
        """Redraw all trees, and step with the inner kernel."""
        step = partial(self._step, model_args, model_kwargs or {})
        return (jax.vmap(step) if self._is_batch else step)(state)

    def _step(self, args: tuple, kwargs: dict, state: TreeGibbsState) -> TreeGibbsState:
        rng_key, *keys = jax.random.split(state.rng_key, 1 + 2 * len(self._sweeps))
        sums = {name: state.z[name] for name in self._sweeps}
        held = {**kwargs, _HELD: sums}
        inner_z = getattr(state.inner, self._inner.sample_field)
        values = self._inner.get_constrain_fn(args, held)(inner_z)
        trees, leaf, weights = dict(state.trees), dict(state.leaf), dict(state.feature_weight)
        shares = []
        for (name, sweep), key, weight_key in zip(
            self._sweeps.items(), keys[::2], keys[1::2], strict=True
        ):
            terms = self._terms(name, sums, values, args, kwargs)
            given = sums[name], SumState(*trees[name], leaf[name]), weights[name], key
            accepted = jnp.ones(())
            if self._is_normal[name]:
                new, sums[name] = redraw_all(sweep, terms, *given)
            else:
                power = self._power(state, name)
                new, sums[name], accepted = redraw_each(sweep, terms, *given, power)
            trees[name], leaf[name] = SumTrees(new.rule, new.value), new.leaf
            weights[name] = sweep.draw_feature_weight(weight_key, new.rule, weights[name])
            shares.append(accepted)
        held = {**kwargs, _HELD: sums}
        inner = state.inner
        if inner_z:
            inner = self._inner.refresh(inner, args, held)
            inner = self._inner.sample(inner, args, held)
        return TreeGibbsState(
            z={**getattr(inner, self._inner.sample_field), **sums},
            inner=inner,
            trees=trees,
            leaf=leaf,
            feature_weight=weights,
            tree_acceptance=jnp.stack(shares),
            i=state.i + 1,
            rng_key=rng_key,
        )

    def _power(self, state: TreeGibbsState, name: str) -> jax.Array:
        """Compute the power of the likelihood, which rises in warm-up."""
        done = jnp.minimum((state.i + 1) / (self._num_tempered + 1), 1.0)
        return self._first_power[name] ** (1 - done)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Any:
        """Make the function that constrains all sites and adds the deterministic ones."""
        kwargs = model_kwargs or {}

        def finish(z: dict[str, jax.Array]) -> dict[str, jax.Array]:
            sums = {name: z[name] for name in self._sweeps}
            others = {name: value for name, value in z.items() if name not in sums}
            held = {**kwargs, _HELD: sums}
            return {**self._inner.postprocess_fn(model_args, held)(others), **sums}

        return finish

    def samples_at(
        self, mcmc: MCMC, group_by_chain: bool = False, **rows: Any
    ) -> dict[str, jax.Array]:
        """Get the draws of a run with sums of trees at other rows, for ``Predictive``.

        Parameters
        ----------
        mcmc
            The run, made with this kernel.
        group_by_chain
            Whether chains keep an axis of their own.
        rows
            For each sum, by the name of its site, a table of m rows with the columns that it had.

        Returns
        -------
        dict
            As ``mcmc.get_samples``; sums are float [draws, m].

        Raises
        ------
        ValueError
            If the names are not those of the sums.

        Examples
        --------
        >>> import numpyro
        >>> from numpyro.infer import NUTS, Predictive
        >>> from bdtppl import TreeSum
        >>> def model(X, y=None):
        ...     f = numpyro.sample("f", TreeSum(X, trees=20))
        ...     numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> kernel = TreeGibbs(NUTS(model))
        >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=30, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), X, np.where(X[:, 0] < 0.5, 0, 6))
        >>> new = np.array([[0.2], [0.8]])
        >>> samples = kernel.samples_at(mcmc, f=new)
        >>> Predictive(model, samples)(jax.random.key(1), new)["y"].shape
        (30, 2)
        """
        if set(rows) != set(self._problems):
            raise ValueError(
                f"Give rows for the sums {sorted(self._problems)}; got {sorted(rows)}."
            )
        samples = dict(mcmc.get_samples(group_by_chain=group_by_chain))
        kept = mcmc.get_extra_fields(group_by_chain=True)["trees"]
        for name, table in rows.items():
            problem = self._problems[name]
            table = table if hasattr(table, "columns") else np.asarray(table)
            drawn = problem.posterior(*kept[name])
            sums = drawn.sums(problem.schema.transform(table))[:, :, 0]
            sums = sums if group_by_chain else sums.reshape(-1, sums.shape[-1])
            samples[name] = jnp.asarray(sums, samples[name].dtype)
        return samples
