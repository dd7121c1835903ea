"""Priors and constraints from TOML files, and their errors."""

import re

import numpy as np
import pytest
from test_cli import EXACT, run

import bdtppl
from bdtppl.cli.specification import parse_prior
from bdtppl.export import to_json
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.leaf_count_priors import Pinball
from bdtppl.models.priors import DepthDecay, LeafPenalty, Program
from bdtppl.prior_files import read_prior_file
from bdtppl.storage.encoding import decode, encode

WHOLE = """# a prior
[prior]
kind = "DepthDecay"
alpha = 0.9
beta = 2
feature_weights = { age = 3.0 }

[constraints]
min_leaf = 5
before = [["age", "start"]]

[constraints.features_at_depth]
0 = ["age"]

[[keep_together]]
start = [-inf, 12]
age = [27, inf]
[[keep_together]]
start = [4, 9]
"""


def written(folder, text):
    path = folder / "prior.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_it_says(tmp_path):
    file = read_prior_file(written(tmp_path, WHOLE))
    assert file.prior == DepthDecay(0.9, 2.0, feature_weights={"age": 3.0})
    assert file.constraints == Constraints(
        min_leaf=5,
        keep_together=[
            KeepTogether({"start": (None, 12), "age": (27, None)}),
            KeepTogether({"start": (4, 9)}),
        ],
        features_at_depth={0: ["age"]},
        before=[("age", "start")],
    )
    counted = written(tmp_path, '[prior]\nkind = "Pinball"\nrate = 3\nmax_leaves = 9')
    assert read_prior_file(counted).prior == Pinball(3.0, max_leaves=9)
    nothing = read_prior_file(written(tmp_path, ""))
    assert nothing.prior is None
    assert nothing.constraints == Constraints()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("= 0.9", "= 2.0", "line 4: alpha must be in (0, 1]; got 2.0."),
        ("alpha", "alfa", "line 4: [prior] has no 'alfa'; it has kind, alpha, "),
        ("[4, 9]", "[9, 4]", "line 19: The box on 'start' must span low <= high"),
        ("[4, 9]", "[4, 9, 9]", "line 19: A box needs [low, high] for 'start'; got [4, 9, 9]."),
        ("0 =", "x =", "line 13: A depth must be a number; got 'x'."),
        ("= 5", "= 0", "line 9: min_leaf must be an integer of at least 1; got 0."),
        ("= 2\n", '= "a"\n', "line 5: beta must be a number; got 'a'."),
        ("age = 3.0", "age = -3", "line 6: feature_weights must be numbers of at least 0; got -3."),
        ('"DepthDecay"', '"Depth"', "line 3: kind must be one of DepthDecay, "),
        ("kind", "sort", "line 2: kind must be one of DepthDecay, "),
        ("[prior]", "[prio", "line 2: Expected ']' at the end of a table declaration."),
        ("[[keep_together]]", "[[boxes]]", "line 15: 'boxes' is no part: prior, constraints, "),
        ('[["age", "start"]]', "3", "line 10: before must list features; got 3."),
        ('[["age", "start"]]', '["age"]', "line 10: before must list pairs of features; got ["),
        ("4, 9]\n", "4, 9", "line 19: Unclosed array."),
        ('"DepthDecay"', "{}", "line 3: kind must be one of DepthDecay, "),
        ("= 0.9", f"= {'9' * 400}", "line 4: alpha is too large for float64."),
    ],
)
def test_every_error_names_its_line(tmp_path, old, new, said):
    path = written(tmp_path, WHOLE.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(f"{path}, {said}")):
        read_prior_file(path)


EDITED = """[prior]
kind = "EditTree"
edit_probability = 0.5
base = { kind = "DepthDecay", rules = "cuts" }
tree = """


def written_rules(prior, model):
    return prior.resolve(model.design_).tree.rules(model.design_.names)


def test_a_tree_to_edit_is_named_or_written_down(tmp_path):
    hue = np.repeat(["red", "blue", "green", "blue"], 20)
    X = {"age": np.tile(np.arange(20.0), 4), "hue": hue}
    y = (X["age"] > 9) & (X["hue"] == "red")
    model = bdtppl.ExactTreeClassifier(bins=4, random_state=0).fit(X, y)
    model.save(tmp_path / "last year")
    (tmp_path / "tree.json").write_text(to_json(model))
    below = model.map_tree_.threshold[model.map_tree_.feature == 0][0]
    nodes = f'{{ column = "age", below = {below}, right = {{ column = "hue", level = "red" }} }}'
    rules = []
    for given in ('"last year"', '"tree.json"', nodes):
        prior = read_prior_file(written(tmp_path, EDITED + given)).prior
        assert prior.edit_probability == 0.5
        assert prior.base == DepthDecay(rules="cuts")
        rules.append(written_rules(prior, model))
    assert rules[0] == rules[1] == model.map_tree_.rules(model.design_.names)
    age = f"age < {below:g}\nage >= {below:g}"
    assert rules[2] == f"{age}\n  hue=red < 0.5\n  hue=red >= 0.5"
    spelt = parse_prior(f"edit-tree:edit_probability=0.5,tree={tmp_path / 'last year'}")
    assert written_rules(spelt, model) == rules[0]
    for given, said in (
        ("3", "line 5: tree must be a path or a table; got 3."),
        ('"none"', "none cannot be read: No such file or directory."),
        ('"prior.toml"', "prior.toml was not written by to_json of bdtppl.export."),
        ('{ column = "age" , left = 3}', "A node of a tree must be a table; got 3."),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            read_prior_file(written(tmp_path, EDITED + given))
    with pytest.raises(ValueError, match="tree: an EditTree needs one, as the path of a saved"):
        parse_prior("edit-tree")


def test_the_program_of_figure_2_is_written_down(tmp_path):
    text = """[prior]
kind = "DepthDecay"
alpha = 1
beta = 1
feature_weights = { x1 = 0.4, x2 = 0.3, x3 = 0.3 }

[constraints]
refused = [["x1", 2.5]]
"""
    file = read_prior_file(written(tmp_path, text))
    weights = {"x1": 0.4, "x2": 0.3, "x3": 0.3}
    assert file.prior == DepthDecay(1.0, 1.0, feature_weights=weights)
    assert file.constraints == Constraints(refused=[("x1", 2.5)])
    with pytest.raises(ValueError, match=r"\[constraints\] has no 'allows_tree'"):
        read_prior_file(written(tmp_path, "[constraints]\nallows_tree = 3"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "has too many brackets or tables inside one another."),
        ('"' + "a = { " * 5000, "line 1: "),
        ("[prior" + ".base" * 5000 + ']\nkind = "EditTree"', "kind must be one of"),
        (f"a = {'9' * 5000}", "contains a number that cannot be read"),
        ("keep_together = [3]", "keep_together must be tables"),
    ],
)
def test_what_no_prior_needs_is_refused_in_a_sentence(tmp_path, text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_prior_file(written(tmp_path, text))


def test_whole_numbers_are_whole(tmp_path):
    counted = written(tmp_path, '[prior]\nkind = "LeafCount"\nmax_leaves = 9.0')
    with pytest.raises(ValueError, match=r"line 3: max_leaves must be a whole number; got 9\.0"):
        read_prior_file(counted)


def test_help_names_the_tables():
    said = run("fit", "--help").stdout
    assert all(table in said for table in ("[prior]", "[constraints]", "[[keep_together]]"))


def test_errors_of_a_fit_are_located(tmp_path):
    file = read_prior_file(written(tmp_path, WHOLE))
    said = "keep_together names 'age', which is not one of x0."
    assert file.locate(said) == f"{file.path}, line 17: {said}"
    assert file.locate("The log evidence is not finite") == "The log evidence is not finite"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    rows = np.random.default_rng(0).integers(0, 5, (30, 3))
    lines = [f"{a},{b},{'uv'[c % 2]}" for a, b, c in rows]
    path.write_text("\n".join(["age,start,y", *lines]))
    return path


@pytest.mark.slow
def test_the_command_line_takes_a_file(table, tmp_path):
    options = ["--prior-file", written(tmp_path, WHOLE), "--json"]
    result = run("fit", table, "--target", "y", *EXACT, *options)
    assert '"DepthDecay(' in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "arguments", "said"),
    [
        ("start = [4", "stat = [4", [], "line 19: keep_together names 'stat'"),
        ('"DepthDecay"', '"None"', [], "line 3: kind must be one of"),
        ("= 5", "= 0", [], "line 9: min_leaf must be an integer"),
        ("", "", ["--prior", "leaf-penalty"], "exclude each other"),
    ],
)
def test_the_command_line_names_the_line(table, tmp_path, old, new, arguments, said):
    path = written(tmp_path, WHOLE.replace(old, new))
    options = [*EXACT, "--prior-file", path, *arguments]
    result = run("fit", table, "--target", "y", *options, status=2)
    assert said in result.stderr


# -------------------------------------------------------------------------------------- as JSON


@pytest.mark.parametrize(
    "part",
    [
        Constraints(
            keep_together=[KeepTogether({"a": (None, 3), 1: (2.5, 4)})],
            features_at_depth={2: ("a", 1)},
            before=[("a", 1)],
        ),
        DepthDecay(0.9, feature_weights={"a": 2.0}, over="rules", cut_weights="gap"),
        DepthDecay(rules="cuts", choice="chronological"),
        DepthDecay(feature_weights=(1.0, 2.0)),
        LeafPenalty(1.5),
    ],
    ids=str,
)
def test_constraints_and_laws_are_saved(part):
    assert decode(encode(part, "part")) == part


def test_functions_are_not_saved():
    with pytest.raises(ValueError, match=r"prior\.cut_weights cannot be saved: it is a function"):
        encode(DepthDecay(cut_weights=lambda node, rule: rule.width), "prior")
    with pytest.raises(ValueError, match=r"prior\.split_probability cannot be saved: it is a f"):
        encode(Program(lambda node: 0.5), "prior")
