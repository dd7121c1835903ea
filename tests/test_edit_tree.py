"""Trees edited at random, against a list of all sequences of edits in plain Python."""

import functools
import math
from collections import Counter, defaultdict
from typing import Any

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import nested, walk_chains
from edit_law import edited_trees
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from test_metropolis import posed
from test_regrow import CAPACITY, names
from tiers import few_of

import bdtppl
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.inference.metropolis.edits import RegrowEdits, edited, initial_edits
from bdtppl.inference.metropolis.moves import ROTATING, LocalMoves
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.prior_predictive.draws import draw_prior_trees
from bdtppl.inference.prior_predictive.trees import NO_LIKELIHOOD
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import Program
from bdtppl.models.pytrees import pytree_dataclass

PROBABILITY = 0.6
MAX_EDITS = 4
NUM_CHAINS = 8_000


# ------------------------------------------------------------------- a reference in plain Python


def positions(tree, path=()):
    """All nodes of a tree by their paths from the root."""
    yield path, tree
    if isinstance(tree, en.Split):
        yield from positions(tree.left, (*path, 0))
        yield from positions(tree.right, (*path, 1))


def replaced(problem, tree, path, change, rows=None, depth=0):
    """Change the node at a path and part the rows anew; None where a rule is not available."""
    rows = en.tree_rows(tree) if rows is None else rows
    if path == () and change is not None:
        tree, change = change(tree), None
    if isinstance(tree, en.Leaf):
        return en.Leaf(rows)
    if tree.rule not in en.available_rules(problem, rows, depth):
        return None
    sides = []
    for side, (child, own) in enumerate(
        zip((tree.left, tree.right), en.part(problem, rows, tree.rule), strict=True)
    ):
        inside = change if path[:1] == (side,) else None
        sides.append(replaced(problem, child, path[1:], inside, own, depth + 1))
    return None if None in sides else en.Split(tree.rule, *sides)


class Edits:
    """The law of one edit of each tree of a case."""

    def __init__(self, case):
        self.problem, self.prior = case.problem, case.reference_prior
        self.law = functools.cache(self._law)

    def rules(self, node, depth):
        rows = en.tree_rows(node)
        return {
            p.rule: math.exp(p.log_weight)
            for p in en.productions(self.problem, self.prior, rows, depth)
        }

    def _law(self, tree):
        """Trees after one edit with their probabilities; empty where no edit has a place."""
        kinds = {"split": [], "merge": [], "change": []}
        for path, node in positions(tree):
            if isinstance(node, en.Leaf):
                if self.rules(node, len(path)):
                    kinds["split"].append((path, node))
                continue
            kinds["change"].append((path, node))
            if isinstance(node.left, en.Leaf) and isinstance(node.right, en.Leaf):
                kinds["merge"].append((path, node))
        law = defaultdict(float)
        feasible = {kind: found for kind, found in kinds.items() if found}
        for kind, found in feasible.items():
            for path, node in found:
                share = 1 / len(feasible) / len(found)
                for new, p in self.made(kind, tree, path, node).items():
                    law[new] += share * p
        return dict(law)

    def made(self, kind, tree, path, node):
        if kind == "merge":
            return {replaced(self.problem, tree, path, lambda old: en.Leaf(en.tree_rows(old))): 1.0}

        def with_rule(rule):
            def change(old):
                rows = en.tree_rows(old)
                left, right = map(en.Leaf, en.part(self.problem, rows, rule))
                if kind == "change":
                    left, right = old.left, old.right
                return en.Split(rule, left, right)

            return replaced(self.problem, tree, path, change)

        weights = {with_rule(rule): w for rule, w in self.rules(node, len(path)).items()}
        weights.pop(None, None)
        return {new: w / sum(weights.values()) for new, w in weights.items()}


def prior_law(case, start):
    """Probabilities of the tree and the number of edits, of which there are at most `MAX_EDITS`."""
    edits, total = Edits(case), {}
    current = {start: 1.0}
    for num_edits in range(MAX_EDITS + 1):
        following = defaultdict(float)
        for tree, p in current.items():
            law = edits.law(tree)
            total[tree, num_edits] = p * (1 - PROBABILITY if law else 1.0)
            for new, q in law.items():
                following[new] += p * PROBABILITY * q
        current = following
    mass = sum(total.values())
    return {key: p / mass for key, p in total.items()}


def posterior_law(case, start):
    likelihood = {s.tree: math.exp(s.log_likelihood) for s in case.scored}
    joint = {key: p * likelihood[key[0]] for key, p in prior_law(case, start).items()}
    return {key: p / sum(joint.values()) for key, p in joint.items()}


# ------------------------------------------------------------------------------ chains and draws


@functools.cache
def small_case(model, family):
    return ep.random_case(model, family, 2, most_trees=120, num_rows=6)


def tree_at_the_start(case):
    return max(case.probabilities, key=lambda tree: (en.num_leaves(tree) == 3, str(tree)))


def begun(case, tabled, start):
    tree = Tree.from_nested(nested(case.problem, start)).reshape(1)
    shape = as_shape(tabled, case.design, tree, CAPACITY)
    return RegrowEdits(shape, jnp.float64(PROBABILITY)), initial_edits(
        tabled, shape, NUM_CHAINS, MAX_EDITS
    )


@jax.jit
def go_on(keys, tabled, state, probability):
    return edited(keys, tabled, state, probability)


def prior_draws(tabled, state):
    keys = jax.random.split(ep.key(4), NUM_CHAINS)
    drawn, overflows = go_on(keys, tabled, state, jnp.float64(PROBABILITY))
    return jax.tree.map(lambda a: np.asarray(a)[~np.asarray(overflows)], drawn)


def posterior_draws(drawn):
    """Keep draws from the prior with a probability in proportion to the likelihood."""
    share = np.exp(drawn.log_likelihood - drawn.log_likelihood.max())
    kept = np.random.default_rng(0).random(len(share)) < share
    return jax.tree.map(lambda a: a[kept], drawn)


def counted(case, tabled, state):
    edits = np.asarray(state.num_edits).tolist()
    return Counter(zip(names(case, tabled, state.shape), edits, strict=True))


CASES = [
    ("depth decay, cuts", "classes"),
    pytest.param("depth decay, gaps", "values", marks=pytest.mark.slow),
    pytest.param("depth decay by gap, cuts", "classes", marks=pytest.mark.slow),
    pytest.param("greedy partition, cuts", "values", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family"), few_of(CASES, 2))
def test_sequences_are_drawn_from_the_law_of_edits(model, family):
    case = small_case(model, family)
    start = tree_at_the_start(case)
    with jax.enable_x64(True):
        tabled = posed(case)
        _, state = begun(case, tabled, start)
        drawn = prior_draws(tabled, state)
        assert ep.g_test(counted(case, tabled, drawn), prior_law(case, start)) > ep.FALSE_ALARM


@pytest.mark.parametrize(("model", "family"), CASES)
def test_probabilities_of_trees_are_sums_over_sequences(model, family):
    case = small_case(model, family)
    start = tree_at_the_start(case)
    tree = Tree.from_nested(nested(case.problem, start))
    prior = EditTree(tree, PROBABILITY, case.prior)
    trees, probability, rest = edited_trees(
        case.design, prior, case.constraints, max_edits=MAX_EDITS
    )
    expected = Counter()
    for (name, _), p in prior_law(case, start).items():
        expected[name] += p
    listed = dict(zip(ep.rule_trees(case, trees), probability.tolist(), strict=True))
    mass = probability.sum()
    assert listed.keys() == expected.keys()
    for name, p in expected.items():
        assert abs(listed[name] - p * mass) < 1e-12
    assert abs(mass + rest - 1) < 1e-12
    assert rest <= PROBABILITY ** (MAX_EDITS + 1) + 1e-12
    assert (np.diff(probability) <= 0).all()
    with pytest.raises(ValueError, match="more than limit=2 trees"):
        edited_trees(case.design, prior, case.constraints, limit=2)


# ----------------------------------------------------------------------------------- invariance


@pytree_dataclass
class Twisted(RegrowEdits):
    """A kernel with a mistake: R to another power."""

    power_of_r: Any = 1.0

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        log_r = jnp.log(state.num_edits + 1) - jnp.log(proposal.state.num_edits + 1)
        change = (self.power_of_r - 1) * log_r
        return proposal._replace(log_ratio=proposal.log_ratio + change)


def check_invariance(model, family, num_steps, power_of_r=1.0):
    case = small_case(model, family)
    start = tree_at_the_start(case)
    with jax.enable_x64(True):
        tabled = posed(case)
        kernel, state = begun(case, tabled, start)
        kernel = Twisted(kernel.start, kernel.edit_probability, power_of_r)
        exact = posterior_draws(prior_draws(tabled, state))
        num_chains = len(exact.num_edits)
        keys = jax.random.split(ep.key(5), num_chains)
        one = jnp.ones(num_chains)
        for number in range(num_steps):
            exact, _, _ = walk_chains(
                keys, jnp.int32(number), exact, tabled, kernel, one, num_draws=1, thin=1
            )
        assert ep.g_test(counted(case, tabled, exact), posterior_law(case, start)) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("model", "family", "num_steps"),
    [
        ("depth decay, cuts", "classes", 2),  # has many edits: 50 steps of it take minutes
        ("depth decay, gaps", "values", 20),
        ("greedy partition, cuts", "values", 20),
    ],
)
def test_exact_draws_stay_exact(model, family, num_steps):
    check_invariance(model, family, num_steps)


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize("power_of_r", [-1.0, 0.0])
def test_a_wrong_ratio_is_noticed(power_of_r):
    with pytest.raises(AssertionError):
        check_invariance("depth decay, cuts", "classes", 2, power_of_r)


# ------------------------------------------------------------------------------------- surfaces


def stump(threshold):
    return Tree.from_nested({"feature": 0, "threshold": threshold, "left": {}, "right": {}})


@pytest.mark.slow
def test_chains_edit_a_given_tree():
    design = Design.from_matrix(np.arange(20.0)[:, None])
    y, leaf = np.arange(20) // 10, DirichletCategorical.symmetric(2)
    drawn = sample_chains(
        ep.key(0),
        TreeModel(design, y, EditTree(stump(3.5)), leaf),
        chains=2,
        warmup=50,
        draws=300,
        capacity=3,
    )
    assert drawn.posterior.trees.batch_shape == (2, 300)
    assert (drawn.posterior.trees.threshold[..., 0] == 9.5).any(axis=1).all()
    assert (drawn.num_overflows > 0).all()
    assert "log_joint" not in drawn.posterior.sample_stats
    # The trees are mixed by how often they were drawn.
    ranked = drawn.posterior.ranked
    assert np.isnan(ranked.log_joint).all()
    assert (np.diff(ranked.probability) <= 0).all()
    mixed = drawn.posterior.predictive(design.matrix).mean()
    np.testing.assert_allclose(mixed, drawn.posterior.mean(design.matrix), rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": stump(0.5).reshape(1)}, "single tree; got a batch of shape"),
        ({"tree": stump(0.5), "names": ()}, "names has 0 names, and tree splits on feature 0"),
        ({"tree": stump(0.5), "edit_probability": 1.0}, r"must be in \[0, 1\); got 1.0"),
        ({"tree": stump(0.5), "edit_probability": "often"}, r"must be in \[0, 1\); got 'often'"),
    ],
)
def test_priors_without_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EditTree(**options)


def test_a_tree_that_the_model_rules_out_is_refused():
    design, leaf = Design.from_matrix(np.arange(4.0)[:, None]), DirichletCategorical.symmetric(2)
    with pytest.raises(ValueError, match="The tree to edit has a leaf or a rule"):
        sample_chains(
            ep.key(0), TreeModel(design, np.arange(4) % 2, EditTree(stump(9.0)), leaf), capacity=3
        )
    model = TreeModel(design, np.arange(4) % 2, EditTree(stump(0.5)), leaf)
    with pytest.raises(ValueError, match="proposal must be None under an EditTree"):
        sample_chains(ep.key(0), model, kernel=LocalMoves.of(ROTATING))
    with pytest.raises(ValueError, match="start must be None or 'prior' under an EditTree"):
        sample_chains(ep.key(0), model, first_trees=stump(0.5))
    with pytest.raises(TypeError, match="tree must be a Tree; got dict"):
        EditTree({})
    with pytest.raises(TypeError, match=r"base must be a tree prior of .*; got float"):
        EditTree(stump(0.5), base=0.5)


@pytest.mark.slow
def test_a_tree_between_rows_of_one_bin_is_refused():
    design, y = Design.from_matrix(np.arange(12.0)[:, None], bins=4), np.zeros(12, int)
    with pytest.raises(ValueError, match=r"'x0' at 3\.5, .* next cuts are 2\.5 and 5\.5"):
        sample_chains(ep.key(0), TreeModel(design, y, EditTree(stump(3.5)), NO_LIKELIHOOD))
    sample_chains(
        ep.key(0), TreeModel(design, y, EditTree(stump(2.6)), NO_LIKELIHOOD), warmup=0, draws=1
    )


@pytest.mark.slow
@pytest.mark.runs_long
def test_nodes_that_the_base_never_splits_are_no_place_for_a_split():
    design = Design.from_matrix(np.arange(4.0)[:, None])
    base = Program(lambda node: jnp.where(node.depth < 1, 0.5, 0.0), rules="cuts")
    prior = EditTree(stump(1.5), 0.6, base)
    trees, probability, _ = edited_trees(design, prior, max_edits=30)
    drawn = sample_chains(
        ep.key(0), TreeModel(design, np.zeros(4, int), prior, NO_LIKELIHOOD), chains=4, draws=2000
    )
    roots = np.where(trees.feature[:, 0] < 0, -1, trees.threshold[:, 0])
    found = np.where(
        drawn.posterior.trees.feature[..., 0] < 0, -1, drawn.posterior.trees.threshold[..., 0]
    )
    assert (drawn.posterior.trees.num_leaves <= 2).all()
    counts = Counter(found.ravel().tolist())
    assert ep.g_test(counts, dict(zip(roots.tolist(), probability, strict=True))) > ep.FALSE_ALARM


# ------------------------------------------------------------------------------------ estimators


def exact_edits(design, y, prior):
    """Probabilities of trees given targets of two classes, and the log evidence; by a list."""
    trees, probability, rest = edited_trees(design, prior, max_edits=30)
    assert rest < 1e-6
    joint = {}
    for tree, p in zip(trees, probability.tolist(), strict=True):
        leaf = route(tree.reshape(1), design.matrix)[0]
        counts = [Counter(y[leaf == slot].tolist()) for slot in set(leaf.tolist())]
        likelihood = math.prod(
            math.factorial(c[0]) * math.factorial(c[1]) / math.factorial(c[0] + c[1] + 1)
            for c in counts
        )
        joint[str(tree.to_nested())] = p * likelihood
    total = math.fsum(joint.values())
    return {tree: p / total for tree, p in joint.items()}, math.log(total)


@functools.cache
def tempered_edits():
    design, y = Design.from_matrix(np.arange(5.0)[:, None]), np.array([0, 0, 1, 1, 1])
    model = TreeModel(design, y, EditTree(stump(3.5), 0.6), DirichletCategorical.symmetric(2))
    options = {"warmup": 40, "draws": 4, "thin": 10, "temperatures": 3, "capacity": 9}
    return model, sample_chains(ep.key(0), model, chains=1_000, **options)


def check_tempered_edits(probability):
    """1,000 independent chains; the evidence to 5 standard errors, a false alarm in 2 million."""
    model, drawn = tempered_edits()
    law, log_evidence = exact_edits(model.design, model.y, EditTree(stump(3.5), probability))
    posterior = drawn.posterior
    last = Counter(str(tree.to_nested()) for tree in posterior.trees[:, -1])
    assert ep.g_test(last, law) > ep.FALSE_ALARM
    assert posterior.log_evidence_se < 0.02
    assert abs(posterior.log_evidence - log_evidence) < 5 * posterior.log_evidence_se


@pytest.mark.slow
@pytest.mark.runs_long
def test_tempered_chains_have_the_posterior_and_the_evidence():
    check_tempered_edits(0.6)
    with pytest.raises(AssertionError):
        check_tempered_edits(0.45)
    model, drawn = tempered_edits()
    _, log_evidence = exact_edits(model.design, model.y, EditTree(stump(3.5), 0.45))
    found = drawn.posterior
    assert abs(found.log_evidence - log_evidence) > 5 * found.log_evidence_se


@pytest.mark.slow
def test_trees_of_the_prior_are_edited():
    design = Design.from_matrix(np.arange(5.0)[:, None])
    drawn = draw_prior_trees(ep.key(1), design, EditTree(stump(3.5), 0.6), Constraints(), 4_000)
    counts = Counter(str(tree.to_nested()) for tree in drawn)
    for probability, is_so in ((0.6, True), (0.5, False)):
        trees, p, _ = edited_trees(design, EditTree(stump(3.5), probability), max_edits=30)
        law = {str(t.to_nested()): q for t, q in zip(trees, p.tolist(), strict=True)}
        assert (ep.g_test(counts, law) > ep.FALSE_ALARM) == is_so


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*[cC]hains.*")
def test_estimators_edit_a_tree(tmp_path):
    X = {"age": np.arange(30.0) % 6, "dose": np.arange(30.0) // 5}
    y = (X["dose"] > 2).astype(int)
    walk = {"chains": 2, "temperatures": 2, "warmup": 100, "draws": 20, "thin": 4}
    prior = EditTree(stump(2.5), 0.5, names=("dose",))  # the second feature of the table
    model = bdtppl.MetropolisTreeClassifier(prior=prior, random_state=0, **walk).fit(X, y)
    assert model.prior_.tree.feature.tolist() == [1, -1, -1]
    assert (model.predict(X) == y).all()
    assert math.isnan(model.map_log_joint_)
    assert model.summary()["map_log_joint"] is None
    assert "most frequent draw" in str(model.summary())
    assert set(model.diagnostics_) >= {"log_likelihood", "num_leaves"}
    assert np.isfinite([model.log_evidence_, model.log_evidence_se_]).all()
    assert "lp" not in model.to_arviz(prior_draws=5)["sample_stats"]
    assert model.structures().probability[0] > 0
    table = bdtppl.compare({"edited": model}, cv=None)
    assert table.cells["edited"]["log_evidence"].value == model.log_evidence_
    model.save(tmp_path / "kept")
    loaded = bdtppl.load(tmp_path / "kept")
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.prior_.tree.to_nested() == model.prior_.tree.to_nested()
    bdtppl.write_report(model, tmp_path / "report.html")
    assert "A given tree of 2 leaves is edited" in (tmp_path / "report.html").read_text()
    with pytest.raises(ValueError, match="tree splits on 'dose', which is not one of age"):
        model.fit({"age": X["age"]}, y)
    with pytest.raises(ValueError, match="proposal must have its default under an EditTree"):
        bdtppl.MetropolisTreeClassifier(prior=prior, proposal="regrow").fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Exact", "GreedyModal", "Particle", "GFlowNet"])
def test_what_cannot_edit_says_so(kind):
    model = getattr(bdtppl, f"{kind}TreeRegressor")(prior=EditTree(stump(0.5)), max_depth=2)
    message = "EditTree weights sequences of edits. MetropolisTree estimators accept it"
    with pytest.raises(ValueError, match=message):
        model.fit(np.arange(8.0)[:, None], np.arange(8.0))


@pytest.mark.parametrize("estimator", [DecisionTreeClassifier, DecisionTreeRegressor])
def test_a_tree_of_scikit_learn_routes_as_it_does_there(estimator):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 6, (80, 3)).astype(float)
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    y = rng.integers(0, 2, 80)
    fitted = estimator(max_leaf_nodes=9, random_state=0).fit(matrix, y)
    tree = Tree.from_sklearn(fitted)
    np.testing.assert_array_equal(route(tree, matrix), fitted.apply(matrix))
    with pytest.raises(TypeError, match="must be a fitted decision tree; got DecisionTree"):
        Tree.from_sklearn(estimator())
