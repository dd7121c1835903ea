# %% [markdown]
# # A first posterior: which tree made these flowers?
#
# CART fits a single decision tree. This notebook computes *all* of them: the exact posterior over
# decision trees (Sullivan et al. 2023, BCART-PCFG), which sums over every tree that the data allow.
# Nothing below is an approximation until we draw from the posterior, and the draws are independent.

# %%
import tempfile
import warnings

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_iris
from sklearn.model_selection import StratifiedKFold
from sklearn.tree import DecisionTreeClassifier

import bdtppl
from bdtppl import ExactTreeClassifier, plot_evidence, plot_structures, plot_tree
from bdtppl.models.hard.tree import route
from bdtppl.models.priors import DepthDecay, LeafPenalty

iris = load_iris(as_frame=True)
X = iris.data.rename(columns=lambda name: name.removesuffix(" (cm)"))
y = iris.target_names[iris.target]

# %% [markdown]
# ## Fit
#
# `prior=DepthDecay(0.95, 1.0)` is the prior of Chipman, George and McCulloch: a node at depth $k$
# splits with probability $0.95\,(1+k)^{-1}$. Each feature is cut into at most ten buckets, and a
# tree has at most six levels of splits. `fit` lists and scores every set of rows that some tree can
# reach.

# %%
model = ExactTreeClassifier(prior=DepthDecay(0.95, 1.0), bins=10, max_depth=6, random_state=0).fit(
    X, y
)
print(
    f"{model.exact_.grammar.num_subproblems:,} sets of rows, "
    f"{model.exact_.grammar.num_productions:,} ways to split them"
)
print(f"log evidence {model.log_evidence_:.3f}")
print(f"\nThe most probable tree has probability {model.map_probability_:.3f}:\n")
print(model.rules())

# %%
plot_tree(model)
plt.show()

# %% [markdown]
# The best tree has a probability of only a few percent. A posterior shows why: many trees are
# nearly as good, and they split on different features.

# %%
plot_structures(model, k=4, by="tree")
plt.show()

best = model.k_best(200)
mass = best.probability.cumsum()
print(f"The best 4 trees hold {mass[3]:.1%} of the posterior, the best 200 hold {mass[-1]:.1%}.")
assert 0.01 < model.map_probability_ < 0.2
assert mass[-1] < 0.9

# %% [markdown]
# ## Which measurements matter?
#
# The probability that a tree uses a feature is also a sum over trees, not a heuristic score.

# %%
inclusion = pd.Series(model.exact_.split_inclusion, X.columns).sort_values()
ax = inclusion.plot.barh(color="#31688e", figsize=(6, 2.2))
ax.set_xlabel("posterior probability that the tree splits on it")
ax.set_xlim(0, 1)
plt.show()
print(
    f"Expected leaves: {model.exact_.expected_leaves:.2f}; "
    f"entropy of the posterior over trees: {model.exact_.entropy:.2f} nats"
)
assert inclusion.idxmax() == "petal width"

# %% [markdown]
# ## Predict
#
# `predict_proba` averages over all trees. We compare this average by cross-validation with the
# single most probable tree of the same posterior and with CART. The log score is the mean log
# probability of the true class. It penalises confident errors.


# %%
def log_score(probability, truth, classes):
    column = np.searchsorted(classes, truth)
    with np.errstate(divide="ignore"):
        return np.log(probability[np.arange(len(truth)), column])


scores = {"all trees (exact)": [], "most probable tree": [], "CART": []}
hits = {name: [] for name in scores}
for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
    fold = ExactTreeClassifier(prior=DepthDecay(0.95, 1.0), bins=10, max_depth=6)
    fold.fit(X.iloc[train], y[train])
    slots = fold.k_best(1)
    leaf = route(fold.map_tree_, X.iloc[test].to_numpy())
    one_tree = np.asarray(fold.leaf_.posterior_mean(slots.statistics[0][leaf]))
    cart = DecisionTreeClassifier(random_state=0).fit(X.iloc[train], y[train])
    for name, probability in zip(
        scores,
        [fold.predict_proba(X.iloc[test]), one_tree, cart.predict_proba(X.iloc[test])],
        strict=True,
    ):
        scores[name] += list(log_score(probability, y[test], fold.classes_))
        hits[name] += list(fold.classes_[probability.argmax(1)] == y[test])

table = pd.DataFrame(
    {
        "accuracy": {k: np.mean(v) for k, v in hits.items()},
        "mean log score": {k: np.mean(v) for k, v in scores.items()},
    }
)
table.round(3)

# %%
assert (
    table.loc["all trees (exact)", "mean log score"]
    > table.loc["most probable tree", "mean log score"]
)
assert table.loc["all trees (exact)", "mean log score"] > table.loc["CART", "mean log score"]

# %% [markdown]
# CART's pure leaves predict with certainty, so one wrong flower gives it an infinite log score.
#
# ## Compare priors by evidence
#
# The evidence is exact, so models can be compared by a subtraction. The grammar of splits depends
# only on the measurements and is reused, so refits under other priors are fast.

# %%
priors = {
    "DepthDecay(0.95, 1)": DepthDecay(0.95, 1.0),
    "DepthDecay(0.95, 2)": DepthDecay(0.95, 2.0),
    "LeafPenalty(2)": LeafPenalty(2.0),
    "LeafPenalty(4)": LeafPenalty(4.0),
}
evidence = pd.Series(
    {
        name: ExactTreeClassifier(prior=prior, bins=10, max_depth=6).fit(X, y).log_evidence_
        for name, prior in priors.items()
    }
).sort_values(ascending=False)
evidence.round(2).to_frame("log evidence")

# %% [markdown]
# `plot_evidence` varies one hyperparameter. Here it is the concentration of the leaves: "a leaf has
# one class" at the left, "any mixture of classes" at the right.

# %%
plot_evidence(model, "leaf__concentration", np.geomspace(0.01, 3, 12)).set_xscale("log")
plt.show()

# %% [markdown]
# The gradient of the evidence is exact too, so hyperparameters can be fitted (empirical Bayes) ...

# %%
from bdtppl.inference.empirical_bayes import empirical_bayes

start = ExactTreeClassifier(prior=LeafPenalty(4.0), bins=6).fit(X, y)
fitted = empirical_bayes(start.exact_, parameters=["log_phi", "concentration"])
print(f"log evidence {start.log_evidence_:.2f} -> {fitted.log_evidence[-1]:.2f}")
print(
    "log phi:",
    round(float(fitted.prior.log_phi), 2),
    " concentration:",
    np.round(fitted.leaf.concentration, 2),
)
assert fitted.is_converged
assert fitted.log_evidence[-1] > start.log_evidence_

# %% [markdown]
# ... or inferred: `TreeMarginal` (in `bdtppl.inference.pcfg.marginal`) is a NumPyro distribution of
# this evidence, which NUTS can sample.

# %% [markdown]
# ## Use ArviZ
#
# `posterior_` contains independent draws. They need no burn-in: R-hat is 1, and the effective
# sample size is the number of draws.
#
# Leave-one-out by importance sampling warns about some flowers. Without them the posterior would be
# different, and no weighting of these draws can represent it. For these flowers, trust the
# cross-validation above.

# %%
data = model.to_arviz()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ess = az.ess(data)
    loo = az.loo(data)
draws = model.posterior_.weights.size
ess_leaves = float(ess["num_leaves"] if "num_leaves" in ess else ess["posterior"]["num_leaves"])
print(f"draws: {draws}; effective sample size of the number of leaves: {ess_leaves:.0f}")
assert ess_leaves > 0.7 * draws
print(loo)

# %% [markdown]
# ## Save the model
#
# A saved model is a folder with one file, of plain arrays and JSON. Loading it executes nothing.

# %%
with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/iris")
    again = bdtppl.load(f"{folder}/iris")
assert (again.predict_proba(X[:5]) == model.predict_proba(X[:5])).all()
pd.DataFrame(again.predict_proba(X[48:53]), columns=again.classes_, index=X.index[48:53]).round(3)
