"""Sums of trees written as lookups predict what the effects of columns and pairs add up to."""

import json
import re
import shutil
import sqlite3
import subprocess
import warnings
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax
from scipy.stats import norm

from bdtppl import BARTClassifier, BARTRegressor
from bdtppl.export import to_html, to_json, to_sql
from bdtppl.models.data.schema import TableWarning

NASTY = 'he said "no" \\ it\'s; </script>*/ --'
LABELS = np.array(["it's", 'a "b"', "nö</script>"])
SHORT = {"trees": 12, "chains": 2, "warmup": 10, "draws": 3, "extensions": 0, "random_state": 0}
GROUPS = {"groups of text": "school", "groups of numbers": "b0"}
SCALES = ["identity", "log", "log1p", "yeo-johnson"]
KINDS = [*SCALES, *GROUPS, "offset", "logit", "probit", "softmax"]


def _table(rng, num_rows=120):
    frame = pd.DataFrame(
        {
            NASTY: rng.normal(size=num_rows).round(2),
            "hue": pd.Categorical(rng.choice(["it's red", NASTY, "5"], num_rows)),
            "size": pd.Categorical(
                rng.choice(["S", "M", "L"], num_rows), ["S", "M", "L"], ordered=True
            ),
            "b0": rng.integers(0, 5, num_rows).astype(float),
            "gapless": rng.gamma(2, size=num_rows),
            "school": rng.choice(["north", "south", "o'hare"], num_rows),
        }
    )
    frame.loc[rng.random(num_rows) < 0.15, NASTY] = np.nan
    frame.loc[rng.random(num_rows) < 0.15, "hue"] = None
    return frame


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    """A model of trees with at most two columns, and rows that are odd in every way."""
    kind, rng = request.param, np.random.default_rng(KINDS.index(request.param))
    frame = _table(rng)
    signal = frame[NASTY].fillna(2) * (frame["hue"] == "5") + frame["b0"] * (frame["size"] == "S")
    signal = signal + frame["gapless"] + 0.1 * rng.normal(size=len(frame))
    settings = SHORT | {"max_depth": 2}
    if kind in ("logit", "probit", "softmax"):
        model = BARTClassifier(**settings, link="probit" if kind == "probit" else "logit")
        y = LABELS[np.digitize(signal, [2, 5] if kind == "softmax" else [3])]
    else:
        part = {"groups": GROUPS.get(kind), "offset": "gapless" if kind == "offset" else None}
        scale = kind if kind in SCALES else "identity"
        model = BARTRegressor(**settings, **part, target_scale=scale)
        y = np.exp(signal / 3) - (kind == "yeo-johnson")
    with pytest.warns(match="disagree|R-hat"):
        model.fit(frame, y)
    odd = _table(rng, 40)
    odd.loc[:9, NASTY] = [-1e9, 1e9, *rng.normal(size=8)]
    odd.loc[:1, "b0"] = [-50, 1e6]
    odd["hue"] = odd["hue"].astype(object)
    odd["size"] = odd["size"].astype(object)
    odd.loc[10:12, "hue"] = "unseen"
    odd.loc[11:14, "school"] = "unseen"
    odd.loc[13:15, "size"] = None
    odd.loc[15:17, "b0"] = np.nan
    if kind != "offset":
        odd.loc[17:20, "gapless"] = np.nan
    rows = pd.concat([frame.astype({"hue": object, "size": object}), odd], ignore_index=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # missing and unknown values are meant
        sums = model.posterior_.sums(model._matrix(rows)).mean(axis=(0, 1))
    return model, rows, sums


def _wanted(model, sums):
    """What is predicted at the posterior mean of the sums [sum, m]."""
    if isinstance(model, BARTRegressor):
        return model.posterior_.scale.inverse(sums[0])
    if len(sums) > 1:
        return softmax(sums, axis=0)
    share = norm.cdf(sums[0]) if model.link == "probit" else expit(sums[0])
    return np.array([1 - share, share])


def _run(expression, frame):
    with closing(sqlite3.connect(":memory:")) as database:
        frame.to_sql("t", database, index=False)
        return [each for (each,) in database.execute(f"SELECT {expression} AS y FROM t")]


def _looked_up(document, frame):
    """Sums by the document of `to_json`, [sum, m]."""
    entries, numbers = [], []
    for column in document["columns"]:
        values = frame[column["name"]]
        if "levels" in column:
            index = {level: place for place, level in enumerate(column["levels"])}
            entries.append([index.get(value, len(index) + pd.isna(value)) for value in values])
            numbers.append(np.zeros(len(values)))
            continue
        below = (np.array(column["cuts"]) <= values.to_numpy()[:, None]).sum(axis=1)
        entries.append(np.where(values.isna(), len(column["cuts"]) + 1, below))
        numbers.append(values.clip(column["low"], column["high"]).fillna(0).to_numpy())
    sums = []
    for each in document["sums"]:
        total = np.full(len(frame), each["constant"])
        for effect in each["effects"]:
            places = effect["columns"]
            total += np.array(effect["table"], float)[tuple(entries[place] for place in places)]
            total += effect.get("slope", 0) * numbers[places[0]]
        sums.append(total)
    return np.array(sums)


def test_tables_are_whole_where_no_tree_has_three_columns(fitted):
    model, rows, sums = fitted
    document = json.loads(to_json(model, tolerance=1e-12))
    assert document["left_out"] < 1e-12
    centred = sums - sums.mean(axis=0) if len(sums) > 1 else sums
    np.testing.assert_allclose(_looked_up(document, rows), centred, atol=1e-8)
    wanted = _wanted(model, sums)
    if model.class_labels is None:
        np.testing.assert_allclose(_run(to_sql(model, tolerance=1e-12), rows), wanted, rtol=1e-6)
        return
    for share, label in zip(wanted, model.classes_, strict=True):
        found = _run(to_sql(model, tolerance=1e-12, probability_of=label), rows)
        np.testing.assert_allclose(found, share, atol=1e-6)
    found = _run(to_sql(model, tolerance=1e-12), rows)
    assert found == model.classes_[wanted.argmax(axis=0)].tolist()


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js is installed")
def test_the_page_looks_up_what_the_model_predicts(fitted, tmp_path):
    model, rows, sums = fitted
    page = to_html(model, tolerance=1e-12)
    script, last = re.findall(r"<script.*?>(.*?)</script>", page, re.DOTALL)
    assert "<" not in script.split("const predict")[0]
    assert not re.search(r"https?:|src=|import\(", page)
    names = [column["name"] for column in json.loads(to_json(model))["columns"]]
    table = [
        [None if pd.isna(value) else value for value in row]
        for row in rows[names].itertuples(index=False)
    ]
    run = f"{script}\nconsole.log(JSON.stringify({json.dumps(table)}.map(look)))"
    (tmp_path / "run.js").write_text(run, "utf-8")
    done = subprocess.run(["node", tmp_path / "run.js"], capture_output=True, timeout=60)
    found = json.loads(done.stdout)
    wanted = np.atleast_2d(_wanted(model, sums)).T
    np.testing.assert_allclose([each["predicted"] for each in found], wanted, 1e-6, 1e-6)
    (tmp_path / "last.js").write_text(last, "utf-8")
    subprocess.run(["node", "--check", tmp_path / "last.js"], check=True, timeout=60)


@pytest.fixture(scope="module")
def deep():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 3 * (X[:, 0] > 0) * (X[:, 1] > 0) * (X[:, 2] > 0)
    with pytest.warns(match="disagree|R-hat"):
        return BARTRegressor(**SHORT, max_depth=4, target_scale="identity").fit(X, y), X


def test_pairs_are_added_until_the_tolerance_is_reached(deep):
    model, X = deep
    effects, matrix = model._sum_effects(None), model._matrix(X)
    f, before = effects.at(matrix).mean(axis=0), np.inf
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2", "x3"])
    counts = []
    for tolerance in (0.9, 0.3, 0.15):
        document = json.loads(to_json(model, tolerance=tolerance))
        assert document["left_out"] <= min(tolerance, before)
        before = document["left_out"]
        wanted = effects.mean.mean() + sum(each.mean(axis=0) for _, each in effects.mains(matrix))
        every = [tuple(effect["columns"]) for effect in document["sums"][0]["effects"]]
        pairs = [columns for columns in every if len(columns) == 2]
        assert pairs == effects.strongest_pairs(len(pairs))
        for pair in pairs:
            wanted += np.diag(effects.pair(pair, matrix, matrix, of_mean=True)[0][0])
        found = _looked_up(document, frame)[0]
        np.testing.assert_allclose(found, wanted, atol=1e-8)
        share = np.mean((f - found) ** 2) / np.var(f)
        assert document["left_out"] == pytest.approx(share)
        assert f"{100 * share:.3g} % of the variance" in to_sql(model, tolerance=tolerance)
        counts.append(len(pairs))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_what_cannot_be_written_is_refused(deep):
    model, X = deep
    with pytest.raises(ValueError, match=r"tolerance=1e-06 cannot be reached: .* leave out 0\.\d+"):
        to_json(model, tolerance=1e-6)
    with pytest.raises(ValueError, match=r"rank must be 0 for sums and tolerance in \(0, 1\)"):
        to_sql(model, tolerance=0)
    with pytest.raises(ValueError, match="probability_of must be a class"):
        to_sql(model, tolerance=0.5, probability_of="a")
    with pytest.raises(TypeError, match="A fitted sum of trees is needed; got str"):
        to_html("tree")
    constant = BARTRegressor(**SHORT, target_scale="identity")
    with pytest.warns(match="disagree|R-hat"), pytest.warns(match="No cut in 'x0'"):
        constant.fit(np.ones((60, 1)), X[:60, 0])
    assert _run(to_sql(constant), pd.DataFrame({"x0": [1.0]})) == pytest.approx(
        constant.predict([[1.0]])
    )
