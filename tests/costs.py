"""Print what each test costs: a plugin of pytest, `pytest -p costs`; `COSTS=50` for more lines.

Seconds are CPU seconds of the process and of the processes that it waited for. The first test that
uses a shared fixture or a compiled function pays for it. Seconds of compiling are by the clock: to
trace, to lower and to compile programs of JAX, or to read them from the persistent cache. What
numba compiles counts as running.
"""

import os
import resource
import time
from collections import Counter, defaultdict

import jax.monitoring
import pytest

from bdtppl.inference.compiling import resident_memory

COMPILING = tuple(
    f"/jax/core/compile/{step}_duration"
    for step in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
LINES = int(os.environ.get("COSTS", "30"))
spent: Counter[str] = Counter()
of_test: dict[str, Counter[str]] = defaultdict(Counter)
of_file: dict[str, Counter[str]] = defaultdict(Counter)
BEFORE = pytest.StashKey[Counter]()


def listen(event, seconds, **_):
    spent["compiling"] += seconds * (event in COMPILING)
    spent["programs"] += event == COMPILING[-1]


def now():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() + children.ru_utime + children.ru_stime
    return Counter(spent, cpu=cpu)


def pytest_configure(config):
    jax.monitoring.register_event_duration_secs_listener(listen)
    config.stash[BEFORE] = now()


def pytest_runtest_makereport(item):
    before, after = item.config.stash[BEFORE], now()
    item.config.stash[BEFORE] = after
    cost = {name: after[name] - before[name] for name in after}
    item.user_properties.append(("cost", cost | {"GB": resident_memory()}))


def pytest_runtest_logreport(report):
    if report.when == "teardown":  # it has the properties of all phases
        for name, cost in report.user_properties:
            if name == "cost":
                for costs in (of_test[report.nodeid], of_file[report.nodeid.split("::")[0]]):
                    for part, value in cost.items():
                        costs[part] = (
                            max(costs[part], value) if part == "GB" else costs[part] + value
                        )


def pytest_terminal_summary(terminalreporter):
    for title, costs in (("files", of_file), ("tests", of_test)):
        total = sum(cost["cpu"] for cost in costs.values())
        terminalreporter.section(f"{total:.0f} CPU s: dearest {title}")
        terminalreporter.write_line("CPU s  compiling s  programs    GB")
        for name, cost in sorted(costs.items(), key=lambda item: -item[1]["cpu"])[:LINES]:
            numbers = (cost[part] for part in ("cpu", "compiling", "programs", "GB"))
            terminalreporter.write_line(
                "{:5.1f} {:12.1f} {:9.0f} {:5.2f}  ".format(*numbers) + name
            )
