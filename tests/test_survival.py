"""Survival by sums of trees: which rows hazards are learned from, curves and their intervals."""

import functools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bdtppl import BARTSurvival, load, plot_survival
from bdtppl.estimators.bart import BART

RNG = np.random.default_rng(1)
X = RNG.normal(size=(150, 2))
EVENT = RNG.exponential(np.exp(-X[:, 0]))
CENSORED = RNG.exponential(2.0, 150)
Y = np.column_stack([EVENT < CENSORED, np.minimum(EVENT, CENSORED)])
FEW = {"trees": 30, "warmup": 50, "draws": 50, "chains": 2, "extensions": 0, "random_state": 0}


@functools.cache
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # short chains may disagree
        return BARTSurvival(**FEW).fit(X, Y)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_hazards_are_learned_from_the_intervals_that_rows_reached(monkeypatch, link):
    seen = {}

    def keep(self, table, y, sample_weight):
        seen.update(table=table, y=y, weight=sample_weight)

    monkeypatch.setattr(BART, "fit", keep)
    model = BARTSurvival(intervals=4, link=link)
    model.fit(X, Y, np.arange(150))
    wanted = []
    for row, (event, time) in enumerate(Y.tolist()):
        begins = 0.0
        for end in model.times_.tolist():
            if time <= begins:
                break
            share = 1.0 if event or time >= end else (time - begins) / (end - begins)
            share = round(share) if link == "probit" else share
            wanted.append((X[row, 0], end, bool(event and time <= end), row * share))
            begins = end
    found = seen["table"]["x0"], seen["table"]["time"], seen["y"], seen["weight"]
    np.testing.assert_allclose(np.array(list(zip(*found, strict=True))), np.array(wanted))


def test_curves_fall_from_1_and_are_products_of_hazards():
    model = fitted()
    draws = model.survival_draws(X[:4])
    table = {"x0": X[:4, 0], "x1": X[:4, 1]}
    hazards = [model.mean_draws({**table, "time": np.full(4, t)})[..., 1] for t in model.times_]
    np.testing.assert_allclose(draws, np.cumprod(1 - np.stack(hazards, axis=-1), axis=-1))
    times = np.append(0.0, (model.times_[:-1] + model.times_[1:]) / 2)
    between = model.survival_draws(X[:4], times)
    assert (between[..., 0] == 1).all()
    np.testing.assert_allclose(between[..., 1:] ** 2, draws[..., :-1] * draws[..., 1:])
    late = model.survival_draws(X[:4], [1e9])[..., 0]
    np.testing.assert_array_equal(late, draws[..., -1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_hazards_that_round_to_1_give_curves_and_scores(link):
    time = np.where(X[:, 0] > 0, 1.0, 100.0)
    model = BARTSurvival(**FEW | {"k": 0.05, "link": link})
    model.fit(X, np.column_stack([np.ones(150), time]))
    draws = model.survival_draws(X, [0.5, 1.0, 50.0, 100.0])
    assert ((draws >= 0) & (draws <= 1)).all()
    assert np.isfinite(model.predict(X)).all()


def test_scores_are_concordances(tmp_path):
    model = fitted()
    risk, pairs = model.predict(X), []
    for i in range(150):
        for j in range(150):
            is_later = Y[i, 1] < Y[j, 1] or (Y[i, 1] == Y[j, 1] and not Y[j, 0])
            if Y[i, 0] and is_later:
                pairs.append((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j]))
    assert model.score(X, Y) == pytest.approx(np.mean(pairs))
    assert model.score(X, Y) > 0.65
    structured = np.array(list(map(tuple, Y.tolist())), [("event", "?"), ("time", "<f8")])
    assert model.score(X, structured) == model.score(X, Y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(X), risk)


def test_figures_show_the_curves():
    ax = plot_survival(fitted(), X[:2], ["first", "second"])
    line = ax.get_lines()[1]
    found = fitted().survival(X[:2], line.get_xdata())
    np.testing.assert_array_equal(line.get_ydata(), found.mean[1])
    assert line.get_label() == "second"
    with pytest.raises(
        ValueError, match="at most 7 rows, with a label each if there are labels; got 8"
    ):
        plot_survival(fitted(), X[:8])


@pytest.mark.slow
def test_intervals_of_survival_hold():
    """Hazards that are not proportional: at each time, 90 % intervals of 10 data sets."""
    rng, times, inside = np.random.default_rng(0), [0.3, 0.6, 1.0], []
    for number in range(10):
        x = rng.integers(0, 2, 200)
        shape = np.where(x, 2.0, 0.7)
        event, censored = rng.weibull(shape), rng.exponential(3.0, 200)
        y = np.column_stack([event < censored, np.minimum(event, censored)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = BARTSurvival(**FEW | {"random_state": number}).fit(x[:, None], y)
        found = model.survival([[0.0], [1.0]], times, level=0.9)
        truth = np.exp(-(np.array(times) ** np.array([[0.7], [2.0]])))
        inside.append((found.low < truth) & (truth < found.high))
    assert np.mean(inside) > 0.8  # of 60; fewer than 48 have a probability of .01 at 90 %


def test_times_that_cannot_be_read_are_refused():
    model = BARTSurvival()
    with pytest.raises(ValueError, match="y must have two columns or fields"):
        model.fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="must say whether the event happened: 1 or 0"):
        model.fit(X, Y[:, ::-1])
    with pytest.raises(ValueError, match="times of y must be finite numbers above 0"):
        model.fit(X, Y * [1, -1])
    with pytest.raises(ValueError, match="There must be events at two times or more"):
        model.fit(X, Y * [0, 1])
    with pytest.raises(ValueError, match="X has a column 'time', a name that is needed"):
        model.fit({"time": X[:, 0]}, Y)
    with pytest.raises(ValueError, match="with a row for each of the 150 times"):
        model.fit(X[:9], Y)
    with pytest.raises(ValueError, match="Hazards need a column 'time'"):
        fitted().predict_proba(X)
    with pytest.raises(ValueError, match="The order of no two times is known"):
        fitted().score(X, Y * [0, 1])
    with pytest.raises(ValueError, match="times must be finite numbers of at least 0"):
        fitted().survival_draws(X, [-1.0])
