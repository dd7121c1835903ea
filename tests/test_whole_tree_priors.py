"""A prior that weighs whole trees, against enumeration."""

import dataclasses
import json
from collections import Counter
from typing import Any

import chains
import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import leaf_count_problems as lp
import numpy as np
import pytest
from test_cli import run, write_table

import bdtppl
from bdtppl.inference.metropolis.moves import CHIPMAN, ROTATING, LocalMoves
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.models.constraints import Constraints
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.prior_kinds import Rules
from bdtppl.models.priors import TREE_PRIORS, WholeTreePrior
from bdtppl.models.pytrees import pytree_dataclass, setting
from bdtppl.report.words import prior_in_words

CAPACITY = 31


@pytree_dataclass
class FewFeatures(WholeTreePrior):
    """Each feature that a tree splits on costs once, and each split half as much."""

    cost: Any = 1.0
    num_features: int = setting(default=8)
    rules: Rules = setting(default="gaps")

    def log_tree(self, tree):
        is_on = tree.feature[None] == jnp.arange(self.num_features)[:, None]
        used = (is_on & tree.is_split[None]).any(axis=1).sum()
        return -self.cost * (used + 0.5 * tree.is_split.sum())


@pytree_dataclass
class FewLevels(FewFeatures):
    """The mutant: it counts levels in place of features."""

    def log_tree(self, tree):
        return -self.cost * (tree.depth * tree.is_leaf).max() - 0.5 * tree.is_split.sum()


# Pytest imports every file first, and what is registered then would be seen by other files' tests.
del TREE_PRIORS["FewFeatures"], TREE_PRIORS["FewLevels"]


@pytest.fixture
def registered():
    TREE_PRIORS["FewFeatures"] = FewFeatures
    yield
    del TREE_PRIORS["FewFeatures"]


@dataclasses.dataclass(frozen=True)
class FeatureCost:
    """The same prior by its definition."""

    cost: float

    def weigh(self, problem, trees):
        rules = [list(_rules(tree)) for tree in trees]
        return [-self.cost * (len({r.feature for r in own}) + len(own) / 2) for own in rules]


def _rules(tree):
    if not isinstance(tree, en.Leaf):
        yield tree.rule
        yield from _rules(tree.left)
        yield from _rules(tree.right)


def the_case(rules, seed):
    case = ep.random_case(f"description length, {rules}", "classes", seed)
    parts = {each.name: getattr(case, each.name) for each in dataclasses.fields(case)}
    parts |= {"prior": FewFeatures(1.5, rules=rules), "reference_prior": FeatureCost(1.5)}
    return lp.LeafCase(**parts)


def check_scores(case, prior):
    model = dataclasses.replace(case.model, prior=prior)
    trees = [Tree.from_nested(chains.nested(case.problem, each.tree)) for each in case.scored]
    scored = log_joint(Tree.concatenate([tree.reshape(1) for tree in trees]), model)
    expected = [each.log_prior + each.log_likelihood for each in case.scored]
    np.testing.assert_allclose(scored.log_joint, expected, rtol=1e-10, atol=1e-10)
    with jax.enable_x64(True):
        state = chains.Chains(case, prior, CAPACITY).state
        np.testing.assert_allclose(state.log_prior + state.log_likelihood, expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["gaps", "cuts"])
def test_trees_score_as_the_enumeration_says(rules):
    case = the_case(rules, 7)
    check_scores(case, case.prior)
    with pytest.raises(AssertionError):
        check_scores(case, FewLevels(1.5, rules=rules))


def check_invariance(case, prior, kernel):
    """Exact draws stay exact; a false alarm has probability `exact_problems.FALSE_ALARM`."""
    with jax.enable_x64(True):
        after = chains.Chains(case, prior, CAPACITY).walked(kernel, 4_000, 10)
    assert ep.g_test(Counter(after), case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [LocalMoves.of(ROTATING), Regrow()], ids=repr)
def test_exact_draws_stay_exact(kernel):
    case = the_case("gaps", 7)
    check_invariance(case, case.prior, kernel)


@pytest.mark.slow
def test_chains_of_another_prior_are_noticed():
    case = the_case("gaps", 7)
    with pytest.raises(AssertionError):
        check_invariance(case, FewLevels(1.5), LocalMoves.of(CHIPMAN))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*chains.*")
def test_a_prior_over_trees_works_wherever_it_can(registered, tmp_path):
    X = np.random.default_rng(0).integers(0, 6, (60, 2)).astype(float)
    y = (X[:, 0] > 2).astype(int)
    path = write_table(tmp_path / "table.csv", {"a": X[:, 0], "b": X[:, 1], "y": y})
    prior = FewFeatures(3.0)
    settings = {"temperatures": 1, "warmup": 200, "draws": 50, "random_state": 0}
    model = bdtppl.MetropolisTreeClassifier(prior=prior, **settings).fit(X, y)
    assert (model.predict(X) == y).all()
    assert set(model.map_tree_.feature.tolist()) == {0, -1}
    model.save(tmp_path / "kept")
    loaded = bdtppl.load(tmp_path / "kept")
    assert loaded.prior == prior
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert prior_in_words(prior) == ["The prior is FewFeatures(cost=3)."]
    (tmp_path / "prior.toml").write_text('[prior]\nkind = "FewFeatures"\ncost = 3\n')
    options = ["--target", "y", "--model", "metropolis", "--temperatures", 1]
    options += ["--warmup", 200, "--draws", 50]
    for given in (["--prior", "few-features:cost=3"], ["--prior-file", tmp_path / "prior.toml"]):
        out = run("fit", path, *options, *given, "--json", "--out", tmp_path / "out", "--report")
        assert json.loads(out.stdout)["map_leaves"] == 2
        assert "FewFeatures(cost=3)" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    "kind", ["Exact", "GreedyModal", "Particle", "GFlowNet"], ids=lambda kind: kind
)
def test_what_cannot_weigh_whole_trees_says_so(kind):
    estimator = getattr(bdtppl, f"{kind}TreeClassifier")(prior=FewFeatures(), max_depth=2)
    message = "FewFeatures weights whole trees. MetropolisTree estimators accept it"
    with pytest.raises(ValueError, match=message):
        estimator.fit(np.arange(8.0)[:, None], np.arange(8) % 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*chains.*")
def test_limits_bind_trees_under_such_a_prior():
    X, y = np.arange(12.0)[:, None], np.arange(12) % 2
    model = bdtppl.MetropolisTreeClassifier(
        prior=FewFeatures(-1.0),
        constraints=Constraints(max_depth=1),
        temperatures=1,
        draws=20,
        random_state=0,
    )
    model.fit(X, y)
    assert model.posterior_.trees.depth.max() == 1
