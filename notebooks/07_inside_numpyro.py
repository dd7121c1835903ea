# %% [markdown]
# # A tree inside a NumPyro model
#
# A tree prior has hyperparameters: how readily nodes split, how noisy leaves are. So far we have
# chosen them. Here they have priors of their own and are inferred, while the tree is summed out
# exactly. `TreeMarginal` is a NumPyro distribution whose log probability is the log evidence of
# *all* trees, with its gradient. NUTS never sees a tree; it samples three smooth parameters.

# %%
import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, Predictive
from sklearn.datasets import load_diabetes

from bdtppl import ExactTreeRegressor
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.marginal import TreeMarginal
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay

BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#888888"

diabetes = load_diabetes(as_frame=True, scaled=False)
columns = ["sex", "bmi", "bp", "s5"]
rng = np.random.default_rng(0)
order = rng.permutation(len(diabetes.data))
train, test = order[:300], order[300:]
X, X_test = (diabetes.data[columns].iloc[rows].to_numpy() for rows in (train, test))
z = np.sqrt(diabetes.target.to_numpy())
z = (z - z[train].mean()) / z[train].std()
y, y_test = z[train], z[test]

# %% [markdown]
# ## The model
#
# The grammar of all splits depends only on the inputs. It is compiled once, and every evaluation
# below is one pass over it.

# %%
limits = Constraints(max_depth=2, min_leaf=20)


def grammar_of(matrix):
    return compile_grammar(
        Design.from_matrix(matrix, bins=4, names=tuple(columns)), constraints=limits
    )


grammar = grammar_of(X)
print(f"{grammar.num_subproblems:,} sets of rows, {grammar.num_productions:,} ways to split them")


def hyperparameters():
    """Draw a tree prior and a leaf family."""
    alpha = numpyro.sample("alpha", dist.Beta(2.0, 1.0))  # how readily the root splits
    noise = numpyro.sample("noise", dist.LogNormal(-0.4, 0.4))  # sd within leaves
    alike = numpyro.sample("alike", dist.Gamma(2.0, 1.0))  # how alike the leaves' variances are
    leaf = NormalInverseGamma(0.0, 0.5, 1.0 + alike, alike * noise**2, centre=0.0)
    return DepthDecay(alpha, 1.0), leaf


def model(y=None):
    prior, leaf = hyperparameters()
    numpyro.sample("y", TreeMarginal(grammar, prior, leaf), obs=y)


# %% [markdown]
# We first sample the prior. `TreeMarginal` draws a tree from the prior, then targets from its
# leaves. The prior predictive is wide, as intended, and centred on the data.

# %%
imagined = Predictive(model, num_samples=20)(jax.random.key(1))["y"]
fig, ax = plt.subplots(figsize=(6.4, 3), layout="constrained")
bins = np.linspace(-4, 4, 41)
for i, one in enumerate(imagined):
    ax.hist(
        np.clip(one, -4, 4),
        bins,
        histtype="step",
        color=BLUE,
        alpha=0.35,
        density=True,
        label="prior predictive" if i == 0 else None,
    )
ax.hist(y, bins, histtype="step", color="black", linewidth=1.5, density=True, label="observed")
ax.set_ylim(0, 1.5)
ax.set_xlabel("y (square root of the target, standardised)")
ax.set_ylabel("density")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## NUTS
#
# We run two short chains. Each gradient is a forward and a backward pass over the grammar, a few
# milliseconds at most.

# %%
mcmc = MCMC(
    NUTS(model, max_tree_depth=3),
    num_warmup=50,
    num_samples=75,
    num_chains=2,
    chain_method="sequential",
    progress_bar=False,
)
mcmc.run(jax.random.key(0), y)
data = az.from_numpyro(mcmc)
az.summary(data)

# %% [markdown]
# Grey is the prior, blue the posterior. The noise within leaves is known twice as precisely as
# before. A single tree of at most four leaves has little information about how readily the root
# splits (`alpha`) and how similar the variances of leaves are.

# %%
before = Predictive(lambda: hyperparameters() and None, num_samples=4000)(jax.random.key(2))
after = {name: np.asarray(draws) for name, draws in mcmc.get_samples().items()}
fig, axes = plt.subplots(1, len(after), figsize=(9, 2.6), layout="constrained")
for ax, (name, draws) in zip(axes, after.items(), strict=True):
    bins = np.linspace(0, np.quantile(before[name], 0.98), 41)
    ax.hist(np.asarray(before[name]), bins, density=True, color=GREY, alpha=0.35, label="prior")
    ax.hist(draws, bins, density=True, color=BLUE, alpha=0.7, label="posterior")
    ax.set_xlabel(name)
    ax.set_yticks([])
    ax.spines[["top", "right", "left"]].set_visible(False)
axes[0].legend(frameon=False)
plt.show()
known = {name: draws.std() / np.std(before[name]) for name, draws in after.items()}
print("posterior sd / prior sd:", {name: round(float(ratio), 2) for name, ratio in known.items()})
assert known["noise"] < 0.6  # half, within three errors of 150 draws

# %% [markdown]
# ## Predict
#
# A prediction averages over trees exactly, and over hyperparameters by draws. For each of several
# draws the exact posterior is recomputed on the same grammar, with its predictive density. We
# compare it with the defaults of `ExactTreeRegressor` on held-out patients.


# %%
def predictive_at(alpha, noise, alike):
    leaf = NormalInverseGamma(0.0, 0.5, 1.0 + alike, alike * noise**2)
    return ExactPosterior(grammar, DepthDecay(alpha, 1.0), leaf, y).predictive(X_test)


chosen = np.linspace(0, len(after["alpha"]) - 1, 20).astype(int)
mixtures = [
    predictive_at(*(float(after[name][i]) for name in ("alpha", "noise", "alike"))) for i in chosen
]
log_density = np.stack([mixture.log_density(y_test) for mixture in mixtures])
inferred = np.logaddexp.reduce(log_density) - np.log(len(chosen))

default = ExactTreeRegressor(prior=DepthDecay(0.95, 1.0), bins=4, max_depth=2, min_leaf=20)
default.fit(X, y)
chosen_by_us = default.exact_.predictive(X_test).log_density(y_test)
gain = inferred - chosen_by_us
print(
    f"mean log score, {len(y_test)} patients: inferred {inferred.mean():.3f}, "
    f"defaults {chosen_by_us.mean():.3f}; "
    f"difference {gain.mean():.3f} ± {gain.std() / np.sqrt(len(gain)):.3f}"
)

# %% [markdown]
# ## One tree, or one for each sex?
#
# Inside a model the evidence of a tree is an ordinary term. Questions about trees therefore become
# parameters: do all patients share one tree, or do women and men have separate trees with common
# hyperparameters? Both marginal likelihoods are computed, and the indicator is summed out.

# %%
is_male = X[:, 0] == X[:, 0].max()
others = X[:, 1:]


def marginal_of(rows):
    design = Design.from_matrix(others[rows], bins=4, names=tuple(columns[1:]))
    grammar = compile_grammar(design, constraints=limits)
    return lambda prior, leaf: TreeMarginal(grammar, prior, leaf).log_prob(y[rows])


everyone, women, men = (marginal_of(rows) for rows in (is_male | True, ~is_male, is_male))


def sexes():
    prior, leaf = hyperparameters()
    together = everyone(prior, leaf)
    apart = women(prior, leaf) + men(prior, leaf)
    numpyro.factor("y", jnp.logaddexp(together, apart) - jnp.log(2.0))
    numpyro.deterministic("one_tree", jax.nn.sigmoid(together - apart))


mcmc = MCMC(NUTS(sexes, max_tree_depth=3), num_warmup=40, num_samples=60, progress_bar=False)
mcmc.run(jax.random.key(3))
one_tree = np.asarray(mcmc.get_samples()["one_tree"]).mean()
print(f"probability that one tree serves all: {one_tree:.3f}")
assert one_tree > 0.5

# %% [markdown]
# Nothing here is special to trees: any NumPyro model may contain several `TreeMarginal`s, share
# their parameters in a hierarchy, or combine them with other distributions. There is one limit: the
# targets of a tree are data, so no gradient with respect to them is available.
