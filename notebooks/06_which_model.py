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
    ParticleTreeRegressor,
    compare,
    plot_comparison,
)
from bdtppl.models.priors import DepthDecay

diabetes = load_diabetes(as_frame=True, scaled=False)
rows = np.random.default_rng(0).permutation(len(diabetes.data))[:200]
X, y = diabetes.data[["bmi", "bp", "s5"]].iloc[rows], diabetes.target.iloc[rows]

# %% [markdown]
# ## One model, several systems
#
# The first four have the same prior, the same leaves and the same cuts. They are ways to one and
# the same posterior, so what they say of it should agree, as far as a system says it.

# %%
model = dict(prior=DepthDecay(0.95, 1.0), bins=5, max_depth=3, min_leaf=5)
systems = {
    "exact": ExactTreeRegressor(**model, random_state=0),
    "particles": ParticleTreeRegressor(**model, random_state=0),
    "amortised": GFlowNetTreeRegressor(**model, grid=None, steps=100, random_state=0),
    "greedy": GreedyModalTreeRegressor(**model),
}
for system in systems.values():
    system.fit(X, y)
same = compare(systems, cv=None)
same

# %%
truth = same.cells["exact"]["log_evidence"].value
for name in ("particles", "amortised"):
    cell = same.cells[name]["log_evidence"]
    assert abs(cell.value - truth) < max(5 * cell.error, 0.05)
assert same.cells["greedy"]["log_evidence"].value is None
print(same.cells["greedy"]["log_evidence"].reason)

# %% [markdown]
# ## Several models
#
# Now models that differ: the prior that expects a stump, cuts anywhere, leaves that expect less
# noise, and soft trees, whose splits are smooth and may run along combinations of the measurements.

# %%
models = {
    "usual": ExactTreeRegressor(**model, random_state=0),
    "a stump if anything": ExactTreeRegressor(**model | {"prior": DepthDecay(0.5, 2.0)}),
    "one greedy tree": GreedyModalTreeRegressor(**model),
    "soft": DCCTreeRegressor(
        iterations=3, max_splits=2, chains=4, warmup=200, draws=100, random_state=0
    ),
}
for fitted in models.values():
    fitted.fit(X, y)
found = compare(models, X, y, cv=3)
found

# %%
plot_comparison(found)
plt.show()
