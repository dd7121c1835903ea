"""Fits with checkpoints are killed at random moments, and must come to the bits of one that is not.

Each estimator is fitted once without a break. Then it is fitted with a folder of checkpoints: the
process is killed (SIGKILL) or asked to end (SIGTERM) at a moment that is drawn from the time of the
whole fit, and started again, until all its kills are done; the last start runs to the end. While it
runs, the files in the folder are read again and again: each must be readable at any moment, and
never have less than before. At last the folder is on a full disk, read-only, or there are few file
handles: the fit must then be refused in one sentence, or end as ever.

Run it by ``make kill-test``; it takes a quarter of an hour on two cores. The same ``--seed`` draws
the same shares of the time, though not the same moments to the step.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KEPT_EVERY = 0.05  # seconds

# Settings of fits of some seconds, and what grows in their files.
FITS: dict[str, tuple[dict[str, Any], Callable[[Mapping[str, np.ndarray]], int]]] = {
    "BARTRegressor": (
        {"trees": 50, "chains": 2, "warmup": 200, "draws": 200, "extensions": 1},
        lambda kept: kept[".log_likelihood"].shape[1],
    ),
    "MetropolisTreeClassifier": (
        {"temperatures": 3, "warmup": 2000, "draws": 200, "extensions": 1},
        lambda kept: len(kept[".steps"]),
    ),
    "ParticleTreeRegressor": (
        {"particles": 200, "runs": 12, "bins": 20},
        lambda kept: kept[".num_runs"],
    ),
    "GFlowNetTreeClassifier": (
        {"grid": 5, "max_depth": 2, "steps": 800, "draws": 50},
        lambda kept: len(kept[".history['loss']"]),
    ),
    "DCCTreeRegressor": (
        {
            "iterations": 10,
            "initial_trees": 20,
            "activation_count": 0,
            "chains": 2,
            "warmup": 60,
            "draws": 60,
            "max_splits": 2,
        },
        lambda kept: len(kept["visited"]),
    ),
    "RJHMCTreeClassifier": (
        {"chains": 2, "burn_in": 60, "draws": 60, "warmup": 50, "max_splits": 1},
        lambda kept: len(kept["topology"]),
    ),
    "ExactTreeRegressor": ({"max_seconds": 20.0, "method": "boxes"}, len),
}
ROWS = {"RJHMCTreeClassifier": 40, "DCCTreeRegressor": 40, "BARTRegressor": 1500}
KILLS = [(signal.SIGKILL, 50), (signal.SIGTERM, 20)]


def fit(name: str, folder: str, out: str, limits: str) -> None:
    """Fit in this process, and write the bits of the result."""
    import bdtppl
    from bdtppl.estimators import checkpoints
    from bdtppl.inference.particle import sample

    checkpoints.KEPT_EVERY = KEPT_EVERY
    sample._WORK_AT_ONCE = 1.0  # one run after the other
    warnings.filterwarnings("ignore", "(?!The checkpoint)")
    rng = np.random.default_rng(0)
    rows = ROWS.get(name, 300)
    X = rng.normal(size=(rows, 3))
    y: Any = X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=rows)
    y = y > 0 if name.endswith("Classifier") else y
    model = getattr(bdtppl, name)(**FITS[name][0], random_state=0, checkpoint=folder or None)
    if limits:
        # What is loaded and compiled needs handles too.
        with tempfile.TemporaryDirectory() as elsewhere:
            model.set_params(checkpoint=elsewhere).fit(X, y)
        model.set_params(checkpoint=folder)
        of, value = json.loads(limits)
        if of == "RLIMIT_NOFILE":
            value += len(os.listdir("/proc/self/fd"))
        kind = getattr(resource, of)
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    print("ready", flush=True)
    start = time.monotonic()
    model.fit(X, y)
    seconds = time.monotonic() - start
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):  # what follows is not tried
        resource.setrlimit(kind, (resource.getrlimit(kind)[1],) * 2)
    predicted = model.predict_proba(X) if name.endswith("Classifier") else model.predict(X)
    drawn = model.sample_predictive(X[:5], draws=20)
    arrays = {"predicted": predicted, "drawn": drawn, "seconds": seconds}
    np.savez(out, **arrays)


class Fitting:
    """A process that fits, with what it writes to the error stream."""

    def __init__(self, name: str, folder: Path | None, out: Path, limits: str = ""):
        command = [sys.executable, __file__, "--fit", name, str(folder or ""), str(out), limits]
        cache = Path(tempfile.gettempdir()) / "bdtppl-kill-test-cache"
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True
        )

    def wait_until_ready(self) -> None:
        """Wait until the fit begins."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self, seconds: float, number: signal.Signals) -> bool:
        """End it after some seconds; says whether it had not come to its end before."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(number)
        return self.process.wait(timeout=300) != 0

    def said(self) -> str:
        """Read what it has written to the error stream."""
        self.errors.seek(0)
        return self.errors.read()


def bits(out: Path) -> dict[str, bytes]:
    """Read the result of a fit."""
    with np.load(out) as stored:
        return {name: stored[name].tobytes() for name in ("predicted", "drawn")}


@contextlib.contextmanager
def watched(name: str, folder: Path, faults: list[str], reached: list[int]) -> Iterator[None]:
    """Read the files of a folder again and again; they must be whole, and grow."""
    from bdtppl.array_files import read_arrays
    from bdtppl.estimators.checkpoints import _KIND

    is_over = threading.Event()

    def look() -> None:
        for file in folder.glob("[!.]*.checkpoint"):
            try:
                _, kept = read_arrays(file, _KIND)
                now = int(FITS[name][1](kept))
            except (KeyError, ValueError) as error:
                faults.append(f"unreadable: {error}")
                return
            if reached and now < reached[-1]:
                faults.append(f"had {reached[-1]}, has {now}")
            reached.append(now)

    def watch() -> None:
        while not is_over.wait(0.02):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        look()


@dataclass
class Outcome:
    """What became of the fits of one estimator."""

    name: str
    seconds: float = 0.0
    kills: int = 0
    terms: int = 0
    resumed: int = 0
    starts: int = 0
    ends: int = 0
    faults: list[str] = field(default_factory=list)


def killed_at_random(
    name: str, seed: int, numbers: Mapping[signal.Signals, int], room: Path
) -> Outcome:
    """Kill the fits of one estimator, and compare what they come to."""
    rng = np.random.default_rng([seed, sorted(FITS).index(name)])
    outcome, whole = Outcome(name), room / f"{name}-whole.npz"
    for _ in range(2):  # the first one compiles
        process = Fitting(name, None, whole)
        if process.end(3600, signal.SIGKILL):
            outcome.faults.append(process.said()[-300:])
            return outcome
    with np.load(whole) as stored:
        outcome.seconds = float(stored["seconds"])
    left = [number for number, times in numbers.items() for _ in range(times)]
    rng.shuffle(left)  # pyright: ignore[reportArgumentType]
    folder, out = room / name, room / f"{name}.npz"
    reached: list[int] = []
    while True:
        outcome.starts += 1
        had = bool(reached)
        with watched(name, folder, outcome.faults, reached):
            process = Fitting(name, folder, out)
            process.wait_until_ready()
            if left:
                seconds = float(rng.uniform(0, outcome.seconds))
                is_killed = process.end(seconds, left[0])
            else:
                is_killed = process.end(3600, signal.SIGKILL)
        outcome.resumed += had
        if is_killed:
            if not left:
                outcome.faults.append(process.said()[-300:])
                return outcome
            number = left.pop(0)
            status = process.process.returncode
            outcome.kills += number == signal.SIGKILL
            outcome.terms += number == signal.SIGTERM
            if status not in (-number, 128 + number):
                outcome.faults.append(f"status {status}: {process.said()[-300:]}")
            if status == 143 and "Traceback" in process.said():
                outcome.faults.append("a traceback after SIGTERM")
            continue
        outcome.ends += 1
        if bits(out) != bits(whole):
            outcome.faults.append("other bits")
        shutil.rmtree(folder)
        reached.clear()
        if not left:
            return outcome


NO_FILES = ["RLIMIT_NOFILE", 0]


def without_room(room: Path) -> Iterator[tuple[str, str]]:
    """Fit where checkpoints cannot be written; yields what was tried and what came of it."""
    name = "BARTRegressor"
    whole = bits(room / f"{name}-whole.npz")

    def tried(what: str, folder: Path, limits: Any = None) -> tuple[str, str]:
        out = room / "limited.npz"
        out.unlink(missing_ok=True)
        process = Fitting(name, folder, out, "" if limits is None else json.dumps(limits))
        is_refused, said = process.end(600, signal.SIGKILL), process.said()
        last = (said.strip().splitlines() or [""])[-1]
        if is_refused and limits == NO_FILES and "Error" in last:
            return what, f"refused by a library: {last}"  # which cannot open a file of the system
        if is_refused:
            return what, ("refused" if "cannot be written" in last else f"FAILED: {last}")
        ended = "finished" if bits(out) == whole else "FAILED: other bits"
        return what, ended + (", warned once" if said.count("fit continues") == 1 else "")

    yield tried("files of 4,096 bytes at most", room / "small", ["RLIMIT_FSIZE", 4096])
    for number in (0, 1, 2, 3, 5):
        yield tried(f"{number} file handles left", room / "few", [*NO_FILES[:1], number])
    for what, options in (("a disk of 16 KB", "size=16k"), ("a read-only disk", "ro")):
        mounted = room / "mounted"
        mounted.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(mounted)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            yield what, "not tried: mounting is not permitted"
            continue
        try:
            yield tried(what, mounted / "kept")
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
    locked = room / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if os.access(locked, os.W_OK):
        yield "a read-only folder", "not tried: this user may write everywhere"
    else:
        yield tried("a read-only folder", locked)


def main() -> None:
    """Kill, compare, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the kills to try")
    parser.add_argument("--only", choices=sorted(FITS), action="append", help="estimators to kill")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fit", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fit:
        fit(*given.fit)
        return
    names = given.only or list(FITS)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(given.workers) as workers:
        room = Path(made)
        shares = [
            {number: len(range(place, round(given.share * times), len(names)))
             for number, times in KILLS}
            for place in range(len(names))
        ]  # fmt: skip
        outcomes = []
        row = "{:26} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}  {}"
        print(row.format(
            "estimator", "seconds", "SIGKILL", "SIGTERM", "starts", "resumed", "ends", "faults"
        ))  # fmt: skip
        jobs = workers.map(lambda *of: killed_at_random(*of, room),
                           names, [given.seed] * len(names), shares)  # fmt: skip
        for each in jobs:
            outcomes.append(each)
            numbers = each.kills, each.terms, each.starts, each.resumed, each.ends
            said = "; ".join(each.faults) or "none"
            print(row.format(each.name, f"{each.seconds:.1f}", *numbers, said), flush=True)
        kills, terms = (sum(getattr(each, n) for each in outcomes) for n in ("kills", "terms"))
        failed = any(each.faults for each in outcomes)
        if "BARTRegressor" in names:
            for what, ended in without_room(room):
                print(f"{what}: {ended}", flush=True)
                failed |= ended.startswith("FAILED")
    print(f"{kills} SIGKILLs, {terms} SIGTERMs in {(time.monotonic() - start) / 60:.0f} minutes")
    sys.exit(failed)


if __name__ == "__main__":
    main()
