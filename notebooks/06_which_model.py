# %% [markdown]
# # Which model?
#
# Several systems, several priors, hard and soft trees: which one describes the data best? There is
# no single number. The *evidence* is the probability of the targets before any was seen: the
# natural measure where the prior is meant, and as sensitive to it. *Leave-one-out* and
# *cross-validation* ask how well a row is predicted from the others. *Stacking* asks for the best
# mixture. `bdtppl.compare` puts them side by side, refuses what cannot be compared, and leaves a
# cell blank, with the reason, where a quantity does not exist.

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
# Five of the models below are one: the same prior, the same leaves and the same cuts, with the
# posterior computed exactly, by a trained policy, by tempered Markov chains, by a particle filter,
# and by a greedy search for one tree. Then a prior that expects a stump if anything, and soft
# trees, whose splits are smooth and run along combinations of the measurements: topology by
# topology, and by chains that jump between topologies.

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
# What can be read off:
#
# - *exact* and *amortised* agree in everything, as two ways to one posterior must; that they do is
#   a check of the trained policy. *Markov chains* and the *particle filter* agree within the errors
#   that they state.
# - *greedy* finds one tree. Its share of the sum over all trees is a lower bound of the evidence,
#   and is written as one; chains that *jump* give no evidence, and their cell is blank.
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
# Leave-one-out by importance sampling warns where a row is so influential that no weighting of
# draws makes up for leaving it out (Pareto k above 0.7). Fitting anew without it always works, and
# works for a greedy tree too; it costs a fit for each fold. CRPS is the mean absolute error of a
# whole predictive distribution, in units of the target: less is better.

# %%
hard = {name: models[name] for name in ("exact", "greedy", "a stump if anything")}
held_out = compare(hard, X, y, cv=5)
held_out

# %%
score = {name: cell.value for name, cell in held_out.known("log_score").items()}
assert score["exact"] > score["greedy"]

# %% [markdown]
# The column of weights is stacking: the mixture of predictive distributions with the best held-out
# log score. It does not choose the best model; it asks what each adds to the others, so that two
# that agree share a weight in any way, and one that is poor by itself may have some.
