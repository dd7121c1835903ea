# %% [markdown]
# # Regression: bands, and two trees that explain the same data
#
# This notebook computes the exact posterior over regression trees and its predictive distribution.
# Leaves are normal with unknown mean and variance, so a new target in a leaf has a Student-t
# distribution. The predictive distribution is a mixture over all trees.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeRegressor

from bdtppl import (
    ExactTreeRegressor,
    plot_calibration,
    plot_partial_dependence,
    plot_predictive,
    plot_predictive_check,
    plot_structures,
)
from bdtppl.datasets import make_wu
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay, LeafPenalty

# %% [markdown]
# ## One input
#
# The data have two steps, and noise that differs between them. `LeafPenalty(6)` subtracts 6 nats
# for every split, which is about the log of the number of possible places. The leaf family states
# our knowledge of the noise: its variance is some tenths, $\sigma^2 \sim$ InverseGamma(1.5, 0.15).
# By default, the hyperparameters of the leaf family maximise the evidence.


# %%
def steps(x):
    return np.where(x < 0.35, 0.0, np.where(x < 0.7, 2.0, 1.0)), np.where(x < 0.7, 0.2, 0.5)


rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 1, 200))
mean, sd = steps(x)
y = rng.normal(mean, sd)

leaf = NormalInverseGamma(mean=1.0, pseudo_count=0.1, shape=1.5, scale=0.15)
curve = ExactTreeRegressor(prior=LeafPenalty(6.0), leaf=leaf, bins=None, random_state=0)
curve.fit({"x": x}, y)
ax = plot_predictive(curve)
ax.plot(x, mean, color="black", linestyle=":", zorder=5)
ax.set_title("dotted: the truth", loc="right", fontsize="small")
plt.show()

# %% [markdown]
# The band is wide where the noise is large, although the model does not describe how noise depends
# on $x$: each leaf has its own variance. The mean is not a staircase, because near the jumps it
# averages over trees with different cuts.
#
# A 90 % band should contain 90 % of new targets. The data are simulated, so we can check this:

# %%
new_x = rng.uniform(0, 1, 4000)
new_mean, new_sd = steps(new_x)
new_y = rng.normal(new_mean, new_sd)
coverage = {}
for level in (0.5, 0.9):
    low, high = curve.predict_interval({"x": new_x}, level).T
    coverage[level] = np.mean((low <= new_y) & (new_y <= high))
print({level: round(float(share), 3) for level, share in coverage.items()})
assert abs(coverage[0.5] - 0.5) < 0.08
assert abs(coverage[0.9] - 0.9) < 0.05

# %% [markdown]
# ## Two explanations of one data set
#
# Wu et al.'s simulated set has three groups. A tree that splits on $x_3$ first and a tree that
# splits on $x_1$ first describe it equally well. A Metropolis sampler that starts in one rarely
# finds the other. Here both are part of the sum, with their probabilities.

# %%
X_wu, y_wu = make_wu(300, random_state=0)
wu = ExactTreeRegressor(prior=DepthDecay(0.95, 1.0), bins=10, random_state=0)
wu.fit(pd.DataFrame(X_wu, columns=["x1", "x2", "x3"]), y_wu)
plot_structures(wu, k=4, by="tree")
plt.show()

# %%
root = np.asarray(wu.posterior_.trees.feature)[..., 0].ravel()
share = pd.Series(root).map({0: "x1", 1: "x2", 2: "x3"}).value_counts(normalize=True)
print("Share of draws by the feature at the root:")
print(share.round(3).to_string())
assert share["x1"] > 0.2
assert share["x3"] > 0.2

# %% [markdown]
# The oldest check of a model compares draws from the posterior predictive with the data. Here the
# groups of the replicated sets are slightly wider than the observed ones. The cause is the default
# leaf family, whose prior still has some weight in a leaf of 90 rows.

# %%
plot_predictive_check(wu)
plt.show()

# %% [markdown]
# ## Real data
#
# The diabetes table has a measure of progression after one year, for 442 patients. Few bins, at
# most three levels of splits and leaves of at least ten patients keep the chart small.

# %%
diabetes = load_diabetes(as_frame=True, scaled=False)
settings = dict(prior=DepthDecay(0.95, 1.0), bins=5, max_depth=3, min_leaf=10, random_state=0)
model = ExactTreeRegressor(**settings).fit(diabetes.data, diabetes.target)
print(f"log evidence {model.log_evidence_:.2f}")
print(f"The most probable tree has probability {model.map_probability_:.3f}.")

plot_predictive(model)
plt.show()

# %% [markdown]
# Rows are sorted by their predictive mean, and the legend counts the targets inside each band.
# Partial dependence shows how the prediction depends on a column, averaged over all patients. Its
# band shows the posterior uncertainty of that average, and thin lines are single patients.

# %%
_, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained", sharey=True)
plot_partial_dependence(model, "bmi", ice=25, ax=axes[0])
plot_partial_dependence(model, "s5", ice=25, ax=axes[1])
plt.show()

# %%
names = diabetes.data.columns
inclusion = pd.Series(model.exact_.split_inclusion, names).sort_values(ascending=False)
print(inclusion.head(4).round(3).to_string())
assert set(inclusion.index[:2]) == {"bmi", "s5"}

# %% [markdown]
# ## Would the model have produced these data?
#
# We draw whole tables of targets from the posterior predictive and compare them with the observed
# one, by eye and by statistics that the model was not fitted to. If hardly any replicate is as
# extreme as the data, the model misses something.


# %%
def check(fitted):
    _, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    plot_predictive_check(fitted, ax=axes[0])
    plot_predictive_check(fitted, statistic="sd", ax=axes[1])
    plot_predictive_check(fitted, statistic="min", ax=axes[2])
    plt.show()


check(model)

# %% [markdown]
# The spread is correct, but the lowest target is not. No patient is below 25, and the model
# predicts negative values, because leaves are normal while the target is positive and skewed. We
# therefore model the square root of the target as normal.

# %%
y = diabetes.target.to_numpy()
root = ExactTreeRegressor(**settings).fit(diabetes.data, np.sqrt(y))
check(root)

# %% [markdown]
# The evidences of $y$ and of $z = \sqrt{y}$ can be compared if both are densities of $y$. This
# requires adding the log Jacobian $-\log(2 \sqrt{y})$ of each row.

# %%
log_evidence = pd.Series(
    {
        "normal leaves": model.log_evidence_,
        "normal leaves of the square root": root.log_evidence_ - np.log(2 * np.sqrt(y)).sum(),
    }
)
print(log_evidence.round(1).to_string())
lowest = model.sample_predictive(diabetes.data, draws=500).min(axis=1)
assert np.mean(lowest < y.min()) > 0.99
assert log_evidence.iloc[1] > log_evidence.iloc[0] + 5

# %% [markdown]
# ## Held-out rows
#
# The average over trees predicts better than one tree, however that tree is chosen, and its
# intervals have the stated coverage.

# %%
errors = {"all trees (exact)": [], "CART, same limits": []}
inside = []
for train, test in KFold(5, shuffle=True, random_state=0).split(diabetes.data):
    rows, held = diabetes.data.iloc[train], diabetes.data.iloc[test]
    target, truth = y[train], y[test]
    fold = ExactTreeRegressor(**settings).fit(rows, np.sqrt(target))
    drawn = fold.sample_predictive(held, draws=1000) ** 2
    cart = DecisionTreeRegressor(max_depth=3, min_samples_leaf=10, random_state=0)
    cart.fit(rows, target)
    errors["all trees (exact)"] += list(drawn.mean(axis=0) - truth)
    errors["CART, same limits"] += list(cart.predict(held) - truth)
    low, high = np.maximum(fold.predict_interval(held, 0.9), 0).T ** 2
    inside += list((low <= truth) & (truth <= high))

rmse = pd.Series({name: np.sqrt(np.mean(np.square(e))) for name, e in errors.items()})
print(rmse.round(2).to_string())
print(f"held-out targets inside the 90 % interval: {np.mean(inside):.1%}")

assert rmse["all trees (exact)"] < rmse["CART, same limits"]
assert 0.85 < np.mean(inside) < 0.95

# %% [markdown]
# `plot_calibration` checks all levels at once, predicting each patient from all others. Left: the
# quantile of each target in its own predictive distribution, which is uniform if the distributions
# are correct. Right: the share of targets inside central intervals, against their nominal level.
# Wide intervals have the nominal coverage. Narrow ones contain slightly fewer targets than they
# state, because the targets of a leaf are flatter in the middle than a normal distribution.

# %%
_, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
plot_calibration(root, ax=axes[0])
plot_calibration(root, kind="coverage", ax=axes[1])
plt.show()
