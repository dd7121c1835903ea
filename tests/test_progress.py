"""Progress is shown after a second, on a terminal alone, and then wiped away."""

import io
import time

import pytest
import rich.console

from bdtppl import progress
from bdtppl.progress import counting, paced, waiting


@pytest.fixture
def terminal(monkeypatch):
    """Stand in for the standard error stream of a terminal; has what was written."""
    written = io.StringIO()
    console = rich.console.Console(file=written, force_terminal=True, width=80)
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    return written


def test_nothing_is_shown_of_what_is_over_soon(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 60.0)
    with waiting("drawing", shown=True), counting("trees", shown=True) as report:
        report(3)
    assert "drawing" not in terminal.getvalue()
    assert "trees" not in terminal.getvalue()


def test_counts_are_shown_when_it_takes_long(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with counting("trees {0}", shown=True) as report:
        report(1234)
        time.sleep(0.2)
    assert "1,234 trees {0}" in terminal.getvalue()


def test_waiting_is_shown_when_it_takes_long(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with waiting("drawing [red]{x}", shown=True):
        time.sleep(0.2)
    assert "drawing [red]{x}" in terminal.getvalue()


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_is_written_where_nobody_watches(shown, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with counting("trees", shown=shown) as report, waiting("drawing", shown=shown):
        assert report is None
    assert capsys.readouterr() == ("", "")


def test_a_pace_is_forecast_once_and_time_runs_out(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("bdtppl.progress.time.monotonic", lambda: now[0])
    counts = []
    told = paced(lambda count, more: counts.append((count, more)), "Training", 101, 150.0)
    over = []
    for count in range(1, 101):
        now[0] = 2.0 + 2 * count  # 2 s a step, after compilation
        over.append(told(count, "loss 1"))
    assert counts[0] == (1, "loss 1")
    # At step 9 there are 92 steps of 2 s left, and the limit leaves 130 s.
    assert capsys.readouterr().err == "Training: about 2 minutes more.\n"
    assert over.index(True) == 74  # step 75 ends at 152 s
    assert not told(101)  # all is done
    quick = paced(None, "Training", 20, None)
    assert not any(quick(count) for count in range(1, 21))
    assert capsys.readouterr().err == ""
