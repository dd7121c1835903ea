# %% [markdown]
# # Amortised trees: a policy that has learned the posterior
#
# The exact posterior needs a chart of all sets of rows that splits can produce. If that is too
# large, one can *train* a policy to draw trees instead. A generative flow network (GFlowNet) grows
# a tree split by split, and is trained until it draws each tree with its posterior probability
# (DT-GFN, 2025). On a table small enough for both, we compare the policy with the exact posterior.
# Only such a comparison shows how good a trained sampler is.

# %%
import time
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import binom
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from bdtppl import ExactTreeClassifier, GFlowNetTreeClassifier
from bdtppl.inference.gflownet.ensembles import reweighted
from bdtppl.models.leaves import DirichletCategorical

BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#888888"

iris = load_iris(as_frame=True)
X = iris.data.rename(columns=lambda name: name.removesuffix(" (cm)"))
y = iris.target_names[iris.target]
X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=1, stratify=y)

# %% [markdown]
# ## The same model twice
#
# The model has nine cuts on each measurement, at most three levels of splits, the prior of the
# paper (each split costs its description length), and leaves with a Dirichlet prior of .1 a class.
# These are the defaults of the GFlowNet estimator. We state them because those of the exact
# posterior differ.

# %%
model = dict(grid=9, max_depth=3, leaf=DirichletCategorical.symmetric(3, 0.1), random_state=0)

start = time.perf_counter()
flow = GFlowNetTreeClassifier(steps=150, **model).fit(X, y)
print(f"trained in {time.perf_counter() - start:.0f} s, compilation included")
exact = ExactTreeClassifier(prior=flow.prior_, **model).fit(X, y)

# %% [markdown]
# ## Has it learned?
#
# Training reports a loss, which alone says little. The sum over all trees of prior weight times
# likelihood is more informative. The network learns an estimate of its logarithm, and the
# importance weights of its draws give another estimate, with an error. Here we also know the true
# value.

# %%
print(f"exact               {exact.log_partition_:8.3f}")
print(f"importance sampling {flow.log_partition_:8.3f} ± {flow.log_partition_se_:.3f}")
print(f"learned             {flow.learned_log_partition_:8.3f}")
print(f"lower bound         {flow.lower_bound_:8.3f}")
print(f"effective draws: {flow.effective_size_:.0f} of {flow.posterior_.weights.size}")

# %%
history = pd.DataFrame(flow.history_)
fig, axes = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained")
axes[0].plot(
    history["log_partition_estimate"], color=GREY, linewidth=0.8, label="importance sampling"
)
axes[0].plot(history["log_partition"], color=BLUE, label="learned")
axes[0].axhline(exact.log_partition_, color="black", linestyle=":", label="exact")
axes[0].set_ylim(exact.log_partition_ - 2, exact.log_partition_ + 3)
axes[0].set_ylabel("log sum over trees")
axes[0].legend(frameon=False)
axes[1].semilogy(history["loss"], color=BLUE)
axes[1].set_ylabel("loss (squared nats)")
for ax in axes:
    ax.set_xlabel("step of training")
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

error = abs(flow.log_partition_ - exact.log_partition_)
assert error < 0.05 + 4 * flow.log_partition_se_
assert flow.lower_bound_ < exact.log_partition_

# %% [markdown]
# ## Tree by tree
#
# A hundred thousand draws from the exact posterior show how often each tree should be drawn. Trees
# of equal probability (the same partition of the rows, with cuts in another order or elsewhere in a
# gap) are pooled. The bars are 99 % intervals for a thousand draws of the exact posterior.

# %%
found = flow.posterior_


def levels(log_joint):
    return pd.Series(np.round(np.ravel(log_joint), 6)).value_counts(normalize=True)


ideal = exact.exact_.sample(jax.random.key(0), chains=1, draws=100_000)
mass = levels(ideal.sample_stats["log_joint"]).iloc[:60]
drawn = found.sample_stats["log_joint"]
share = levels(drawn).reindex(mass.index, fill_value=0.0)
low, high = binom.ppf([[0.005], [0.995]], drawn.size, mass) / drawn.size

fig, ax = plt.subplots(figsize=(4.8, 4.2), layout="constrained")
ax.vlines(mass, low, high, color=BLUE, alpha=0.25, linewidth=5, label="exact draws")
ax.scatter(mass, share, s=16, color="black", zorder=3, label="the policy's draws")
ax.set(xlabel="exact probability", ylabel="share of 1,000 draws")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="upper left")
plt.show()
print(f"the {len(mass)} commonest of these hold {mass.sum():.1%} of the posterior")
inside = ((low <= share) & (share <= high)).mean()
print(f"{inside:.0%} of the points lie within their bars")
assert inside > 0.9

# %% [markdown]
# ## Predictions
#
# A thousand draws need not contain every tree to predict as the posterior does. `ensemble` selects
# how the draws are combined. The paper's Algorithm 1 weights each draw by its posterior
# probability. A policy that draws from the posterior has already done that, and a second weighting
# makes the predictions too sharp.

# %%
truth = exact.predict_proba(X_test)
column = np.searchsorted(exact.classes_, y_test)


def log_score(probability):
    return np.log(probability[np.arange(len(column)), column]).mean()


rows = {"exact": (0.0, log_score(truth))}
for ensemble in ("importance", "mean", "distinct", "algorithm-1"):
    probability = reweighted(found, ensemble).mean(X_test.to_numpy())
    rows[ensemble] = np.abs(probability - truth).max(), log_score(probability)
table = pd.DataFrame(rows, index=["largest difference to exact", "mean log score"]).T
table.round(4)

# %%
off = table["largest difference to exact"]
assert off["importance"] < 0.02
assert off["importance"] < off["algorithm-1"]
assert (exact.predict(X_test) == flow.predict(X_test)).mean() > 0.96

# %% [markdown]
# ## The paper's training
#
# `method="trajectory"` trains the policy of the paper, a network that reads a partial tree. It must
# learn the whole shape of the posterior by trial, whereas the grammar's flows start from computable
# values. It therefore needs more steps, and we give it few. The fit warns that the policy has not
# converged. This warning matters, because trees that a policy never draws leave no trace in the
# weights of those that it does.

# %%
start = time.perf_counter()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", ConvergenceWarning)
    policy = GFlowNetTreeClassifier(method="trajectory", steps=100, **model).fit(X, y)
print(f"trained in {time.perf_counter() - start:.0f} s, compilation included")
print(f"{told[-1].category.__name__}: {told[-1].message}")
size = policy.posterior_.weights.size
print(
    f"importance sampling {policy.log_partition_:.3f} ± {policy.log_partition_se_:.3f}, "
    f"exact {exact.log_partition_:.3f}"
)
print(
    f"effective draws: {policy.effective_size_:.0f} of {size}, "
    f"by the grammar {flow.effective_size_:.0f}"
)
assert policy.effective_size_ < flow.effective_size_
