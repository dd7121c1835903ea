# %% [markdown]
# # Use your prior knowledge
#
# A table rarely contains everything that is known. You may know which measurements matter, which
# thresholds doctors use, which people must be treated alike, or what last year's tree was. All of
# this can enter the prior or constraints. Angelopoulos and Cussens (2005) wrote such priors as
# small programs. Here they are small objects, and the posterior stays exact for all but the last of
# them. Our table has few rows on purpose: with many rows the prior matters less.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle
from sklearn.datasets import load_diabetes
from sklearn.tree import DecisionTreeRegressor

from bdtppl import ExactTreeRegressor, plot_boundaries, plot_tree
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.prior_predictive.trees import PriorTrees
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay
from bdtppl.prior_files import read_prior_file

BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#888888"

diabetes = load_diabetes(as_frame=True, scaled=False)
names = list(diabetes.data.columns)
order = np.random.default_rng(0).permutation(len(diabetes.data))
few, later = order[:60], order[60:]
X, y = diabetes.data.iloc[few], diabetes.target.iloc[few]
X_later, y_later = diabetes.data.iloc[later], diabetes.target.iloc[later].to_numpy()
print(f"{len(X)} patients to learn from, {len(X_later)} kept aside")

# %% [markdown]
# ## Sample the prior first
#
# A prior generates trees, so it can be examined before any target is seen. `PriorTrees` draws from
# it on the rows of the table. We compare three settings of the prior of Chipman, George and
# McCulloch, where a node at depth $k$ splits with probability $\alpha\,(1 + k)^{-\beta}$:

# %%
design = Design.from_matrix(X.to_numpy(), bins=5, names=tuple(names))
limits = Constraints(max_depth=3, min_leaf=4)
beliefs = {
    "bushy: α = .95, β = .5": DepthDecay(0.95, 0.5),
    "usual: α = .95, β = 1": DepthDecay(0.95, 1.0),
    "a stump if anything: α = .5, β = 2": DepthDecay(0.5, 2.0),
}
drawn = {
    name: PriorTrees(design, prior, limits).sample(jax.random.key(0), 2000)
    for name, prior in beliefs.items()
}

fig, ax = plt.subplots(figsize=(6.4, 3), layout="constrained")
leaves = np.arange(1, 9)
for shift, colour, (name, trees) in zip(
    (-1, 0, 1), (BLUE, ORANGE, GREY), drawn.items(), strict=True
):
    share = np.bincount(trees.num_leaves, minlength=9)[1:] / len(trees.num_leaves)
    ax.bar(leaves + 0.27 * shift, share, 0.27, color=colour, label=name)
ax.set_xlabel("leaves of a tree drawn from the prior")
ax.set_ylabel("share of draws")
ax.set_xticks(leaves)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()
means = {name: trees.num_leaves.mean() for name, trees in drawn.items()}
assert list(means.values()) == sorted(means.values(), reverse=True)

# %% [markdown]
# Draws are ordinary trees. If they look absurd, the prior does not express your knowledge.

# %%
fig, axes = plt.subplots(1, 3, figsize=(12, 2.8), layout="constrained")
for ax, tree in zip(axes, drawn["usual: α = .95, β = 1"][3:6], strict=True):
    plot_tree(tree, names=names, ax=ax)
plt.show()

# %% [markdown]
# ## Weight features and cuts
#
# Suppose that other studies show that body mass and the lipid value s5 drive this disease, and that
# age and sex hardly do. `feature_weights` expresses this: a split chooses its feature in proportion
# to these weights. Doctors also do not cut body mass at 27.3 but at 25 and at 30. `cut_weights` may
# be any function of the rule; it is written with `jax.numpy` and traced, and nothing is sampled.

# %%
BMI = names.index("bmi")


def guideline_cuts(node, rule):
    """Weigh cuts of body mass by how near they are to 25 or 30; all others are alike."""
    near = jnp.exp(-jnp.minimum((rule.threshold - 25) ** 2, (rule.threshold - 30) ** 2))
    return jnp.where(rule.feature == BMI, 0.02 + near, 1.0)


knowing = DepthDecay(
    0.95,
    1.0,
    feature_weights={"bmi": 8.0, "s5": 8.0, "bp": 3.0, "age": 0.3, "sex": 0.3},
    cut_weights=guideline_cuts,
)
settings = dict(bins=5, max_depth=3, min_leaf=4, random_state=0)
models = {
    "knows nothing": ExactTreeRegressor(prior=DepthDecay(0.95, 1.0), **settings).fit(X, y),
    "knows some medicine": ExactTreeRegressor(prior=knowing, **settings).fit(X, y),
}
inclusion = pd.DataFrame(
    {name: model.exact_.split_inclusion for name, model in models.items()}, index=names
)
ax = inclusion.plot.barh(color=[GREY, BLUE], figsize=(6.4, 3.6), width=0.8)
ax.invert_yaxis()
ax.set_xlabel("posterior probability that the tree splits on it")
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# The other patients show whether this helped. The log score is the mean log density of their
# targets; the evidence makes the same comparison from the training rows alone.


# %%
def log_score(model):
    density = model.exact_.predictive(X_later.to_numpy()).log_density(y_later)
    return density.mean()


table = pd.DataFrame(
    {
        "log evidence": {name: model.log_evidence_ for name, model in models.items()},
        "log score, 382 later patients": {name: log_score(model) for name, model in models.items()},
    }
)
table.round(3)

# %%
assert (table.loc["knows some medicine"] > table.loc["knows nothing"]).all()

# %% [markdown]
# ## Forbid trees
#
# Constraints remove rules, and the remaining ones are renormalised. Suppose that a tree is useful
# in the clinic only if it uses cheap measurements first: the root must be body mass or blood
# pressure, and lipids (s1 to s6 need a blood sample) may only appear below a split on body mass.

# %%
cheap_first = Constraints(
    features_at_depth={0: ("bmi", "bp")},
    before=[("bmi", lipid) for lipid in ("s1", "s2", "s3", "s4", "s5", "s6")],
)
clinic = ExactTreeRegressor(prior=knowing, constraints=cheap_first, **settings).fit(X, y)
plot_tree(clinic)
plt.show()
free = models["knows some medicine"].log_evidence_
print(f"log evidence {clinic.log_evidence_:.2f} with these constraints, {free:.2f} without")

# %% [markdown]
# The difference of two exact log evidences is a log Bayes factor. It measures the evidence of the
# data against the constraint, and here there is none. Every draw satisfies the constraint:

# %%
trees = clinic.posterior_.trees.reshape(-1)
roots = set(trees.feature[trees.num_nodes > 1, 0])
assert {names[feature] for feature in roots} <= {"bmi", "bp"}
lipids = [names.index(f"s{i}") for i in range(1, 7)]
uses_lipid = np.isin(trees.feature, lipids).any(axis=1)
uses_bmi = (trees.feature == BMI).any(axis=1)
assert uses_lipid.any()
assert (uses_bmi | ~uses_lipid).all()

# %% [markdown]
# ## Treat people alike
#
# `KeepTogether` names a box that no split may cut (Figure 1 of Angelopoulos and Cussens). Slim
# patients with ordinary blood pressure then receive the same advice, whatever the data show. In the
# plane of the two measurements, the average over trees is flat in the box.

# %%
pair = diabetes.data[["bmi", "bp"]]
slim = KeepTogether({"bmi": (None, 26.0), "bp": (None, 95.0)})
plane = dict(prior=DepthDecay(0.95, 0.5), bins=7, max_depth=4, min_leaf=10, random_state=0)
free = ExactTreeRegressor(**plane).fit(pair, diabetes.target)
boxed = ExactTreeRegressor(constraints=Constraints(keep_together=[slim]), **plane)
boxed.fit(pair, diabetes.target)

fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for ax, model, title in zip(
    axes, (free, boxed), ("free to split anywhere", "box kept together"), strict=True
):
    plot_boundaries(model, ax=ax)
    corner = pair["bmi"].min(), pair["bp"].min()
    ax.add_patch(
        Rectangle(corner, 26 - corner[0], 95 - corner[1], fill=False, linestyle="--", linewidth=2)
    )
    ax.set_title(f"{title}: log evidence {model.log_evidence_:.1f}")
plt.show()

inside = pair[(pair["bmi"] <= 26) & (pair["bp"] <= 95)]
slots = route(boxed.posterior_.trees.reshape(-1), inside.to_numpy())
assert (slots == slots[:, :1]).all()
assert np.ptp(free.predict(inside)) > 10 > 1e-6 > np.ptp(boxed.predict(inside))

# %% [markdown]
# ## Start from last year's tree
#
# `EditTree` is a prior around an existing tree. Each draw starts from that tree and edits it
# repeatedly, each time with probability `edit_probability`: it splits a leaf, merges two leaves, or
# changes a rule. Last year's tree is CART's fit to 200 other patients, and our 60 are this year's.

# %%
past, test = later[:200], later[200:]
cart = DecisionTreeRegressor(max_depth=3, min_samples_leaf=20, random_state=0)
cart.fit(diabetes.data.iloc[past].to_numpy(), diabetes.target.iloc[past])
last_year = Tree.from_sklearn(cart)
print(last_year.rules(names))

# %%
this_year = Design.from_matrix(X.to_numpy(), names=tuple(names))
leaf = NormalInverseGamma.from_targets(y.to_numpy())
prior = EditTree(last_year, edit_probability=0.8)
model = TreeModel(this_year, y.to_numpy(), prior, leaf, Constraints(min_leaf=2))
edited = sample_chains(jax.random.key(0), model).posterior
X_test, y_test = diabetes.data.iloc[test], diabetes.target.iloc[test].to_numpy()
prediction = {
    "last year's tree as it was": cart.predict(X_test.to_numpy()),
    "edited by this year's rows": edited.predictive(X_test.to_numpy()).mean(),
    "this year's rows alone": models["knows nothing"].predict(X_test),
}
rmse = pd.Series({name: np.sqrt(np.mean((p - y_test) ** 2)) for name, p in prediction.items()})
print(rmse.round(1).to_string())

# %% [markdown]
# ## Write the prior in a file
#
# On the command line (`bdtppl fit table.csv --model exact --prior-file prior.toml`) prior knowledge
# is read from a small file. The file is parsed, never executed, and an error names its line.

# %%
text = """\
[prior]
kind = "DepthDecay"
feature_weights = { bmi = 8.0, s5 = 8.0, bp = 3.0, age = 0.3, sex = 0.3 }

[constraints]
max_depth = 3
min_leaf = 4
before = [["bmi", "s5"]]

[[keep_together]]
bmi = [-inf, 25]
bp = [-inf, 95]
"""
path = Path("prior.toml")
path.write_text(text)
given = read_prior_file(path)
path.unlink()
model = ExactTreeRegressor(prior=given.prior, constraints=given.constraints, bins=5).fit(X, y)
print(model.rules())
assert given.constraints.looks_at_path
