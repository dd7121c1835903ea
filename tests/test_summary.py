"""Summaries are laid out within 80 columns, and what is long is cut short and counted."""

import numpy as np
import pytest
from rich.console import Console

from bdtppl.estimators.hard import describe_constraints
from bdtppl.models.constraints import Constraints
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.priors import DepthDecay, GreedyPartition, Program
from bdtppl.models.wording import describe_model
from bdtppl.summary import descent_in_words, summary_view

SUMMARY = {
    "prior": "LeafPenalty(log_phi=2)",
    "leaf": "DirichletCategorical(concentration=[1, 1])",
    "rows": 1200,
    "features": 1,
    "bins": None,
    "subproblems": 1,
    "productions": 1234567,
    "log_evidence": -1234.56789,
    "expected_leaves": 2.5,
    "entropy": 0.0,
    "map_probability": 0.00012345,
    "map_leaves": 1,
    "map_rules": "always: 0",
    "split_inclusion": {"x[red]": 0.0},
    "no_cut": [],
}


def lines_of(**changes):
    console = Console(width=80, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(summary_view(SUMMARY | changes))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


def test_numbers_are_rounded_and_counted():
    lines = lines_of()
    assert "  rows             1,200, with 1 feature" in lines
    assert "  sums over        1 set of rows and 1,234,567 ways to split them" in lines
    assert "  log evidence     -1234.568" in lines
    assert "  entropy          0.00, as of 1 equally likely trees" in lines
    assert "Most probable tree  probability 0.000123, 1 leaf" in lines
    assert lines[-1] == "  x[red]  0.000"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "between any two values"),
        ({"bins": 5}, "between at most 5 bins a feature"),
        ({"bins": 5, "binning": "uniform"}, "between at most 5 equal-width bins a feature"),
        ({"grid": 99, "binning": "quantile"}, "99 evenly spaced ones a feature"),
    ],
)
def test_cut_points_are_told(changes, said):
    assert f"  cut points       {said}" in lines_of(**changes)


def test_bars_grow_with_the_probability():
    shares = {"a": 1.0, "b": 0.5, "c": 1 / 48, "d": 0.001}
    bars = [line.split()[2:] for line in lines_of(split_inclusion=shares)[-4:]]
    assert bars == [["█" * 24], ["█" * 12], ["▌"], []]


def test_long_lists_are_cut_and_counted():
    shares = {f"x{j}": j / 100 for j in range(30)}
    lines = lines_of(split_inclusion=shares)
    assert lines[-1] == "  18 more, at most 0.170"
    assert lines[-2].split()[:2] == ["x18", "0.180"]
    lines = lines_of(map_rules="\n".join(f"x < {i}: 0" for i in range(100)))
    assert "  ... and 60 more lines" in lines
    assert "  x < 39: 0" in lines
    assert "  x < 40: 0" not in lines


def test_long_names_wrap():
    lines = lines_of(split_inclusion={"a long name " * 12: 0.25}, map_rules="y " * 100 + ": 0")
    assert sum("a long name" in line for line in lines) > 1


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (DepthDecay(), "DepthDecay(alpha=0.95, beta=1)"),
        (
            DepthDecay(rules="cuts", feature_weights=(1.0, 2.5)),
            "DepthDecay(alpha=0.95, beta=1, rules='cuts', feature_weights=[1, 2.5])",
        ),
        (GreedyPartition(0.9, num_features=7), "GreedyPartition(p=0.9)"),
        (LeafCount(3.0, np.zeros(6), max_leaves=6), "LeafCount(rate=3, max_leaves=6)"),
        (LeafCount(3.0), "LeafCount(rate=3)"),
        (Program(lambda node: 0.5), "Program(split_probability=<lambda>)"),
    ],
)
def test_priors_are_told_with_what_was_chosen(prior, said):
    assert describe_model(prior) == said


def test_constraints_are_told():
    assert describe_constraints(Constraints()) is None
    said = describe_constraints(Constraints(min_leaf=5, before=[("age", "start")]))
    assert said == "min_leaf=5, before=(('age', 'start'),)"
    assert f"  constraints      {said}" in lines_of(constraints=said)
    assert not any("constraints" in line for line in lines_of(constraints=None))


def test_a_rule_that_goes_on_in_a_next_line_keeps_its_indent():
    long = "a" * 70 + " < 1"
    lines = lines_of(map_rules=f"{long}\n    {long}: yes")
    assert lines[lines.index(f"  {long}") + 1 :][:2] == [f"      {'a' * 70} <", "      1: yes"]


def test_of_many_features_those_that_do_nothing_are_counted():
    shares = {f"x{place}": 0.4 * (place < 2) for place in range(20)}
    lines = lines_of(split_inclusion=shares, prior_inclusion=dict.fromkeys(shares, 0.1))
    assert [line.split()[0] for line in lines[-3:]] == ["x0", "x1", "18"]
    assert lines[-1] == "  18 more, at most 0.000"


def test_chains_that_are_too_short_have_an_unknown_agreement():
    chains = {"chains": 2, "draws": 3, "distinct_trees": 6}
    lines = lines_of(**chains, largest_r_hat=None, least_ess=None)
    assert "  agreement        R-hat unknown, effective draws unknown" in lines


def test_chains_that_went_where_others_were_are_said():
    assert descent_in_words({"ancestors": [0, 1, 2]}) == ""
    assert descent_in_words({"ancestors": [1, 1, 2]}).startswith("3 chains that descend from 2:")
