"""Progress is shown after a second, on a terminal alone, and then wiped away."""

import io
import time

import pytest
import rich.console

from bdtppl import progress
from bdtppl.inference.run import Progress
from bdtppl.progress import counting, following, waiting


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


def test_the_end_of_a_run_is_forecast_once_for_each_length(capsys):
    with following("Training", "steps", shown=False) as told:
        told(Progress(1, 100, "loss 1", None))
        told(Progress(2, 100, "loss 1", 130.0))
        told(Progress(3, 100, "loss 1", 120.0))
        assert capsys.readouterr().err == "Training: about 2 minutes more.\n"
        told(Progress(100, 200, "", 30.0))
        assert capsys.readouterr().err == "Training: about 30 s more.\n"
        told(Progress(101, 300, "", 9.0))  # is not worth it
    assert capsys.readouterr().err == ""
