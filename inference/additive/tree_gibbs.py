"""A kernel for NumPyro that redraws sums of trees while another one moves all else."""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import HMC, MCMC
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger
from numpyro.util import is_prng_key
from sklearn.exceptions import ConvergenceWarning

from bdtppl.inference.additive.any_likelihood import (
    Terms,
    best_level,
    first_power,
    is_normal,
    redraw_all,
    redraw_each,
)
from bdtppl.inference.additive.in_jax import SumState, TreeSweep
from bdtppl.inference.additive.tree_sum import SumProblem, TreeSum

_HELD, _LEVELS = "_bdtppl_held_sums", "_bdtppl_levels"
_FEW_ACCEPTED, _SHOULD_ACCEPT = 0.1, 0.5
_PROBED = 2  # values of all other sites
_MOST_TEMPERED = 100


class _Held(Messenger):
    """Holds the trees of a model's sums.

    A sum's site has the value that is given, or, with its ``level``, that value and a number that
    is added to all rows, which is a site of its own.
    """

    def __init__(self, values: Mapping[str, jax.Array], levels: Mapping[str, "_Level"]):
        super().__init__()
        self.values, self.levels = values, levels

    def process_message(self, msg: dict) -> None:
        name = msg["name"]
        if msg["type"] != "sample" or name not in self.values:
            return
        value = self.values[name]
        if name in self.levels:
            value = value + self.levels[name].sample(name)
        msg.update(value=value, fn=dist.Delta(value, event_dim=1), is_observed=True)


class _Level(NamedTuple):
    """What a number that is added to a sum of m trees does to the prior of its leaf values.

    An intercept of the model and the level of a sum are hard to tell apart, so one must not be held
    while the other moves. The number c adds c / m to each leaf value, and is drawn with all other
    sites: a move along the orbit of the group of such translations, whose density is that of the
    shifted values (Liu and Sabatti 2000, Generalised Gibbs sampler, theorem 1).

    Attributes
    ----------
    total, count
        Sum of all leaf values, and their number.
    num_trees, precision
        Number of trees, and precision of leaf values.
    """

    total: jax.Array
    count: jax.Array
    num_trees: int
    precision: float

    @staticmethod
    def site(name: str) -> str:
        return f"_{name}_level"

    def sample(self, name: str) -> jax.Array:
        flat = dist.ImproperUniform(constraints.real, (), ())
        level = jnp.asarray(numpyro.sample(self.site(name), flat))
        each = level / self.num_trees
        change = -0.5 * self.precision * each * (2 * self.total + each * self.count)
        numpyro.factor(f"{self.site(name)}_prior", change)
        return level


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


def _digest(value: Any) -> int:
    """Tell whether an array was changed in place."""
    return hash(value.tobytes()) if isinstance(value, np.ndarray) else 0


def _with_held(model: Any, *args: Any, **kwargs: Any) -> Any:
    with _Held(kwargs.pop(_HELD, {}), kwargs.pop(_LEVELS, {})):
        return model(*args, **kwargs)


class TreeGibbsState(NamedTuple):
    """State of a chain.

    Attributes
    ----------
    z
        Values of all sites: of sums of trees, those of all rows; of the others as the inner kernel
        has them (unconstrained).
    inner
        State of the inner kernel.
    trees, feature_weight
        For each sum its trees, and the weights of features [d].
    expands_twice
        For each sum, whether proposals expand the log density twice; found out in warm-up.
    tree_acceptance
        float [sums]; share of the trees whose proposals were accepted; 1 for exact redraws.
    i
        Number of the sweep.
    rng_key
        Key of the next one.
    """

    z: dict[str, jax.Array]
    inner: Any
    trees: dict[str, SumState]
    feature_weight: dict[str, jax.Array]
    expands_twice: dict[str, jax.Array]
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
        Moves all other sites, and the level of each sum: NUTS or HMC, made from the model.

    Notes
    -----
    Acceptance does not tell convergence: compare chains, by what the likelihood depends on (such as
    ``exp(f + intercept)``) rather than by ``f`` alone.

    In the first third of warm-up, at most 100 iterations, sums with proposals see a power of the
    likelihood that rises to 1. Where less than half of them are accepted in warm-up, the log
    density is expanded a second time, around a first tree, which costs about three times as much.

    Extra fields of a run: ``tree_acceptance``, and ``trees``, which `samples_at` reads. All of
    NumPyro's chain methods work; "vectorized" moves one chain after the other where trees are
    redrawn.

    References
    ----------
    Chipman, George and McCulloch 2010; Phan, Pradhan and Jankowiak 2019, Composable effects for
    flexible and accelerated probabilistic programming in NumPyro.
    """

    def __init__(self, inner_kernel: HMC):
        if not isinstance(inner_kernel, HMC) or inner_kernel.model is None:
            raise ValueError("TreeGibbs needs NUTS or HMC made from a model: NUTS(model).")
        self._model = inner_kernel.model
        self._inner: Any = inner_kernel.wrap_model(partial(partial, _with_held))
        self._sweeps: dict[str, TreeSweep] = {}
        self._problems: dict[str, SumProblem] = {}
        self._is_normal: dict[str, bool] = {}
        self._first_power: dict[str, float] = {}
        self._level: dict[str, float] = {}
        self._found_in: list[Any] = []
        self._latent: tuple[str, ...] = ()
        self._num_warmup = self._num_tempered = 0
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
        """Start each sum at the constant that suits the data best.

        Raises
        ------
        ValueError
            If the model has no sum of trees, or initial values are given for one.
        """
        model_kwargs = model_kwargs or {}
        self._find(model_args, model_kwargs)
        if given := sorted(set(init_params or {}) & set(self._sweeps)):
            raise ValueError(
                f"Sums of trees have starts of their own: take {given} out of init_params."
            )
        self._num_warmup = num_warmup
        self._num_tempered = min(_MOST_TEMPERED, num_warmup // 3)
        self._is_batch = not is_prng_key(rng_key)

        def start(rng_key: jax.Array, init_params: Any) -> TreeGibbsState:
            return self._init(rng_key, num_warmup, init_params, model_args, model_kwargs)

        return (jax.vmap(start) if self._is_batch else start)(rng_key, init_params)

    def _find(self, model_args: tuple, model_kwargs: dict) -> None:
        """Find the sums, and whether their conditional laws are normal; once for each data set."""
        given = [*model_args, *model_kwargs, *model_kwargs.values()]
        given = [(value, _digest(value)) for value in given]
        if given and len(given) == len(self._found_in):
            known = zip(given, self._found_in, strict=True)
            if all(one[0] is other[0] and one[1] == other[1] for one, other in known):
                return
        self._found_in = []  # what is refused now must be refused again
        found = self._problems, self._sweeps, self._is_normal, self._first_power, self._level
        for known in found:
            known.clear()
        with jax.ensure_compile_time_eval():
            self._find_sums(model_args, model_kwargs)
        self._found_in = given

    def _find_sums(self, model_args: tuple, model_kwargs: dict) -> None:
        def traced(number: int) -> dict[str, Any]:
            found = _Found(self._model)
            model = substitute(seed(found, jax.random.key(number)), substitute_fn=init_to_uniform)
            sites = trace(model).get_trace(*model_args, **model_kwargs)
            self._problems.update(found.problems)
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
            return {name: site["value"] for name, site in latent.items()}

        values = traced(0)
        if not self._problems:
            raise ValueError("The model has no TreeSum: sample it with the inner kernel alone.")
        self._latent = tuple(values)
        for name, problem in self._problems.items():
            problem.require_rules()
            self._sweeps[name] = TreeSweep(problem.prior, problem.design)
        self._is_normal |= dict.fromkeys(self._problems, True)
        for number in range(_PROBED):
            values = traced(number)
            keys = jax.random.split(jax.random.key(number), len(self._problems))
            probes = list(zip(self._problems.items(), keys, strict=True))
            sums = {
                name: problem.scale * jax.random.normal(key, (len(problem.matrix),))
                for (name, problem), key in probes
            }
            for (name, problem), key in probes:
                terms = self._terms(name, sums, values, model_args, model_kwargs)
                self._is_normal[name] &= is_normal(terms, key, len(sums[name]), problem.scale)
        values = traced(0)
        sums = {name: jnp.zeros(len(p.matrix)) for name, p in self._problems.items()}
        for name, problem in self._problems.items():
            terms = self._terms(name, sums, values, model_args, model_kwargs)
            self._level[name] = best_level(terms, len(problem.matrix))
            sums[name] += self._level[name]
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
        trees = {name: sweep.start(self._level[name]) for name, sweep in self._sweeps.items()}
        sums = {
            name: jnp.full(sweep.design.num_rows, self._level[name])
            for name, sweep in self._sweeps.items()
        }
        inner = self._inner.init(
            inner_key, num_warmup, init_params, args, self._held(kwargs, sums, trees)
        )
        weights = {
            name: jnp.asarray(sweep.design.equal_weights, float)
            for name, sweep in self._sweeps.items()
        }
        return TreeGibbsState(
            z={**self._others(getattr(inner, self._inner.sample_field)), **sums},
            inner=inner,
            trees=trees,
            feature_weight=weights,
            expands_twice={name: jnp.zeros((), bool) for name in trees},
            tree_acceptance=jnp.ones(len(trees)),
            i=jnp.zeros((), jnp.int32),
            rng_key=rng_key,
        )

    def _held(self, kwargs: dict, sums: Mapping, trees: Mapping[str, SumState]) -> dict:
        """Make the arguments of the inner kernel's model, in which trees are held."""
        levels = {}
        for name, (rule, value) in trees.items():
            prior = self._sweeps[name].prior
            precision = float(prior.leaf_scale) ** -2
            count = prior.num_trees + (rule >= 0).sum()
            levels[name] = _Level(value.sum(), count, prior.num_trees, precision)
        return {**kwargs, _HELD: sums, _LEVELS: levels}

    def _others(self, z: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Take the model's own latent sites: no levels, and nothing that follows from others."""
        return {name: z[name] for name in self._latent}

    def sample(
        self, state: TreeGibbsState, model_args: tuple, model_kwargs: dict | None
    ) -> TreeGibbsState:
        """Redraw all trees, and step with the inner kernel."""
        step = partial(self._step, model_args, model_kwargs or {})
        return (jax.vmap(step) if self._is_batch else step)(state)

    def _step(self, args: tuple, kwargs: dict, state: TreeGibbsState) -> TreeGibbsState:
        rng_key, *keys = jax.random.split(state.rng_key, 1 + 2 * len(self._sweeps))
        sums = {name: state.z[name] for name in self._sweeps}
        inner_z = dict(getattr(state.inner, self._inner.sample_field))
        values = self._others(
            self._inner.get_constrain_fn(args, self._held(kwargs, sums, state.trees))(inner_z)
        )
        trees, weights = dict(state.trees), dict(state.feature_weight)
        twice, shares = dict(state.expands_twice), []
        for (name, sweep), key, weight_key in zip(
            self._sweeps.items(), keys[::2], keys[1::2], strict=True
        ):
            terms = self._terms(name, sums, values, args, kwargs)
            given = sums[name], trees[name], weights[name], key
            accepted = jnp.ones(())
            if self._is_normal[name]:
                trees[name], sums[name] = redraw_all(sweep, terms, *given)
            else:
                # The power of the likelihood rises in warm-up.
                done = jnp.minimum((state.i + 1) / (self._num_tempered + 1), 1.0)
                power = self._first_power[name] ** (1 - done)
                trees[name], sums[name], accepted = redraw_each(
                    sweep, terms, *given, power, twice[name]
                )
                twice[name] |= (accepted < _SHOULD_ACCEPT) & (state.i < self._num_warmup)
            weights[name] = sweep.draw_feature_weight(weight_key, trees[name].rule, weights[name])
            shares.append(accepted)
        held = self._held(kwargs, sums, trees)
        # Levels start at 0: what they were is in the leaf values.
        inner_z |= {_Level.site(name): jnp.zeros_like(inner_z[_Level.site(name)]) for name in sums}
        inner = state.inner._replace(**{self._inner.sample_field: inner_z})
        inner = self._inner.refresh(inner, args, held)
        inner = self._inner.sample(inner, args, held)
        inner_z = getattr(inner, self._inner.sample_field)
        for name in sums:
            level = inner_z[_Level.site(name)]
            sums[name] += level
            rule, value = trees[name]
            # What the sum has gained is shared out over the leaves of all trees.
            below = jnp.repeat(rule >= 0, 2, axis=1)
            is_leaf = jnp.concatenate([jnp.ones((len(rule), 1), bool), below], axis=1)
            is_leaf &= jnp.pad(rule < 0, ((0, 0), (0, rule.shape[1] + 1)), constant_values=True)
            trees[name] = SumState(rule, value + jnp.where(is_leaf, level / len(rule), 0.0))
        return TreeGibbsState(
            z={**self._others(inner_z), **sums},
            inner=inner,
            trees=trees,
            feature_weight=weights,
            expands_twice=twice,
            tree_acceptance=jnp.stack(shares),
            i=state.i + 1,
            rng_key=rng_key,
        )

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Any:
        """Make the function that constrains all sites and adds the deterministic ones."""
        kwargs = model_kwargs or {}

        def finish(z: dict[str, jax.Array]) -> dict[str, jax.Array]:
            sums = {name: z[name] for name in self._sweeps}
            others = {name: value for name, value in z.items() if name not in sums}
            held = {**kwargs, _HELD: sums}
            made = self._inner.postprocess_fn(model_args, held)(others)
            return {**made, **sums}

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
            If the names are not those of the sums, or a table cannot be read.

        Warns
        -----
        ConvergenceWarning
            If nearly no proposals were accepted.

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
        if not self._problems:
            raise ValueError("This kernel has not run: take the one that `mcmc` was made with.")
        if set(rows) != set(self._problems):
            raise ValueError(
                f"Give rows for the sums {sorted(self._problems)}; got {sorted(rows)}."
            )
        samples = dict(mcmc.get_samples(group_by_chain=group_by_chain))
        fields = mcmc.get_extra_fields(group_by_chain=True)
        shares = np.asarray(fields["tree_acceptance"]).mean(axis=(0, 1))
        for name, share in zip(self._sweeps, shares, strict=True):
            if share < _FEW_ACCEPTED:
                warnings.warn(
                    f"Only {share:.1%} of the trees that were proposed for {name!r} were accepted: "
                    f"its draws hardly move. Give the sum more trees, add an offset to the model "
                    f"where {name!r} is far from 0, or model the logarithm of large counts.",
                    ConvergenceWarning,
                    stacklevel=2,
                )
        for name, table in rows.items():
            problem = self._problems[name]
            drawn = problem.posterior(*fields["trees"][name])
            first = np.asarray(mcmc.get_samples(group_by_chain=True)[name])[:1, :1]
            again = drawn.take(np.zeros(1, int)).sums(problem.matrix)[:, :, 0]
            if first.shape != again.shape or not np.allclose(first, again, atol=1e-3):
                raise ValueError(
                    f"These draws of {name!r} are not of the table that the kernel was last run "
                    f"with. Make a kernel for each run."
                )
            sums = drawn.sums(problem.read(table))[:, :, 0]
            sums = sums if group_by_chain else sums.reshape(-1, sums.shape[-1])
            samples[name] = jnp.asarray(sums, samples[name].dtype)
        return samples
