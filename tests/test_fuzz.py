"""A short sample of ``make fuzz``, and what it must find."""

import time

import fuzz
import numpy as np
import pytest
from mutations import mutated_bytes, mutated_value
from tiers import slow_but

QUICK = ("prior_files", "trees", "tables", "parquet")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", slow_but(QUICK, (*QUICK, "models", "checkpoints")))
def test_damaged_files_are_refused_in_a_sentence(name, tmp_path):
    made = fuzz.SUBJECTS[name](tmp_path)
    number = 60 if name in QUICK else 20
    found = {seed: fuzz._try(made, seed) for seed in range(number)}
    assert not {seed: said for seed, said in found.items() if said}


def test_other_errors_are_found():
    def read(given):
        raise KeyError("age")

    assert "KeyError: 'age' (test_fuzz.py:" in fuzz._try(fuzz.Subject(lambda rng: None, read), 0)


class Patient(fuzz._Server):
    """A server whose process answers nothing."""

    def __init__(self):
        context = fuzz.multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=time.sleep, args=(60,), daemon=True)
        self._process.start()
        self._warm = True


def test_what_hangs_is_found_and_ended(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    server = Patient()
    assert server.ask(0) == "more than 0.1 seconds"
    assert not server.is_alive


def test_a_process_that_dies_is_found():
    server = Patient()
    server._theirs.close()
    server._process.kill()
    assert "the process died (exit code -9)" in server._answer(5.0)
    assert fuzz._excess(2 * fuzz.BYTES) == "2.0 GB of memory"


def test_mutations_follow_from_the_seed():
    value = {"a": [1, 2.5, {"b": "text"}], "c": True}
    for mutate, given in ((mutated_bytes, b"[prior]\nalpha = 0.9\n"), (mutated_value, value)):
        once, again = (
            [repr(mutate(np.random.default_rng(seed), given)) for seed in range(200)]
            for _ in range(2)
        )
        assert once == again
        assert len(set(once)) > 150
    assert value == {"a": [1, 2.5, {"b": "text"}], "c": True}
