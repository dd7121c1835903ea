# %% [markdown]
# # Effects of a treatment, and shares of a population
#
# Two questions of decisions. What does a treatment do, and to whom, if those who were treated were
# not chosen at random? And what is the mean of a population, if the sample over-represents some
# groups? `BCFRegressor` answers the first by two sums of trees; a sum with random effects of groups
# answers the second. All data are simulated, so that the truth is known.

# %%
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro.infer import MCMC, NUTS
from sklearn.exceptions import ConvergenceWarning

from bdtppl import (
    BARTRegressor,
    BCFRegressor,
    TreeGibbs,
    TreeSum,
    plot_overlap,
    plot_treatment_effects,
)

warnings.simplefilter("ignore", ConvergenceWarning)  # chains are short, to keep this page quick

# %% [markdown]
# ## What a treatment does
#
# 500 patients. The sicker they are, the more often they are treated, and the worse is their score.
# The treatment raises the score by 1, and by 3 in the young. Sick patients are treated, so treated
# patients have *lower* scores.

# %%
rng = np.random.default_rng(0)
age, severity = rng.uniform(20, 80, 500), rng.normal(size=500)
treated = rng.random(500) < 1 / (1 + np.exp(-2 * severity))
effect = np.where(age < 40, 3.0, 1.0)
score = 10 - 3 * severity + effect * treated + rng.normal(size=500)
patients = pd.DataFrame({"age": age, "severity": severity})

naive = score[treated].mean() - score[~treated].mean()
print(f"treated less untreated patients: {naive:.2f}; true average effect: {effect.mean():.2f}")

# %% [markdown]
# A Bayesian causal forest explains the score by two sums of trees: one of all columns, and of the
# probability of treatment that it estimates first; and one for the effect, which is shrunk towards
# an equal effect for all.

# %%
model = BCFRegressor(random_state=0).fit(patients, score, treatment=treated)
for over, found in model.average_effect_.items():
    print(f"{over:<11} {found.mean:.2f} ({found.low:.2f} to {found.high:.2f})")

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
plot_treatment_effects(model, ax=left)
plot_overlap(model, ax=right)
plt.show()

# %% [markdown]
# Left: two groups of patients with different effects. Right: patients with a propensity near 0 or 1
# have hardly any counterpart in the other arm; their effects are extrapolated.

# %%
young = model.effects(pd.DataFrame({"age": [25.0, 60.0], "severity": [0.0, 0.0]}))
print("at 25 and 60 years:", young.mean.round(1))
average = model.average_effect()
assert average.low < effect.mean() < average.high
assert naive < 0 < average.low

# %% [markdown]
# ## The same by NumPyro
#
# The model is a few lines with two `TreeSum` sites, one of which is multiplied by the treatment. So
# you can change it: another likelihood, a treatment with a dose, effects of several treatments.


# %%
def causal(X, treated, score=None):
    intercept = numpyro.sample("intercept", dist.Normal(10.0, 10.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 3.0))
    mu = numpyro.sample("mu", TreeSum(X, trees=100, scale=4.0))
    tau = numpyro.sample("tau", TreeSum(X, trees=30, scale=1.0, alpha=0.25, beta=3.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
    mean = intercept + mu + (effect + tau) * treated
    numpyro.sample("score", dist.Normal(mean, sigma), obs=score)


table = patients.assign(propensity=model.propensity_)
mcmc = MCMC(
    TreeGibbs(NUTS(causal)), num_warmup=300, num_samples=300, num_chains=2,
    chain_method="vectorized", progress_bar=False,
)  # fmt: skip
mcmc.run(jax.random.key(0), table, jnp.asarray(treated, float), score)
drawn = mcmc.get_samples()
of_rows = np.asarray(drawn["effect"][:, None] + drawn["tau"])
ends = np.quantile(of_rows.mean(axis=1), [0.025, 0.975])
print(f"average effect {of_rows.mean():.2f} ({ends[0]:.2f} to {ends[1]:.2f})")
both = np.corrcoef(of_rows.mean(axis=0), model.effects().mean)[0, 1]
print(f"correlation of both models' effects of patients: {both:.2f}")
assert ends[0] < effect.mean() < ends[1]
assert both > 0.8

# %% [markdown]
# ## The mean of a population
#
# A survey of 600 people in 20 districts asks mostly the old, and few people in some districts. We
# know how many people of each age live in each district. Sums of trees with a random effect of
# districts predict each cell of district and age; the cells, weighted by their numbers of people,
# give districts and the whole (multilevel regression and post-stratification).

# %%
ages = np.array([20.0, 35.0, 50.0, 65.0, 80.0])
of_district = rng.normal(0, 1, 20)
people = rng.integers(500, 5000, (20, 5))
truth = 5 + of_district[:, None] + np.sin(ages / 15)  # mean answer of each cell
population = (truth * people).sum() / people.sum()

asked = rng.choice(20, 600, p=rng.dirichlet(np.ones(20)))
place = rng.choice(5, 600, p=[0.05, 0.1, 0.15, 0.3, 0.4])
answer = truth[asked, place] + rng.normal(size=600)
survey = pd.DataFrame({"district": [f"d{k:02}" for k in asked], "age": ages[place]})

poll = BARTRegressor(groups="district", target_scale="identity", random_state=0)
poll.fit(survey, answer)
cells = pd.DataFrame({
    "district": np.repeat([f"d{k:02}" for k in range(20)], 5), "age": np.tile(ages, 20),
})  # fmt: skip
means = poll.mean_draws(cells).reshape(-1, 20, 5)
districts = (means * people).sum(axis=2) / people.sum(axis=1)
whole = (means * people).sum(axis=(1, 2)) / people.sum()
low, high = np.quantile(whole, [0.025, 0.975])
print(f"mean of the survey {answer.mean():.2f}, of the population {population:.2f}")
print(f"post-stratified {whole.mean():.2f} ({low:.2f} to {high:.2f})")

# %%
true_district = (truth * people).sum(axis=1) / people.sum(axis=1)
raw = pd.Series(answer).groupby(asked).mean().reindex(range(20))
number = pd.Series(asked).value_counts().reindex(range(20), fill_value=0)
order = np.argsort(true_district)
ends = np.quantile(districts, [0.05, 0.95], axis=0)[:, order]
fig, ax = plt.subplots(figsize=(9, 4), layout="constrained")
ax.vlines(range(20), *ends, color="#0072b2", linewidth=4, alpha=0.4, label="90 % interval")
ax.plot(range(20), districts.mean(axis=0)[order], "o", color="#0072b2", label="post-stratified")
ax.plot(range(20), raw.to_numpy()[order], "x", color="#e69f00", label="mean of the answers")
ax.plot(range(20), true_district[order], "_", color="black", markersize=14, label="truth")
ax.set_xticks(range(20), [f"{number[k]}" for k in order])
ax.set(xlabel="people asked in the district", ylabel="mean answer")
ax.legend()
plt.show()

error = np.sqrt(np.mean((districts.mean(axis=0) - true_district) ** 2))
raw_error = np.sqrt(np.nanmean((raw - true_district) ** 2))
print(f"error of districts: {error:.2f}, of the means of the answers {raw_error:.2f}")
assert abs(whole.mean() - population) < abs(answer.mean() - population)
assert error < raw_error
