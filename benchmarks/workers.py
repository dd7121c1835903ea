"""Benchmark of workers: ``python -m benchmarks.workers [--workers 2] [--iterations 60]``.

It fits DCC-Tree to WU with the settings of Cochrane et al. 2024, in one process with one thread, in
one process with a thread for each core, and with one-threaded workers of a dask cluster on this
machine. Each way is run in fresh processes, first once to compile. Printed are the wall time and
the CPU time of all processes, and the log evidence, which is the same to the last bit.
"""

import argparse
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from joblib import parallel_config

from bdtppl.models.arrays.threads import as_worker
from benchmarks.processes import in_fresh_process
from benchmarks.soft.sets import Runs, dcc_tree, split
from benchmarks.text_table import print_table

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the three ways."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=60, help="T")
    options = parser.parse_args(arguments)
    runs = Runs(range(1), options.iterations, 100)
    rows = []
    for way, number in (("one thread", 0), ("threads", 0), ("dask workers", options.workers)):
        wall, cpu, log_evidence = in_fresh_process(_timed, runs, way, number)
        rows.append(
            [f"{number or ''} {way}".strip(), f"{wall:.1f}", f"{cpu:.1f}", repr(log_evidence)]
        )
        print(*rows[-1], flush=True)
    headings = ["computed by", "wall seconds", "CPU seconds", "log evidence"]
    print_table(f"DCC-Tree on WU, T = {options.iterations}", headings, rows)


def _timed(runs: Runs, way: str, number: int) -> tuple[float, float, float]:
    """Fit twice; wall and CPU seconds of the second fit."""
    data, model = split("wu"), dcc_tree("wu", runs, random_state=0)
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        client: Any = None
        if way == "one thread":
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
            stack.enter_context(as_worker())
        if number:
            from distributed import Client, LocalCluster

            cluster = LocalCluster(number, threads_per_worker=1, dashboard_address=None)
            client = stack.enter_context(Client(stack.enter_context(cluster)))
            for core, address in enumerate(client.run(os.getpid)):
                client.run(os.sched_setaffinity, 0, {core % os.cpu_count()}, workers=[address])
            stack.enter_context(parallel_config("dask"))
        model.fit(data.X, data.y)
        wall, cpu = time.perf_counter(), _cpu_seconds(client)
        model.fit(data.X, data.y)
        wall, cpu = time.perf_counter() - wall, _cpu_seconds(client) - cpu
        return wall, cpu, float(model.log_evidence_)


def _cpu_seconds(client: Any) -> float:
    """CPU seconds of this process, and of the workers if there are any."""
    workers = {} if client is None else client.run(time.process_time)
    return time.process_time() + sum(workers.values())


if __name__ == "__main__":
    main()
