# %% [markdown]
# # Sums of trees inside a NumPyro model
#
# Regression by sums of trees (BART) is usually a program for normal or binary targets. Here a sum
# of trees is one site of a NumPyro model, together with any others: `f = numpyro.sample("f",
# TreeSum(X))` has one value per row. `TreeGibbs(NUTS(model))` resamples the trees while NUTS moves
# the other sites. The three models below have no ready-made estimator: counts with exposures and
# clinics, survival with censoring, and noise that depends on the row.

# %%
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, Predictive

from bdtppl import TreeGibbs, TreeSum

# A few rows move the posterior much: their leave-one-out terms are rough.
warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto distribution")
BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#888888"
rng = np.random.default_rng(0)


def sample(model, *data, num_warmup=300, num_samples=300, num_chains=2):
    """Run chains, and print how many proposals of trees were accepted."""
    kernel = TreeGibbs(NUTS(model))
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *data)
    accepted = mcmc.get_extra_fields()["tree_acceptance"].mean(axis=0)
    print("share of proposed trees that were accepted, for each sum:", np.round(accepted, 2))
    assert (accepted > 0.5).all()
    return kernel, mcmc


# %% [markdown]
# ## Counts, with exposures and a random intercept
#
# Thirty clinics report events of patients who were observed for different times. The rate depends
# on age and dose in an unknown way, and clinics differ.

# %%
num_rows, num_clinics = 600, 30
age, dose = rng.uniform(20, 80, num_rows), rng.uniform(0, 10, num_rows)
X = np.column_stack([age, dose, rng.uniform(size=(num_rows, 3))])  # three columns mean nothing
clinic = rng.integers(num_clinics, size=num_rows)
exposure = rng.uniform(0.2, 3.0, num_rows)
true_f = 0.02 * (age - 50) + np.where((dose > 4) & (age > 45), 1.0, 0.0)
true_clinic = 0.5 * rng.normal(size=num_clinics)
rate = exposure * np.exp(true_f + true_clinic[clinic])
events = rng.poisson(rate * rng.gamma(5, 1 / 5, num_rows))


def counts(X, exposure, clinic, y=None):
    f = numpyro.sample("f", TreeSum(X, trees=50))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("clinics", num_clinics):
        of_clinic = numpyro.sample("of_clinic", dist.Normal(0, spread))
    size = numpyro.sample("size", dist.Exponential(0.1))
    mean = exposure * jnp.exp(f + of_clinic[clinic])
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", dist.NegativeBinomial2(mean, size), obs=y)


kernel, mcmc = sample(counts, X, exposure, clinic, events)
labelled = az.from_numpyro(mcmc, log_likelihood=True)
az.summary(labelled, var_names=["spread", "size"], round_to=2)

# %% [markdown]
# The true spread of the clinics was 0.5 and the true size 5. `samples_at` returns the draws with
# the sum at other rows, for NumPyro's `Predictive`. The figure shows the effect of age at two
# doses, for an average clinic.

# %%
ages = np.linspace(20, 80, 61)
figure, axes = plt.subplots(figsize=(6, 3.4))
for level, colour in ((2.0, BLUE), (7.0, ORANGE)):
    rows = np.column_stack([ages, np.full(61, level), np.full((61, 3), 0.5)])
    drawn = np.exp(kernel.samples_at(mcmc, f=rows)["f"])
    low, middle, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=0)
    truth = np.exp(0.02 * (ages - 50) + np.where((level > 4) & (ages > 45), 1.0, 0.0))
    axes.fill_between(ages, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(ages, middle, color=colour, label=f"dose {level:g}")
    axes.plot(ages, truth, color=colour, linestyle=":")
axes.set(xlabel="age", ylabel="events a year", ylim=(0, None))
axes.legend(frameon=False, title="posterior median, 90 % band;\ndotted: the truth")
figure.tight_layout()

# %% [markdown]
# ArviZ reads this run like any other, so models can be compared by leave-one-out. Without the
# intercepts of the clinics, the model predicts worse.


# %%
def without_clinics(X, exposure, y=None):
    f = numpyro.sample("f", TreeSum(X, trees=50))
    size = numpyro.sample("size", dist.Exponential(0.1))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", dist.NegativeBinomial2(exposure * jnp.exp(f), size), obs=y)


_, plain = sample(without_clinics, X, exposure, events)
runs = {"with clinics": labelled, "without": az.from_numpyro(plain, log_likelihood=True)}
compared = az.compare(runs).filter(regex="rank|elpd|se")
assert compared.index[0] == "with clinics"
compared.round(1)

# %% [markdown]
# ## Survival, with censoring
#
# The time to an event has a Weibull distribution, whose scale is the exponential of a sum of trees.
# If the study ended before the event, only a lower limit of the time is known. Such a row
# contributes its survival probability.

# %%
X = rng.uniform(size=(400, 4))
true_f = 1.5 * np.sin(3 * X[:, 0]) + np.where(X[:, 1] > 0.6, 0.8, 0.0)
time = np.exp(true_f) * rng.weibull(1.6, 400)
end = rng.uniform(0.5, 8.0, 400)
seen, observed = time < end, np.minimum(time, end)
print(f"{np.mean(~seen):.0%} of the times are censored")


def survival(X, observed=None, seen=None):
    f = numpyro.sample("f", TreeSum(X, trees=50))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    log_hazard = jnp.log(shape) - shape * f + (shape - 1) * jnp.log(observed)
    log_survival = -jnp.exp(shape * (jnp.log(observed) - f))
    numpyro.factor("rows", jnp.where(seen, log_hazard, 0.0) + log_survival)


kernel, mcmc = sample(survival, X, observed, seen)
draws = mcmc.get_samples()
low, high = np.quantile(draws["f"], [0.05, 0.95], axis=0)
print(f"shape {draws['shape'].mean():.2f} (truth 1.6)")
covered = np.mean((low < true_f) & (true_f < high))
print(f"90 % bands of f hold the truth in {covered:.0%} of rows")
assert 0.8 < covered < 0.98

# %%
figure, axes = plt.subplots(figsize=(6, 3.4))
times = np.linspace(0.05, 8, 100)
for first, colour in ((0.05, BLUE), (0.5, ORANGE)):
    row = np.array([[first, 0.3, 0.5, 0.5]])
    f = np.asarray(kernel.samples_at(mcmc, f=row)["f"])
    alive = np.exp(-np.exp(np.asarray(draws["shape"])[:, None] * (np.log(times) - f)))
    band = np.quantile(alive, [0.05, 0.5, 0.95], axis=0)
    axes.fill_between(times, band[0], band[2], color=colour, alpha=0.25, linewidth=0)
    axes.plot(times, band[1], color=colour, label=f"first column {first:g}")
    axes.plot(times, np.exp(-((times / np.exp(1.5 * np.sin(3 * first))) ** 1.6)), ":", color=colour)
axes.set(xlabel="time", ylabel="probability to survive", ylim=(0, 1))
axes.legend(frameon=False, title="dotted: the truth")
figure.tight_layout()

# %% [markdown]
# ## Noise that depends on the row: two sums
#
# One sum is the mean, and another the log of the standard deviation. Given the second, the first
# has a normal full conditional, so the kernel draws its trees exactly. It detects this
# automatically.

# %%
x = np.sort(rng.uniform(0, 1, 500))
mean, deviation = np.sin(6 * x), np.where(x < 0.5, 0.1, 0.1 + 1.2 * (x - 0.5))
y = mean + deviation * rng.normal(size=500)


def two_sums(X, y=None):
    f = numpyro.sample("f", TreeSum(X, trees=50))
    g = numpyro.sample("g", TreeSum(X, trees=50, scale=1.0))
    centre = numpyro.sample("centre", dist.Normal(-1.0, 1.0))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", dist.Normal(f, jnp.exp(centre + g)), obs=y)


kernel, mcmc = sample(two_sums, x[:, None], y)
new = np.linspace(0, 1, 200)[:, None]
samples = kernel.samples_at(mcmc, f=new, g=new)
drawn = Predictive(two_sums, samples)(jax.random.key(1), new)["y"]
low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
figure, axes = plt.subplots(figsize=(6, 3.4))
axes.fill_between(new[:, 0], low, high, color=BLUE, alpha=0.2, linewidth=0, label="90 % of targets")
axes.plot(new[:, 0], samples["f"].mean(axis=0), color=BLUE, label="mean")
axes.plot(x, y, ".", color=GREY, markersize=3)
true_band = np.sin(6 * new[:, 0]) + np.array([[-1], [1]]) * 1.645 * np.where(
    new[:, 0] < 0.5, 0.1, 0.1 + 1.2 * (new[:, 0] - 0.5)
)
axes.plot(new[:, 0], true_band.T, ":", color=ORANGE, label=None)
axes.set(xlabel="x", ylabel="y")
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# A sum of trees can be part of any NumPyro model whose log density is twice differentiable with
# respect to the sum. Check `tree_acceptance` of the run. Acceptance is higher if the log density is
# closer to a quadratic over the range of one tree, and more trees reduce the range of each.
