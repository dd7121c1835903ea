"""Laws of a split's rule, against the enumeration of all trees.

Everything but the test of draws is deterministic; the checks of the posterior are those of
`test_exact_posterior`, each of which has its mutation twin there. Those of the laws are here.
"""

import itertools
import math

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_metropolis as metropolis
from test_exact_posterior import (
    check_evidence,
    check_normalised,
    check_productions,
    check_ranking,
    check_rule_inclusion,
    check_sizes,
)
from test_path_constraints import by_rows, by_tables, check_draws, check_predictive, check_scores
from tiers import few_of, slow_but

from bdtppl import ExactTreeClassifier, MetropolisTreeClassifier, ParticleTreeClassifier
from bdtppl.inference.greedy_modal import problem as greedy
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.pcfg.chart import chart_for
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.shares import log_shares
from bdtppl.inference.prior_predictive.trees import PriorTrees
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard import node_scores, packed_model
from bdtppl.models.hard.rule_laws import RuleLaw, facts_read
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, Program

CHECKS = (
    check_normalised,
    check_evidence,
    check_ranking,
    check_sizes,
    check_productions,
    check_rule_inclusion,
)
MODELS = [
    *((law, rules) for law in (*ep.LAWS, "program") for rules in ("gaps", "cuts")),
    ("chronological", "cuts"),
]
# Of each law and kind of rules one of four cases: every family and every path meet each law, and
# every two of family, path and kind of rules meet.
# The reference's laws do not know the path. The program reads a rule's threshold, which boxes on
# the path move inside a gap, so that it is held to orders alone there.
ENUMERATED = [
    pytest.param(
        *model,
        ep.FAMILIES[(i + i // 2) % 2],
        path if model != ("program", "gaps") else path[1:],
        id="-".join((*model, ep.FAMILIES[(i + i // 2) % 2], "path" if path else "free")),
    )
    for i, model in enumerate(MODELS)
    for path in [((), ("boxes", "order"))[(i + i // 4) % 2]]
]


def test_a_program_equals_the_enumeration():
    case = ep.case_of_law("program", "cuts", "classes", 0)
    check_evidence(case, case.exact)
    check_scores(case, by_rows)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "rules", "family", "path"), few_of(ENUMERATED, 6))
def test_every_law_equals_the_enumeration(law, rules, family, path):
    case = ep.case_of_law(law, rules, family, 0, path=path)
    for check in CHECKS:
        if not path or check is not check_productions:  # a set of rows has several memories
            check(case, case.exact)
    check_predictive(case, case.exact)
    check_draws(case, case.exact)
    check_scores(case, by_rows)
    check_scores(case, by_tables)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "rules"), few_of(MODELS, 4))
def test_weights_of_all_rules_are_those_of_each(law, rules):
    case = ep.case_of_law(law, rules, "classes", 3, path=("boxes",))
    with jax.enable_x64(True):
        tabled = packed_model.PackedModel.of(case.model)
        rows, depth = tabled.every_row[None], jnp.zeros(1, jnp.int32)
        weights = node_scores.node_weights(tabled, rows, depth)
        for place in range(len(tabled.feature)):
            terms = node_scores.node_terms(tabled, rows, depth, jnp.full(1, place))
            np.testing.assert_allclose(weights.log_rules[:, place], terms.log_rule, rtol=1e-12)
            np.testing.assert_allclose(weights.log_stop, terms.log_stop, rtol=1e-12)
        total = np.logaddexp(weights.log_stop, np.logaddexp.reduce(weights.log_rules, axis=1))
    np.testing.assert_allclose(total, 0.0, atol=1e-12)


# ------------------------------------------------------------------------------ mutation twins


class Swapped(RuleLaw):
    """Takes one choice among all rules for a feature first, and the other way round."""

    def log_shares(self, rules, available, feature_weight, cut_weight):
        other = "rules" if self.over == "features" else "features"
        law = RuleLaw(self.feature_weights, self.cut_weights, other)
        return law.log_shares(rules, available, feature_weight, cut_weight)


class Shifted(RuleLaw):
    """Walks along a list that is one longer."""

    def log_shares(self, rules, available, feature_weight, cut_weight):
        class Longer:
            def __getattr__(self, name):
                return rules.num_items + 1 if name == "num_items" else getattr(rules, name)

        return super().log_shares(Longer(), available, feature_weight, cut_weight)


@pytest.mark.parametrize(
    ("name", "broken"), [("all rules alike", Swapped), ("chronological", Shifted)]
)
def test_a_broken_law_is_noticed(name, broken):
    case = ep.case_of_law(name, "cuts", "classes", 1)
    law = case.prior.resolve(case.design).law
    wrong = broken(law.feature_weights, law.cut_weights, law.over, law.choice)
    root = case.grammar.parent == case.grammar.root

    def check(law):
        found = np.exp(log_shares(case.grammar, law, 1))
        rules = en.available_rules(case.problem, case.problem.all_rows, 0)
        facts = case.problem, case.problem.all_rows, 0, rules
        log_p = math.log(case.reference_prior.split_probability(*facts[:3]))
        expected = {
            rule: math.exp(case.reference_prior.log_split(*facts, rule) - log_p) for rule in rules
        }
        for production in np.flatnonzero(root):
            (rule,) = ep.rules_of_production(case.grammar, production)
            assert abs(found[production] - expected[rule]) < 1e-12

    check(law)
    with pytest.raises(AssertionError):
        check(wrong)


# --------------------------------------------------------------------------- the published laws


def root_shares(prior, design, constraints=None):
    """Probability of each rule of the root, given that it splits, by (feature, threshold)."""
    grammar = compile_grammar(
        design, rules=prior.rules, constraints=constraints, each_cut=prior.rules == "cuts"
    )
    shares = np.exp(log_shares(grammar, prior.resolve(design).law, 1))
    at_root = np.flatnonzero(grammar.parent == grammar.root)
    return {
        (int(grammar.feature[e]), float(grammar.threshold[e])): float(shares[e]) for e in at_root
    }


def test_the_walk_of_a_logic_program():
    """Ten thresholds, the first five of them valid: .1 .1 .1 .1 .6."""
    design = Design.from_matrix(np.arange(11.0)[:, None])
    prior = DepthDecay(rules="cuts", choice="chronological")
    rows = design.take(np.arange(6))  # the list stays that of all cuts
    np.testing.assert_allclose(list(root_shares(prior, rows).values()), [0.1, 0.1, 0.1, 0.1, 0.6])
    law = en.chronological(10, range(5))
    np.testing.assert_allclose(list(law.values()), [0.1, 0.1, 0.1, 0.1, 0.6])
    last = design.take(np.arange(5, 11))
    np.testing.assert_allclose(list(root_shares(prior, last).values()), [0.2] * 5)


def test_the_walk_passes_features_that_may_not_be_used():
    design = Design.from_matrix(np.array([[0.0, 0, 0, 0], [1, 1, 1, 1]]))
    prior = DepthDecay(rules="cuts", choice="chronological")
    shares = root_shares(prior, design, Constraints(features=(1, 2)))
    np.testing.assert_allclose([shares[1, 0.5], shares[2, 0.5]], [1 / 3, 2 / 3])


def test_the_program_of_figure_2():
    """A leaf at depth D splits with probability 1/D (root: 1), on x1, x2, x3 with .4, .3, .3."""
    matrix = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    prior = Program(lambda node: 1 / (1 + node.depth), feature_weights={"x1": 0.4, 1: 0.3, 2: 0.3})
    design = Design.from_matrix(matrix, names=("x1", "x2", "x3"))
    shares = root_shares(prior, design)
    np.testing.assert_allclose([shares[f, 0.5] for f in range(3)], [0.4, 0.3, 0.3])
    leaf = DirichletCategorical.symmetric(2)
    prior_alone = ExactPosterior(
        compile_grammar(design), prior, leaf, np.array([0, 1, 1, 0]), observed=np.zeros(4, bool)
    )
    assert abs(prior_alone.log_partition) < 1e-12
    # No tree is the root alone; a stump on x1 has one leaf that can split, and does not: .4 x .5.
    best = prior_alone.k_best(1000)
    assert (best.trees.num_leaves > 1).all()
    is_stump = (best.trees.num_leaves == 2) & (best.trees.feature[:, 0] == 0)
    np.testing.assert_allclose(best.probability[is_stump], 0.4 * 0.5)


# ------------------------------------------------------------------------- what functions may be


def test_facts_that_are_read_are_found():
    def weight(node, rule):
        return jnp.where(rule.num_left > 3, node.least[..., 1], node.depth)

    assert facts_read(weight, 2) == ({"least", "depth"}, {"num_left"})
    prior = Program(lambda node: 0.5 + 0 * node.num_rows)
    assert not prior.depends_on_depth
    assert "num_rows" in prior.node_facts


@pytest.mark.parametrize(
    ("split_probability", "error", "message"),
    [
        (lambda node: node.rows, ValueError, "split_probability: A node has no 'rows' here; it"),
        (lambda node: 0.9 if node.depth < 2 else 0.5, TypeError, "jnp.where instead of if"),
        (lambda node: np.exp(-node.depth), TypeError, "must be written in jax.numpy"),
        (lambda node: None, TypeError, "must return a number at every node; got None"),
        (lambda node: "half", TypeError, "must return a number at every node; got 'half'"),
        (lambda node: -0.5, ValueError, r"must be in \[0, 1\]; got -0.5 at the root"),
        (lambda node: node.num_rows / 2, ValueError, r"must be in \[0, 1\]; got 1.5 at the root"),
        (lambda node: node.least[..., 1] + np.nan, ValueError, r"must be in \[0, 1\]; got nan"),
    ],
)
def test_programs_without_sense_are_refused(split_probability, error, message):
    with pytest.raises(error, match=message):
        Program(split_probability).resolve(Design.from_matrix(np.eye(3)))


def test_weights_that_are_not_positive_are_refused():
    design, y = Design.from_matrix(np.arange(4.0)[:, None]), np.arange(4) % 2
    prior = DepthDecay(cut_weights=lambda node, rule: rule.threshold - 1)
    exact = ExactPosterior(compile_grammar(design), prior, DirichletCategorical.symmetric(2), y)
    with pytest.raises(ValueError, match="cut_weights must be positive and finite"):
        chart_for(exact.grammar, exact.prior)


# Both make sense at the root and not below it.
SENSELESS = {
    "probability": Program(lambda node: 0.6 + node.depth, rules="cuts"),
    "weight": DepthDecay(
        0.9, 0.1, rules="cuts", feature_weights=lambda node, rule: 1.0 - node.depth
    ),
}
WALK = {"warmup": 0, "draws": 50, "thin": 4, "random_state": 0}
STUMP = Tree.from_nested({"feature": 0, "threshold": 3.5, "left": {}, "right": {}})
INFERENCES = {
    "exact": lambda prior, X, y: ExactTreeClassifier(prior=prior, bins=None).fit(X, y),
    "local moves": lambda prior, X, y: MetropolisTreeClassifier(prior=prior, **WALK).fit(X, y),
    "regrow": lambda prior, X, y: MetropolisTreeClassifier(
        prior=prior, proposal="regrow", **WALK
    ).fit(X, y),
    "particles": lambda prior, X, y: ParticleTreeClassifier(prior=prior).fit(X, y),
    "edits": lambda prior, X, y: sample_chains(
        ep.key(0),
        TreeModel(
            Design.from_matrix(X), y, EditTree(STUMP, base=prior), DirichletCategorical.symmetric(2)
        ),
        draws=50,
    ),
    "enumeration": lambda prior, X, y: PriorTrees(Design.from_matrix(X), prior).enumerate(),
    "draws": lambda prior, X, y: PriorTrees(Design.from_matrix(X), prior).sample(ep.key(0), 50),
}


@pytest.mark.parametrize(
    ("inference", "prior"),
    slow_but(
        [("enumeration", "weight")],
        list(zip(reversed(INFERENCES), itertools.cycle(SENSELESS), strict=False)),
        few=3,
    ),
)
def test_weights_without_sense_below_the_root_are_refused_everywhere(inference, prior):
    X, y = np.arange(8.0)[:, None], np.array([0, 0, 1, 1, 0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"split_probability|feature_weights must be positive"):
        INFERENCES[inference](SENSELESS[prior], X, y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DepthDecay(cut_weights="wide"), "cut_weights must be 'uniform', 'gap' or a"),
        (lambda: DepthDecay(over="trees"), "over must be"),
        (lambda: DepthDecay(choice="first"), "choice must be"),
        (lambda: DepthDecay(choice="chronological"), "needs rules='cuts'"),
        (
            lambda: DepthDecay(rules="cuts", choice="chronological", over="rules"),
            "excludes weights",
        ),
        (lambda: DepthDecay(feature_weights=(1.0, -1.0)), "numbers of at least 0; got -1.0"),
        (lambda: DepthDecay(feature_weights={"x0": "a"}), "numbers of at least 0; got 'a'"),
    ],
)
def test_laws_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_that_do_not_fit_the_features_are_refused():
    design = Design.from_matrix(np.eye(3))
    with pytest.raises(ValueError, match="2 numbers for 3 features"):
        DepthDecay(feature_weights=(1.0, 2.0)).resolve(design)
    with pytest.raises(ValueError, match="names 'age', which is not one of x0, x1, x2"):
        DepthDecay(feature_weights={"age": 2.0}).resolve(design)
    with pytest.raises(TypeError, match="must be a function"):
        Program(0.5)


def test_other_inferences_refuse_what_they_cannot_do():
    design, y = Design.from_matrix(np.eye(3)), np.arange(3) % 2
    leaf, limits = DirichletCategorical.symmetric(2), Constraints(before=((0, 1),))
    with pytest.raises(ValueError, match="do not support constraints on paths"):
        greedy.pose(TreeModel(design, y, DepthDecay(), leaf, limits))
    with pytest.raises(ValueError, match="cannot weight rules by the DepthDecay's"):
        greedy.pose(TreeModel(design, y, DepthDecay(over="rules"), leaf))
    prior = DepthDecay(rules="cuts", over="rules")
    with pytest.raises(ValueError, match="each_cut=True"):
        ExactPosterior(compile_grammar(design, rules="cuts"), prior, leaf, y)


# ----------------------------------------------------------------------------------- Metropolis


def small_case(law, rules, path):
    """Draw a case of few trees whose choices of a rule `grid_of_choices` can make."""
    for seed in range(1000):
        case = ep.case_of_law(law, rules, "classes", seed, path=path, num_rows=5, most_trees=100)
        tabled = metropolis.posed(case)
        if (np.asarray(tabled.can_cut) @ np.asarray(tabled.by_column)).max() <= 3:
            return case
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "rules", "path"),
    [
        ("chronological", "cuts", ("boxes",)),
        ("all rules by gap and feature", "gaps", ("order", "levels")),
        ("program", "cuts", ("boxes", "levels", "order")),
    ],
)
def test_every_move_is_in_balance_with_the_posterior(law, rules, path):
    metropolis.check_balance(small_case(law, rules, path))
