# %% [markdown]
# # Sums of trees (BART)
#
# One tree can be read; a sum of many small ones predicts better. `BARTRegressor` draws such sums,
# with a linear term. Each tree in turn is drawn from its exact full conditional given all others.
# We compare it with the exact posterior of single trees, a greedy tree, soft trees and a random
# forest, on the progression of diabetes in 442 patients.

# %%
import json
import sqlite3
import time
import warnings
from contextlib import closing

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning

from bdtppl import (
    BARTRegressor,
    ChoiceWarning,
    DCCTreeRegressor,
    ExactTreeRegressor,
    GreedyModalTreeRegressor,
    plot_effects,
    plot_partial_dependence,
)
from bdtppl.export import to_json, to_sql

warnings.simplefilter("ignore", ChoiceWarning)  # what the exact posterior chose
warnings.simplefilter("ignore", ConvergenceWarning)  # looked at below
BLUE, ORANGE = "#0072b2", "#e69f00"
X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
order = np.random.default_rng(0).permutation(len(X))
train, held = order[:300], order[300:]


# %% [markdown]
# ## Compare with other models
#
# All models have their defaults, except that the soft trees get few topologies, short chains and
# three columns, so that this page runs quickly. Their figures are for these settings. CRPS compares
# the whole predictive distribution with the observed target; lower is better. The forest predicts a
# single number, whose CRPS is its absolute error.


# %%
def crps(draws, targets):
    """CRPS of predictive draws [k, m]: mean distance to the target, less half their own."""
    draws = np.sort(draws, axis=0)
    k = len(draws)
    own = ((2 * np.arange(1, k + 1) - k - 1) @ draws) / k**2
    return np.mean(np.abs(draws - targets).mean(axis=0) - own)


few = ["bmi", "bp", "s5"]
models = {
    "sum of 200 trees": (BARTRegressor(random_state=0), list(X)),
    "exact, all trees": (ExactTreeRegressor(random_state=0), list(X)),
    "greedy tree": (GreedyModalTreeRegressor(), list(X)),
    "soft trees, short run": (
        DCCTreeRegressor(
            iterations=2, max_splits=2, chains=2, warmup=100, draws=100, random_state=0
        ),
        few,
    ),
    "random forest": (RandomForestRegressor(random_state=0), list(X)),
}
rows = {}
for name, (model, columns) in models.items():
    start = time.perf_counter()
    model.fit(X[columns].iloc[train], y.iloc[train])
    seconds = time.perf_counter() - start
    point = model.predict(X[columns].iloc[held])
    row = {"RMSE": np.sqrt(np.mean((point - y.iloc[held]) ** 2))}
    row["CRPS"] = np.mean(np.abs(point - y.iloc[held]))
    if hasattr(model, "sample_predictive"):
        drawn = model.sample_predictive(X[columns].iloc[held], draws=1000)
        row["CRPS"] = crps(drawn, y.iloc[held].to_numpy())
        low, high = model.predict_interval(X[columns].iloc[held], level=0.9).T
        row["in 90 % band"] = np.mean((low < y.iloc[held]) & (y.iloc[held] < high))
    rows[name] = row | {"seconds": seconds}
table = pd.DataFrame(rows).T
assert table["CRPS"].idxmin() == "sum of 200 trees"
table.round(2)

# %% [markdown]
# These are 142 held-out rows of one table. The page *Which estimator?* has nine tables with five
# folds each.
#
# ## Check the chains
#
# `diagnostics_` contains R-hat and effective sample sizes. Predictions mix first, the noise (sigma)
# and the log likelihood last. `fit` continues until the predictions of fifty rows agree (their
# joint R-hat is "predictions"), and warns if they do not.

# %%
bart = models["sum of 200 trees"][0]
pd.DataFrame(bart.diagnostics_).T.round(2)

# %%
draws = bart.mean_draws(X.iloc[held[:1]])  # [chains, draws, rows]
print("R-hat of the first held-out row:", round(float(az.rhat(draws[:, :, 0])), 3))

# %% [markdown]
# ## Interpret the sum
#
# There is no tree to show. The share of each column in all splits has an interval, and the effect
# of a column on the prediction has a band.

# %%
share = pd.DataFrame(bart.summary()["feature_importance_interval"], index=["low", "high"]).T
share["mean"] = pd.Series(bart.summary()["feature_importance"])
share = share.sort_values("mean")
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.hlines(share.index, share["low"], share["high"], color=BLUE, alpha=0.4, linewidth=5)
axes.plot(share["mean"], share.index, "o", color=BLUE)
axes.axvline(1 / len(share), color="#888888", linestyle=":")
axes.set(xlabel="share of splits (90 % interval); dotted: equal shares")
figure.tight_layout()
plt.show()
plot_partial_dependence(bart, "bmi")
plt.show()

# %% [markdown]
# ## The sum as effects and as lookups
#
# Each draw of a sum is, exactly, a constant, an effect of each column, one of each pair of columns
# beside these, and so on. Shares of the variance say which of them matter.

# %%
plot_effects(bart)
plt.show()
print("kept by the first columns:", {k: round(v, 3) for k, v in bart.fewest_columns(3).items()})

# %% [markdown]
# If effects of columns and of a few pairs are nearly all, the posterior mean can be looked up in
# tables. `to_sql` writes them as an expression for a database, and `to_html` as a page for a
# browser. Pairs are added, the strongest first, until less than `tolerance` of the variance is left
# out; here columns alone are enough. The sum is on the scale "yeo-johnson" of the targets, so a
# number that is looked up is near the median of the target, and that of `predict`, its mean, is
# larger.

# %%
document = json.loads(to_json(bart, tolerance=0.02))
effects = document["sums"][0]["effects"]
print(f"{sum(len(effect['columns']) == 2 for effect in effects)} pairs,", end=" ")
print(f"{100 * document['left_out']:.2f} % of the variance left out, scale {document['link']}")
with closing(sqlite3.connect(":memory:")) as database:
    X.iloc[held].to_sql("patients", database, index=False)
    expression = to_sql(bart, tolerance=0.02)
    found = pd.read_sql(f"SELECT {expression} AS y FROM patients", database)["y"]
away = np.sqrt(np.mean((found - bart.predict(X.iloc[held])) ** 2))
print("root mean square difference from predict:", round(away, 2))
assert away < 0.2 * np.std(found)

# %% [markdown]
# ## Many columns
#
# With 200 trees and few strong columns, the shares are nearly equal, because trees with nothing
# left to explain split on any column. `sparsity=1` suppresses weak columns (Linero 2018). Here 40
# columns of noise are added to the ten real ones.

# %%
rng = np.random.default_rng(1)
noise = pd.DataFrame(rng.normal(size=(len(X), 40)), columns=[f"noise{j}" for j in range(40)])
wide = pd.concat([X, noise], axis=1)
found = {}
for sparsity in (None, 1.0):
    model = BARTRegressor(sparsity=sparsity, random_state=0).fit(wide.iloc[train], y.iloc[train])
    share = pd.Series(model.feature_importances_, list(wide))
    point = model.predict(wide.iloc[held])
    found[f"sparsity={sparsity}"] = {
        "share of the noise columns": share[noise.columns].sum(),
        "share of bmi": share["bmi"],
        "RMSE": np.sqrt(np.mean((point - y.iloc[held]) ** 2)),
    }
found = pd.DataFrame(found).T
assert found["share of the noise columns"].is_monotonic_decreasing
found.round(2)
