# %% [markdown]
# # Which model?
#
# Several systems and priors, hard and soft trees: which of them describes the data best? No single
# number answers this. The *evidence* is the probability of the targets before any of them was seen.
# It is the natural measure if the prior is meant seriously, and it is sensitive to the prior.
# *Leave-one-out* and *cross-validation* measure how well a row is predicted from the others.
# *Stacking* finds the best mixture. `bdtppl.compare` tabulates all of them, raises an error for
# models that cannot be compared, and leaves a cell blank, with the reason, if a quantity does not
# exist.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from bdtppl import (
    DCCTreeRegressor,
    ExactTreeRegressor,
    GFlowNetTreeRegressor,
    GreedyModalTreeRegressor,
    MetropolisTreeRegressor,
    ParticleTreeRegressor,
    RJHMCTreeRegressor,
    compare,
    plot_comparison,
)
from bdtppl.models.priors import DepthDecay

diabetes = load_diabetes(as_frame=True, scaled=False)
rows = np.random.default_rng(0).permutation(len(diabetes.data))[:150]
X, y = diabetes.data[["bmi", "s5"]].iloc[rows], diabetes.target.iloc[rows]

# %% [markdown]
# ## Side by side
#
# Five of the models below are the same model, with the same prior, leaves and cuts. Their posterior
# is computed exactly, by a trained policy, by tempered Markov chains, by a particle filter, and by
# a greedy search for one tree. The others are a prior that expects at most one split, and soft
# trees, whose splits are smooth and use combinations of the measurements. Soft trees are fitted
# topology by topology, and by chains that jump between topologies.

# %%
usual = dict(prior=DepthDecay(0.95, 1.0), leaf="from_targets", bins=5, max_depth=2, min_leaf=5)
models = {
    "exact": ExactTreeRegressor(**usual, random_state=0),
    "amortised": GFlowNetTreeRegressor(**usual, grid=None, steps=60, random_state=0),
    "Markov chains": MetropolisTreeRegressor(**usual, temperatures=6, random_state=0),
    "particle filter": ParticleTreeRegressor(**usual, random_state=0),
    "greedy": GreedyModalTreeRegressor(**usual),
    "a stump if anything": ExactTreeRegressor(
        **usual | {"prior": DepthDecay(0.5, 2.0)}, random_state=0
    ),
    "soft": DCCTreeRegressor(
        iterations=2, max_splits=1, chains=4, warmup=150, draws=100, random_state=0
    ),
    "soft, jumping": RJHMCTreeRegressor(
        max_splits=1, burn_in=100, draws=500, warmup=150, random_state=0
    ),
}
for model in models.values():
    model.fit(X, y)
found = compare(models, cv=None)
found

# %%
plot_comparison(found)
plt.show()

# %% [markdown]
# The table shows:
#
# - *exact* and *amortised* agree in everything, as two computations of one posterior must. This
#   agreement validates the trained policy. *Markov chains* and the *particle filter* agree within
#   their stated errors.
# - *greedy* finds one tree. Its share of the sum over all trees is a lower bound of the evidence,
#   and is shown as a bound. Chains that *jump* give no evidence, and their cell is blank.
# - Evidence is in nats: a difference of 3 is twenty to one.

# %%
evidence = {name: cell.value for name, cell in found.known("log_evidence").items()}
for name in ("amortised", "Markov chains", "particle filter"):
    error = found.cells[name]["log_evidence"].error
    assert abs(evidence["exact"] - evidence[name]) < 0.05 + 5 * error
bound = found.cells["greedy"]["log_evidence"]
assert bound.value < evidence["exact"] < bound.high
print(found.cells["soft, jumping"]["log_evidence"].reason)
behind = {name: (-cell.value, cell.error) for name, cell in found.differences("elpd_loo").items()}
for name, (nats, error) in behind.items():
    print(f"{name:20} {nats:5.2f} ± {error:.2f} nats behind by PSIS-LOO")

# %% [markdown]
# ## By cross-validation
#
# Leave-one-out by importance sampling warns if a row is so influential that no weighting of draws
# can compensate for its removal (Pareto k above 0.7). Refitting without the row always works, also
# for a greedy tree, but costs one fit per fold. CRPS is the mean absolute error of a whole
# predictive distribution, in units of the target; lower is better.

# %%
hard = {name: models[name] for name in ("exact", "greedy", "a stump if anything")}
held_out = compare(hard, X, y, cv=5)
held_out

# %%
score = {name: cell.value for name, cell in held_out.known("log_score").items()}
assert score["exact"] > score["greedy"]

# %% [markdown]
# The column of weights is stacking: the mixture of predictive distributions with the best held-out
# log score. It does not choose the best model, but measures what each model adds to the others. Two
# models that agree may therefore share a weight in any proportion, and a model that is poor by
# itself may have some weight.
