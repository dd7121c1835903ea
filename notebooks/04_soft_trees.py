# %% [markdown]
# # Soft trees: one chain for each topology
#
# A soft tree does not cut sharply. Near a boundary a row goes left with a probability between 0 and
# 1, along a direction of its own. The likelihood is therefore smooth, and Hamiltonian Monte Carlo
# can sample it. The *topology* is discrete: the number of parameters changes with it, and chains
# that jump between topologies get stuck. DCC-Tree (Cochrane, Wills and Johnson 2024) has three
# steps. It divides: NUTS runs within each topology. It conquers: the evidence of each is estimated
# from its draws. It combines: topologies are weighted by prior times evidence.
#
# The settings here are cheap (few chains, few draws, small tables), so that this page runs in a
# minute. The paper's settings are the estimator's defaults.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.tree import DecisionTreeRegressor

from bdtppl import DCCTreeRegressor, plot_density, plot_topologies
from bdtppl.datasets import make_cgm, make_wu

cheap = dict(initial_trees=100, activation_count=1, chains=4, warmup=200, draws=100, random_state=0)

# %% [markdown]
# ## Wu's simulated set
#
# Three groups lie in three boxes, with means 1, 3 and 5. Two splits are enough. Two topologies of
# two splits describe the groups equally well: one whose second split is to the left of the first,
# and its mirror image.

# %%
X, y = make_wu(300, random_state=0)
X_test, y_test = make_wu(300, random_state=1)
start = time.perf_counter()
wu = DCCTreeRegressor(iterations=4, max_splits=2, **cheap).fit(X, y)
print(f"{time.perf_counter() - start:.0f} s, {len(wu.components_)} topologies")
plot_topologies(wu)
plt.show()

# %% [markdown]
# Each row is a topology, drawn at the left. Its point is the log evidence, with two standard errors
# (the paper's Figure 1). One split is far too few for three groups. The percentages combine the
# evidence with the prior of topologies. Here trees have at most two splits (`max_splits`); if more
# were allowed, larger trees would have a seventh of the weight.

# %%
for part in wu.components_:
    found = wu.diagnostics_[part.topology.code]
    print(
        f"{part.topology.code:8} {part.probability:6.3f}  log evidence "
        f"{part.evidence.log_evidence:7.1f} ± {part.evidence.standard_error:.2f} "
        f"({found['method']}), R-hat {found['r_hat'] or float('nan'):.2f}"
    )
two = {part.topology.code for part in wu.components_ if part.probability > 0.01}
assert two == {"11000", "10100"}

# %% [markdown]
# ## Predictive densities
#
# The figure shows the density of a new target at a few rows (the paper's Figure 2), with the truth
# and CART's prediction. Three rows lie inside the groups. The others lie in the gaps between them,
# where there are no data. There the trees disagree about the boundary, and the density is spread
# over the groups to which the row may belong. CART predicts one number, without uncertainty.

# %%
rows = {
    "in the first group (mean 1)": (0.25, 0.25, 0.75),
    "in the second group (mean 3)": (0.25, 0.75, 0.75),
    "in the third group (mean 5)": (0.75, 0.5, 0.25),
    "between first and second": (0.25, 0.5, 0.75),
    "between first and third": (0.5, 0.25, 0.5),
    "between all three": (0.45, 0.5, 0.55),
}
at = np.array(list(rows.values()))
plot_density(wu, at, cart=True, labels=list(rows))
plt.show()

low, high = wu.predict_interval(at, 0.9).T
width = high - low
print("width of the 90 % interval:", np.round(width, 2))
assert width[:3].max() < 1.2 < width[3:].max()

# %% [markdown]
# ## A harder set
#
# The set of Chipman, George and McCulloch has five regions, so a tree needs four splits, and there
# are many topologies of that size. Its boundaries are sharp, so splits end sharper than by default
# (`h_final`). Chains are short here: check R-hat before you use the percentages.

# %%
X_cgm, y_cgm = make_cgm(200, random_state=0)
start = time.perf_counter()
sharp = dict(h_init=0.05, h_final=0.01, initial_trees=40, draws=200, evidence="lais")
cgm = DCCTreeRegressor(iterations=2, max_splits=4, **cheap | sharp).fit(X_cgm, y_cgm)
print(f"{time.perf_counter() - start:.0f} s, {len(cgm.components_)} topologies")
plot_topologies(cgm, k=6)
plt.show()

# %%
X_new, y_new = make_cgm(400, random_state=1)
problems = {"WU": (wu, X, y, X_test, y_test), "CGM": (cgm, X_cgm, y_cgm, X_new, y_new)}
for name, (model, *train, new, truth) in problems.items():
    cart = DecisionTreeRegressor(random_state=0).fit(*train)
    error = {
        kind: np.mean((fitted.predict(new) - truth) ** 2)
        for kind, fitted in (("soft", model), ("CART", cart))
    }
    print(f"{name}: mean squared error {error['soft']:.4f}, CART {error['CART']:.4f}")
    assert error["soft"] < error["CART"]
