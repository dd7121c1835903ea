"""Reports: one page that says what the model says, needs nothing else, and is written whole."""

import base64
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from typer.testing import CliRunner

from bdtppl import (
    BARTClassifier,
    BARTRegressor,
    DCCTreeClassifier,
    ExactTreeClassifier,
    GFlowNetTreeClassifier,
    GreedyModalTreeRegressor,
    MetropolisTreeClassifier,
    ParticleTreeClassifier,
    RJHMCTreeClassifier,
    write_report,
)
from bdtppl.cli import app
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.leaf_count_priors import LeafCount, Pinball
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.plotting.forecasts import Forecasts
from bdtppl.report import background
from bdtppl.report.background import data, evidence
from bdtppl.report.blocks import Code
from bdtppl.report.cautions import cautions
from bdtppl.report.page import _findings
from bdtppl.report.predictions import predictions
from bdtppl.report.scores import confusion_table, score_table
from bdtppl.report.subject import Subject
from bdtppl.report.words import (
    constraints_in_words,
    prior_in_words,
    soft_model_in_words,
)

SECTIONS = [
    "In short",
    "The data",
    "The model",
    "Evidence",
    "The likely trees",
    "Predictions",
    "What the columns do",
    "Diagnostics",
]
NASTY = '<b onclick="x()">size & "hue"</b>'
EMPTY = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """What stands in a page: its text, its pictures, its headings, and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.images, self.open, self.text, self.tags = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def of(self, tag):
        return [text for where, text in self.text if where == tag and text]


def read(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = {NASTY: rng.uniform(0, 1, 60), "site": rng.choice(["<north>", "south"], 60).astype(object)}
    return X, np.where(X[NASTY] + 0.2 * rng.standard_normal(60) < 0.5, "<i>no", "yes")


@pytest.fixture(scope="module")
def classifier(rows):
    return ExactTreeClassifier(bins=3, draws=25, random_state=0).fit(*rows)


@pytest.fixture(scope="module")
def page(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    write_report(classifier, path, target="<u>answer")
    return path


def test_a_report_has_all_sections_and_says_what_the_model_says(page, classifier):
    found = read(page)
    assert found.of("h2") == SECTIONS
    assert found.open == []
    said = " ".join(text for _, text in found.text)
    assert f"{classifier.log_evidence_:.3f}" in said
    assert f"{classifier.exact_.entropy:.2f}, as of" in said
    assert classifier.rules().splitlines()[0] in said
    for share in classifier.exact_.split_inclusion:
        assert f"{share:.3f}" in said
    forecasts = Forecasts.of(classifier)
    right = (forecasts.mean.argmax(axis=1) == forecasts.y).mean()
    assert f"{right:.1%}" in said
    assert found.of("h1") == ["<u>answer: a Bayesian decision tree"]
    assert plt.get_fignums() == []


def test_a_report_needs_nothing_else(page):
    found, text = read(page), page.read_text(encoding="utf-8")
    assert "script" not in found.tags
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "url(" not in text
    assert "@import" not in text
    assert len(found.images) == found.tags.count("figure") >= 7
    for image in found.images:
        assert image["alt"]
        kind, data = image["src"].split(";base64,")
        assert kind in ("data:image/svg+xml", "data:image/png")
        assert len(base64.b64decode(data)) > 1000


def test_names_are_no_markup(page):
    text = page.read_text(encoding="utf-8")
    assert not {"b", "i", "u", "north"} & set(read(page).tags)
    assert "&lt;b onclick=" in text
    assert "<b onclick" not in text


@pytest.mark.slow
def test_new_rows_are_judged_and_must_fit(classifier, rows, tmp_path):
    X, y = rows
    part = {name: values[:20] for name, values in X.items()}
    write_report(classifier, tmp_path / "new.html", part, y[:20])
    assert "20 rows not seen in training" in " ".join(
        text for _, text in read(tmp_path / "new.html").text
    )
    before = (tmp_path / "new.html").read_bytes()
    with pytest.raises(ValueError, match="X and y belong together"):
        write_report(classifier, tmp_path / "new.html", part)
    assert (tmp_path / "new.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["new.html"]
    with pytest.raises(NotFittedError):
        write_report(ExactTreeClassifier(), tmp_path / "other.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        write_report(classifier, tmp_path / "file" / "page.html")


@pytest.mark.slow
def test_a_regression_without_evidence_has_a_report(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (50, 2))
    model = GreedyModalTreeRegressor().fit(X, np.where(X[:, 0] < 0.4, 1.0, 4.0))
    write_report(model, tmp_path / "page.html", target="height", title="Heights")
    found = read(tmp_path / "page.html")
    assert found.of("h1") == ["Heights"]
    assert any("not a posterior" in text for text in found.of("p"))
    assert any("root mean squared error" in text for text in found.of("th"))


@pytest.mark.slow
def test_the_command_line_writes_reports(rows, tmp_path, monkeypatch):
    X, y = rows
    monkeypatch.chdir(tmp_path)
    lines = [f"{a:.3f},{b},{c}" for a, b, c in zip(X[NASTY], X["site"], y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["size,site,answer", *lines]))
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    fit = ["fit", "table.csv", "--target", "answer", "--model", "greedy-modal", "--report"]
    result = run(app, fit)
    assert result.exit_code == 0, result.output
    assert "table-report.html" in result.stdout
    assert read(tmp_path / "table-report.html").of("h1") == ["answer in table.csv"]
    result = run(app, [*fit, "--out", "model"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model" / "report.html").exists()
    result = run(app, ["report", "model", "--table", "table.csv", "--out", "new.html", "--json"])
    assert result.exit_code == 0, result.output
    assert '"report": "new.html"' in result.stdout
    assert any("60 rows not seen" in t for t in read(tmp_path / "new.html").of("caption"))
    result = run(app, ["report", "nowhere"])
    assert result.exit_code == 2
    assert "nowhere is not a saved model" in result.stderr


@pytest.mark.slow
def test_repeated_rows_count_as_often_as_they_were_observed():
    rng = np.random.default_rng(0)
    X = {"size": rng.normal(size=12), "site": rng.choice(["north", "south"], 12).astype(object)}
    X["size"][3], X["site"][5] = np.nan, None
    y, weights = rng.normal(size=12), np.arange(12) % 4
    model = GreedyModalTreeRegressor(max_depth=1).fit(X, y, sample_weight=weights)
    observed = {name: np.repeat(values, weights) for name, values in X.items()}
    plain = GreedyModalTreeRegressor(max_depth=1).fit(observed, np.repeat(y, weights))
    found = list(data(Subject(model, "target")))
    assert found == list(data(Subject(plain, "target")))
    assert found[0].text == "18 rows were used to learn target."
    assert [row[-1] for row in found[-1].rows] == ["3", "1"]


def test_a_lower_bound_is_not_called_the_evidence():
    model = GreedyModalTreeRegressor(max_depth=1).fit([[0.0], [1.0], [2.0]], [0.0, 0.1, 5.0])
    said, facts = list(evidence(Subject(model, "target")))
    assert "is not known" in said.text
    assert facts.facts["log evidence"].startswith("at least")


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (
            {"map_leaves": 1, "map_probability": 0.5, "split_inclusion": {}},
            "has 1 leaf and a share",
        ),
        ({"map_leaves": 1, "feature_importance": {}}, "The tree has 1 leaf."),
        ({"map_leaves": 2, "feature_importance": {}}, "The tree has 2 leaves."),
        ({"topologies": [{"splits": 1, "probability": 0.5}]}, "has 1 split and the probability"),
    ],
)
def test_one_is_singular(summary, said):
    model = SimpleNamespace(probability_name="share of the draws")
    subject = SimpleNamespace(model=model, summary=summary, shares={}, forecasts=None)
    assert said in _findings(subject)[0]


# Words


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (LeafPenalty(2.0), "7.389 times less probable a priori for each"),
        (DescriptionLength(5.5), "lowers the log prior probability of a tree by 5.5"),
        (DepthDecay(0.9, 1.0), "probability 0.9, a node below it with 0.45, one"),
        (DepthDecay(0.9, 1.0, cut_weights="gap"), "anywhere in the node's range"),
        (GreedyPartition(0.5), "probability 0.5, a node below it with 0.25, one"),
        (LeafCount(4.0, max_leaves=9), "Poisson distribution of rate 4, between 1 and 9"),
        (Pinball(3.0, 2.0), "Poisson variable of rate 3, at most 20"),
    ],
)
def test_priors_in_words(prior, words):
    assert words in " ".join(prior_in_words(prior))


def test_leaves_and_constraints_in_words():
    assert "concentration 1 for each class: as if 1 row of each" in DirichletCategorical.symmetric(
        3
    ).in_words("abc")
    uneven = DirichletCategorical(np.array([1.0, 0.5])).in_words(["yes", "no"])
    assert "concentrations yes 1 and no 0.5" in uneven
    said = NormalInverseGamma(10.0, 2.0, 3.0, 8.0).in_words(None)
    assert "expected near 10, which counts as much as 2 rows" in said
    assert "a prior mean of 4 (a standard deviation of 2)" in said
    assert "of infinite mean" in NormalInverseGamma(0.0, 1.0, 0.5, 1.0).in_words(None)
    limits = Constraints(min_leaf=5, max_depth=2, before=(("age", "start"),))
    assert constraints_in_words(limits) == [
        "A leaf has at least 5 rows.",
        "A tree has at most 2 levels of splits.",
        "Splits on start occur only below a split on age.",
    ]
    said = " ".join(soft_model_in_words(SoftRegression(mean_scale=3.0), 0.025, None))
    assert "about 0.025" in said
    assert "standard deviation 3" in said
    said = " ".join(
        soft_model_in_words(SoftClassification(concentration=(1.0, 1.0)), 0.1, ["a", "b"])
    )
    assert "compound likelihood" in said


# Warnings


def chains(**diagnostics):
    found = {name: {"r_hat": r, "ess": e} for name, (r, e) in diagnostics.items()}
    model = MetropolisTreeClassifier()
    model.diagnostics_, model.num_overflows_ = found, np.zeros(4, int)
    model.constraints_, model.powers_ = Constraints(), np.ones(1)
    return model


def test_chains_that_disagree_or_hardly_move_are_named():
    assert cautions(chains(log_joint=(1.01, 900.0))) == []
    (said,) = cautions(chains(log_joint=(1.3, 900.0), num_leaves=(1.0, 400.0)))
    assert "disagree about the log joint: R-hat is 1.30" in said
    (said,) = cautions(chains(num_leaves=(1.02, 12.0)))
    assert "the number of leaves is only 12" in said
    (said,) = cautions(chains(prediction_0=(1.1, 40.0), prediction_9=(1.4, 9.0)))
    assert "disagree about the predictions of rows: R-hat is 1.40" in said
    (said,) = cautions(chains(prediction_0=(1.01, 40.0), prediction_9=(1.0, 9.0)))
    assert "the predictions of rows is only 9" in said
    model = chains()
    model.num_overflows_ = np.array([0, 7])
    model.posterior_ = SimpleNamespace(trees=SimpleNamespace(capacity=63))
    (said,) = cautions(model)
    assert "capacity of 63 nodes 7 times" in said
    model = chains()
    model.powers_ = np.array([0.0, 1.0])
    model.posterior_ = SimpleNamespace(log_evidence=-3.0, log_evidence_se=0.8)
    (said,) = cautions(model)
    assert "has a standard error of 0.80" in said


@pytest.mark.parametrize(
    ("size", "ess", "why"),
    [
        ((1, 250), 200.0, "assessed: there is one chain."),
        ((2, 3), np.nan, "assessed: there are 3 draws a chain."),
        ((1, 1), np.nan, "assessed: there is one chain of 1 draw."),
        ((4, 250), 200.0, "assessed: of the log joint and the predictions of rows R-hat has no"),
    ],
)
def test_chains_that_cannot_be_compared_are_no_good_news(size, ess, why):
    model = chains(log_joint=(np.nan, ess), prediction_0=(np.nan, ess), prediction_9=(np.nan, ess))
    model.posterior_ = SimpleNamespace(num_leaves=np.ones(size))
    (said,) = cautions(model)
    assert why in said


@pytest.mark.parametrize("name", ["log_evidence", "log_partition"])
def test_an_error_that_is_not_known_is_no_good_news(name):
    model = ParticleTreeClassifier()
    model.prior_ = DepthDecay() if name == "log_evidence" else LeafPenalty()
    model.num_overflows_, model.log_partition_se_ = np.zeros(1), np.nan
    model.log_found_, model.log_partition_ = -2.0, -1.0
    model.effective_size_ = np.full((3, 1), 50.0)
    model.posterior_ = SimpleNamespace(log_evidence_se=np.nan, weights=np.full(200, 1 / 200))
    (said,) = cautions(model)
    assert "is unknown, because" in said
    assert "several runs, and there was one" in said
    assert ("log evidence" in said) == (name == "log_evidence")


def test_a_policy_that_is_not_the_posterior_is_named():
    class Policy(GFlowNetTreeClassifier):
        log_partition_, learned_log_partition_, pareto_k_ = -5.0, -5.1, 0.3
        log_partition_se_, prior_, effective_size_ = 0.1, LeafPenalty(), 800.0

        def summary(self):
            return {"effective_size": 800.0}

    model = Policy()
    assert cautions(model) == []
    model.learned_log_partition_ = -4.5
    (said,) = cautions(model)
    assert "is -4.50 as learned and -5.00 by the weights" in said
    model.pareto_k_ = 0.9
    assert "Pareto k 0.90, above 0.7" in cautions(model)[0]


def test_topologies_whose_chains_cannot_be_compared_are_said_once():
    unknown = {"pareto_k": 0.1, "r_hat": None, "divergences": 0}
    exact = {"pareto_k": None, "r_hat": None, "divergences": None}
    model = DCCTreeClassifier(chains=1)
    topologies = [SimpleNamespace(code=code) for code in ("0", "100", "11000")]
    model.posterior_ = SimpleNamespace(
        topologies=topologies,
        probability=[0.2, 0.4, 0.4],
        log_evidence_ses=[0.0, 0.1, 0.1],
        log_evidence_se=0.1,
    )
    model.diagnostics_ = {"0": exact, "100": unknown, "11000": unknown}
    model.prior_mass_ = 1.0
    (said,) = cautions(model)
    assert "assessed: there is one chain." in said
    model.diagnostics_ = dict.fromkeys(model.diagnostics_, exact)
    assert cautions(model) == []
    model.posterior_.log_evidence_ses[1] = 0.4
    (said,) = cautions(model)
    assert "topology 100, of probability 0.40, log evidence has a standard error of 0.40" in said


def test_chains_that_all_descend_from_one_are_said():
    model = RJHMCTreeClassifier(chains=4)
    model.ancestors_ = np.array([1, 1, 2, 1])
    assert cautions(model) == []
    model.ancestors_ = np.array([1, 1, 1, 1])
    (said,) = cautions(model)
    assert "all chains moved to the state of chain" in said


def test_intervals_that_do_not_hold_are_named():
    model, y = chains(), np.zeros(200)
    uniform = (np.arange(200) + 0.5) / 200

    def said(cdf):
        return cautions(model, Forecasts(y, y, y, cdf, np.ones(200)))

    assert said(uniform) == []
    (narrow,) = said(np.where(np.arange(200) % 2, 0.001, uniform))
    assert narrow.endswith("the predictive intervals are too narrow.")
    (wide,) = said(0.3 + 0.4 * uniform)
    assert wide.endswith("the predictive intervals are wider than necessary.")
    (shape,) = said(np.concatenate([np.linspace(0.06, 0.5, 180), [0.01] * 10, [0.99] * 10]))
    assert shape.startswith("Targets do not follow their predictive")
    (rough,) = cautions(model, Forecasts(y, y, y, uniform, np.where(np.arange(200) < 3, 0.01, 1)))
    assert "for 3 of 200 rows" in rough


FEW = {"trees": 5, "chains": 2, "warmup": 10, "draws": 10, "extensions": 0, "random_state": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_sum_of_trees_has_no_empty_section_and_counts_splits_by_column(rows, tmp_path):
    X, _ = rows
    model = BARTClassifier(**FEW).fit({"size": X[NASTY], "site": X["site"]}, np.arange(60) % 3)
    write_report(model, tmp_path / "page.html")
    found = read(tmp_path / "page.html")
    names = {"The likely trees": "The sum of trees"}
    assert found.of("h2") == [names.get(each, each) for each in SECTIONS if each != "Evidence"]
    assert {"size", "site"} < {*found.of("th")}
    assert not any("site=" in text for text in found.of("th"))
    shares = model.summary()["feature_importance"]
    np.testing.assert_allclose([*shares.values()], model.feature_importances_, atol=0.05)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_intervals_that_do_not_hold_come_with_settings_to_try():
    y = np.exp(2 * np.random.default_rng(0).standard_normal(200))
    model = BARTRegressor(target_scale="identity", **FEW).fit(np.arange(200)[:, None] % 7, y)
    subject = Subject(model, "y", command="bdtppl fit t.csv --target y")
    *_, said = cautions(model, subject.forecasts)
    assert said.endswith(' Try target_scale="log" or noise_trees=40.')
    (code,) = [block for block in predictions(subject) if isinstance(block, Code)]
    assert code.text.splitlines() == [
        'bdtppl fit t.csv --target y --target-scale "log"',
        "bdtppl fit t.csv --target y --noise-trees 40",
    ]
    assert not model.set_params(noise_trees=40, target_scale="auto").other_noise


def test_a_depth_that_the_search_chose_is_named():
    X, y = np.arange(40.0)[:, None], np.arange(40) % 2
    (said,) = cautions(ExactTreeClassifier(method="boxes").fit(X, y))
    assert "levels were not considered" in said


# Scores


def test_scores_are_those_of_the_textbook():
    probability = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]])
    y = np.array([0, 1, 1, 0])
    log_density = np.log(probability[np.arange(4), y])
    found = score_table(Forecasts(y, probability, log_density, None), "4 rows", ranks=True)
    brier = np.mean([2 * 0.3**2, 2 * 0.2**2, 2 * 0.6**2, 2 * 0.1**2])
    wanted = [("75.0%", "50.0%"), (f"{log_density.mean():.3f}", f"{np.log(0.5):.3f}")]
    wanted += [(f"{brier:.3f}", "0.500"), ("1.000", "0.500")]  # both of 1 are above both of 0
    assert [tuple(row[1:]) for row in found.rows] == wanted
    assert found.is_number == [False, True, True]
    table = confusion_table(Forecasts(y, probability, log_density, None), ["a", "b"])
    assert table.rows == [["a", "2", "0"], ["b", "1", "1"]]

    y, mean = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0])
    found = score_table(Forecasts(y, mean, np.zeros(3), np.array([0.5, 0.02, 0.8])), "3 rows")
    cells = {row[0]: row[1] for row in found.rows}
    assert cells["root mean squared error"] == f"{np.sqrt(1 / 3):.4g}"
    assert cells["share of the variance explained"] == f"{1 - (1 / 3) / y.var():.1%}"
    assert cells["targets inside the 90% interval"] == "66.7%"


@pytest.mark.slow
def test_the_way_to_fit_it_again_is_whole(classifier, rows, tmp_path):
    write_report(classifier, tmp_path / "a.html", *rows)
    said = " ".join(read(tmp_path / "a.html").of("code"))
    assert "from bdtppl import ExactTreeClassifier model = ExactTreeClassifier(" in said
    table = tmp_path / "a table.csv"
    table.write_text("a,y\n" + "".join(f"{row},{row // 20}\n" for row in range(40)))
    given = ["fit", str(table), "--target", "y", "--model", "greedy-modal", "--report"]
    result = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    page = read(tmp_path / "out" / "report.html")
    assert page.of("h1") == ["y in a table.csv"]
    assert f"bdtppl fit '{table}' --target y --model greedy-modal" in " ".join(page.of("code"))


def test_the_way_to_fit_it_again_runs():
    together = KeepTogether({"x0": (1.0, None)})
    model = GreedyModalTreeRegressor(
        prior=DepthDecay(0.9, 1.0, feature_weights=(1.0, 2.0)),
        leaf=NormalInverseGamma(3.0),
        constraints=Constraints(keep_together=[together]),
    )
    text = background._in_python(model)
    names: dict = {}
    exec(text.replace("model.fit(X, y)", ""), names)  # noqa: S102: the code is our own
    assert repr(names["model"]) == repr(model)
