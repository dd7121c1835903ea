"""Rules, paths and trees that functions of the user allow, against the enumeration of all trees."""

import itertools
import math
from collections import Counter
from dataclasses import fields, replace
from functools import cached_property

import chains
import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from test_exact_posterior import check_evidence, check_ranking, check_rule_inclusion, check_sizes
from test_path_constraints import by_rows, by_tables, check_predictive, check_scores
from tiers import slow_but

import bdtppl
from bdtppl.inference.exact_cost import exact_of
from bdtppl.inference.metropolis.moves import ROTATING, LocalMoves
from bdtppl.inference.metropolis.proposals import KERNELS
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.models.constraints import Constraints
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.priors import DepthDecay, LeafPenalty, Program

CAPACITY = 31

# --------------------------------------------------------------------------------- rules and cuts


def is_refused(threshold, xp=np):
    """About every third threshold."""
    return xp.floor(7 * threshold) % 3 == 0


def with_refused(law, family, seed):
    """Draw a case whose reference refuses these cuts, some of them in vain."""
    for place in itertools.count(seed):
        case = ep.case_of_law(law, "cuts", family, place)
        refused = {
            (f, v)
            for f, cuts in enumerate(case.problem.cut_thresholds)
            for v, threshold in enumerate(cuts, start=1)
            if is_refused(threshold)
        }
        bound = replace(case, problem=replace(case.problem, refused=refused))
        if 10 < en.count_trees(bound.problem) < en.count_trees(case.problem):
            evidence = [en.log_evidence(each.scored) for each in (case, bound)]
            if abs(evidence[0] - evidence[1]) > 0.01:  # cuts of one gap may stand for each other
                return bound
    raise AssertionError


def asked(law, family, seed):
    """A function of names and thresholds judges the cuts."""
    case = with_refused(law, family, seed)
    limits = replace(case.constraints, allows_rule=lambda name, t: name and not is_refused(t))
    return replace(case, constraints=limits)


def weighed(law, family, seed):
    """A weight of 0 excludes cuts."""
    case = with_refused(law, family, seed)
    known = case.prior.cut_weights
    assert callable(known)

    def weight(node, rule):
        return jnp.where(is_refused(rule.threshold, jnp), 0.0, known(node, rule))

    return replace(case, prior=replace(case.prior, cut_weights=weight))


CUT_CASES = [
    (asked, "features by weight", "classes", 2),
    (asked, "all rules by gap and feature", "values", 3),
    (asked, "chronological", "classes", 0),
    (asked, "program", "values", 1),
    (weighed, "cuts by threshold", "values", 1),
    (weighed, "cuts by threshold", "classes", 4),
]


@pytest.mark.parametrize(("make", "law", "family", "seed"), slow_but([CUT_CASES[0]], CUT_CASES))
def test_refused_cuts_equal_the_enumeration(make, law, family, seed):
    case = make(law, family, seed)
    exact = exact_of(case.model, "chart")
    for check in (check_evidence, check_ranking, check_sizes, check_predictive):
        check(case, exact)
    for scores in (by_rows, by_tables):
        best = exact.k_best(60)
        np.testing.assert_allclose(scores(case, best.trees), best.log_joint, atol=1e-9)
    free = replace(case, problem=replace(case.problem, refused=()))
    with pytest.raises(AssertionError):  # the twin whose reference refuses nothing
        check_evidence(free, exact)


def test_a_feature_of_weight_zero_is_left_out_with_gaps_too():
    case = ep.case_of_law("features by weight", "gaps", "classes", 2)
    problem = replace(case.problem, allowed_features=[0, 2])
    for weights in (
        (0.4, 0.0, 0.9),
        lambda node, rule: jnp.where(rule.feature == 1, 0.0, 0.4 + 0.25 * rule.feature),
    ):
        own = replace(
            case,
            problem=problem,
            prior=replace(case.prior, feature_weights=weights),
            constraints=replace(case.constraints, features=None),
        )
        exact = exact_of(own.model, "chart")
        check_evidence(own, exact)
        with pytest.raises(AssertionError):
            check_evidence(replace(own, problem=replace(problem, allowed_features=range(3))), exact)


@pytest.mark.slow
def test_weights_of_a_function_are_saved_as_numbers(tmp_path):
    X = np.random.default_rng(0).integers(0, 6, (60, 2)).astype(float)
    y = (X[:, 0] > 2).astype(int)

    def weight(node, rule):
        return jnp.where((rule.feature == 0) & (rule.threshold == 2.5), 0.0, rule.threshold)

    for settings in (
        {"prior": DepthDecay(rules="cuts", cut_weights=weight)},
        {
            "prior": DepthDecay(rules="cuts"),
            "constraints": Constraints(allows_rule=lambda name, t: (name, t) != ("x0", 2.5)),
        },
    ):
        model = bdtppl.ExactTreeClassifier(**settings, bins=None, random_state=0).fit(X, y)
        assert "x0 < 2.5" not in model.rules()
        assert model.constraints_.refused == (("x0", 2.5),)
        model.save(tmp_path / "kept")
        loaded = bdtppl.load(tmp_path / "kept")
        assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
        assert loaded.constraints_ == model.constraints_
        again = loaded.fit(X, y)
        assert again.log_evidence_ == model.log_evidence_
    read = DepthDecay(rules="cuts", cut_weights=lambda node, rule: 1.0 + rule.num_left)
    model = bdtppl.ExactTreeClassifier(prior=read, bins=None, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="it is a function, and loading a model executes"):
        model.save(tmp_path / "kept")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allows_rule": 3}, "allows_rule must be a function; got 3"),
        ({"refused": [("x0",)]}, "refused must list pairs of a feature and a threshold"),
    ],
)
def test_constraints_without_sense_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Constraints(**options)


def test_gaps_and_shared_weights_take_no_refused_cuts():
    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    limits = Constraints(refused=[("x0", 2.5)])
    for kind, message in (("Metropolis", "use rules='cuts'"), ("Exact", "use DepthDecay or")):
        model = getattr(bdtppl, f"{kind}TreeClassifier")(constraints=limits)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    greedy = bdtppl.GreedyModalTreeClassifier(constraints=limits, prior=DepthDecay(rules="cuts"))
    with pytest.raises(ValueError, match="Greedy modal trees use all cuts of a feature"):
        greedy.fit(X, y)


# --------------------------------------------------------------------------------- paths and trees


class ByTree(ep.Case):
    """Trees that split on feature 0 once at most, at thresholds that are not refused."""

    limit = {  # noqa: RUF012
        "allows_tree": lambda tree: (
            (tree.is_split & (tree.feature == 0)).sum()
            + (tree.is_split & is_refused(tree.threshold, jnp)).sum()
            < 2
        )
    }

    @cached_property
    def scored(self):
        scored = en.trees(self.problem, self.reference_prior, self.reference_leaf)
        kept = [each for each in scored if self.keeps(each.tree)]
        assert 10 < len(kept) < len(scored)
        return kept

    def keeps(self, tree):
        splits = en.tree_thresholds(self.problem, tree)
        first = sum(f == 0 for f, _ in splits)
        return first + sum(is_refused(t) for _, t in splits) < 2


class ByPath(ByTree):
    """Trees without a node that is on the right of two splits, the second one on feature 0 or 1."""

    limit = {  # noqa: RUF012
        "allows_path": lambda path: (
            (path.is_above & ~path.is_left & (path.depth + path.feature < 3)).sum() < 2
        )
    }

    def keeps(self, tree, depth=0, seen=0):
        if seen > 1:
            return False
        if isinstance(tree, en.Leaf):
            return True
        more = seen + (depth + tree.rule.feature < 3)
        left = self.keeps(tree.left, depth + 1, seen)
        return left and self.keeps(tree.right, depth + 1, more)


def tree_case(kind, rules, **limit):
    case = ep.case_of_law("all rules alike", rules, "values", 5)
    limits = replace(case.constraints, **(limit or kind.limit))
    parts = {each.name: getattr(case, each.name) for each in fields(case)}
    return kind(**parts | {"constraints": limits})


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rules"), [(ByTree, "gaps"), (ByPath, "gaps"), (ByTree, "cuts")])
def test_trees_that_are_not_allowed_have_no_weight(kind, rules):
    case = tree_case(kind, rules)
    every = en.trees(case.problem, case.reference_prior, case.reference_leaf)
    trees = [Tree.from_nested(chains.nested(case.problem, each.tree)) for each in every]
    expected = [
        each.log_prior + each.log_likelihood if case.keeps(each.tree) else -math.inf
        for each in every
    ]
    batch = Tree.concatenate([tree.reshape(1) for tree in trees])
    found = log_joint(batch, case.model).log_joint
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(by_tables(case, batch), expected, rtol=1e-10, atol=1e-10)
    other = tree_case(kind, rules, allows_tree=lambda tree: tree.is_split.sum() < 2)
    with pytest.raises(AssertionError):  # the twin asks something else
        np.testing.assert_allclose(by_tables(other, batch), expected, rtol=1e-10)


def check_invariance(case, kernel, prior_case=None):
    """Exact draws stay exact; a false alarm has probability `exact_problems.FALSE_ALARM`."""
    with jax.enable_x64(True):
        after = chains.Chains(prior_case or case, case.prior, CAPACITY).walked(kernel, 4_000, 10)
    assert ep.g_test(Counter(after), case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kernel"), [(ByTree, "rotating"), (ByPath, "redraw")])
def test_exact_draws_stay_exact(kind, kernel):
    check_invariance(tree_case(kind, "gaps"), KERNELS[kernel].make())


@pytest.mark.slow
def test_chains_that_ask_nothing_are_noticed():
    case = tree_case(ByTree, "gaps")
    free = tree_case(ByTree, "gaps", allows_tree=lambda tree: tree.is_leaf.any())
    with pytest.raises(AssertionError):
        check_invariance(case, LocalMoves.of(ROTATING), free)


@pytest.mark.slow
def test_the_evidence_is_that_of_the_trees_that_are_left():
    """To 5 standard errors, a false alarm in 2 million."""
    case = tree_case(ByTree, "gaps")
    options = {"chains": 200, "warmup": 200, "draws": 20, "thin": 10, "temperatures": 4}
    found = sample_chains(ep.key(2), case.model, **options).posterior
    every = en.trees(case.problem, case.reference_prior, case.reference_leaf)
    distance = [abs(found.log_evidence - en.log_evidence(s)) for s in (case.scored, every)]
    assert distance[0] < 5 * found.log_evidence_se < 0.2
    assert distance[1] > 5 * found.log_evidence_se  # the twin has all trees


@pytest.mark.parametrize("limit", [ByTree.limit, ByPath.limit])
@pytest.mark.parametrize("kind", ["Exact", "GreedyModal", "Particle", "GFlowNet"])
def test_what_cannot_ask_of_trees_says_so(kind, limit):
    limits = Constraints(**limit)
    model = getattr(bdtppl, f"{kind}TreeClassifier")(prior=DepthDecay(), constraints=limits)
    with pytest.raises(ValueError, match=f"cannot use {next(iter(limit))}, .* Metropolis tree"):
        model.fit(np.arange(8.0)[:, None], np.arange(8) % 2)


# --------------------------------------------------------------------------- the paper's program


def figure_2(first):
    """Split with probability 1 / D, D being ``first`` at the root (Figure 2)."""
    return en.NodeWise(
        lambda problem, rows, depth: 1 / (first + depth),
        lambda problem, rows, depth, f: (0.4, 0.3, 0.3)[f],
    )


@pytest.mark.parametrize("rules", ["gaps", "cuts"])
def test_the_program_of_figure_2_equals_the_enumeration(rules):
    case = ep.case_of_law("features by weight", rules, "classes", 2)
    names = {f"x{f}": weight for f, weight in enumerate((0.4, 0.3, 0.3))}
    prior = DepthDecay(1.0, 1.0, rules=rules, feature_weights=names)
    case = replace(case, prior=prior, reference_prior=figure_2(1))
    for check in (check_evidence, check_sizes, check_rule_inclusion):
        check(case, case.exact)
    check_scores(case, by_tables)
    program = Program(lambda node: 1 / (1 + node.depth), rules=rules, feature_weights=names)
    check_evidence(case, replace(case, prior=program).exact)
    with pytest.raises(AssertionError):
        check_evidence(replace(case, reference_prior=figure_2(2)), case.exact)
    with pytest.raises(ValueError, match="always split every node"):
        DepthDecay(1.0, 0.0)


# ------------------------------------------------------------------------------ what users meet

WALK = {"temperatures": 1, "extensions": 0, "warmup": 200, "draws": 20, "thin": 5}
WALK |= {"chains": 8, "random_state": 0}


def three_values(n=60):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (n, 2)).astype(float)
    return X, X[:, 0] == 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        pytest.param(
            {"prior": EditTree(Tree.from_nested({}), 0.7), "start": "prior"},
            lambda tree: tree.is_split.sum() < 2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"prior": LeafCount()}, lambda tree: tree.is_split.sum() < 3, marks=pytest.mark.slow
        ),
        pytest.param({}, lambda tree: tree.is_split.sum() >= 2, marks=pytest.mark.slow),
        pytest.param(
            {"prior": DepthDecay(1.0, 1.0), "max_depth": 2, "proposal": "regrow"},
            None,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["edits of the prior", "leaf count", "two splits at least", "1/D"],
)
def test_chains_start_where_the_constraints_allow_it(options, limit):
    constraints = Constraints(allows_tree=limit)
    model = bdtppl.MetropolisTreeClassifier(**WALK, **options, constraints=constraints)
    trees = model.fit(*three_values()).posterior_.trees.reshape(-1)
    splits = trees.num_leaves - 1
    assert limit is None or all(limit(_Splits(number)) for number in splits)


class _Splits:
    """A tree with so many splits, for a limit on their number."""

    def __init__(self, number):
        self.is_split = np.arange(20) < number


def test_shared_weights_take_no_functions_of_trees():
    with pytest.raises(ValueError, match="allows_path and allows_tree distinguish"):
        bdtppl.MetropolisTreeClassifier(
            prior=LeafPenalty(1.0), constraints=Constraints(allows_tree=lambda tree: True)
        ).fit(*three_values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_loaded_model_has_the_cuts_that_were_asked_for(tmp_path):
    X = np.random.default_rng(0).random((80, 2))
    limits = Constraints(allows_rule=lambda name, threshold: name != "x0" or threshold > 0.4)
    model = bdtppl.MetropolisTreeClassifier(
        prior=DepthDecay(rules="cuts"), constraints=limits, **WALK
    ).fit(X, X[:, 0] < 0.3)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    assert loaded.summary()["bins"] == model.summary()["bins"] == 30
    again = clone(loaded).fit(X, X[:, 0] < 0.3)
    assert again.design_.num_codes.tolist() == model.design_.num_codes.tolist()


def test_a_refused_threshold_without_a_cut_is_said():
    model = bdtppl.ExactTreeClassifier(
        prior=DepthDecay(rules="cuts"),
        method="chart",
        bins=None,
        constraints=Constraints(refused=[("x0", 0.7), ("x1", 0.5)]),
    )
    with pytest.warns(UserWarning, match=r"of x0 at 0.7, .* nearest cuts are 0.5 and 1.5") as said:
        model.fit(*three_values())
    assert len(said) == 1


def test_python_conditions_in_functions_of_trees_are_said():
    def limit(tree):
        return not tree.is_split.any()

    with pytest.raises(ValueError, match=r"allows_tree is compiled .* jnp.where"):
        bdtppl.MetropolisTreeClassifier(constraints=Constraints(allows_tree=limit), **WALK).fit(
            *three_values()
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_all_paths_to_leaves_use_a_feature():
    def uses_x1(path):
        return ~path.is_leaf | (path.is_above & (path.feature == 1)).any()

    model = bdtppl.MetropolisTreeClassifier(constraints=Constraints(allows_path=uses_x1), **WALK)
    trees = model.fit(*three_values()).posterior_.trees.reshape(-1)
    root = trees.feature[:, 0]
    assert (trees.feature == 1).any(axis=1).all()
    assert set(root.tolist()) <= {0, 1}
