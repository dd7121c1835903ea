"""Options of the commands that several processes or machines can compute."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from bdtppl.cli.console import refusing

Jobs = Annotated[
    int | None,
    typer.Option(
        help="Processes that compute independent parts, with the same result; -1 for one per core.",
        show_default="threads of one process",
        rich_help_panel="Workers",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Scheduler of a dask cluster whose workers compute independent parts, such as "
        "tcp://host:8786. Use it only on a network that you trust: it runs whatever it "
        "receives.",
        show_default=False,
        rich_help_panel="Workers",
    ),
]


@contextmanager
def using_workers(n_jobs: int | None, dask: str | None) -> Iterator[None]:
    """Use the workers that the options name within the block."""
    if n_jobs is None and dask is None:  # joblib is slow to import
        yield
        return
    from bdtppl.inference.parallel import WorkersLost, workers

    with ExitStack() as stack:
        with refusing(ValueError, OSError):
            if n_jobs is not None and dask is not None:
                raise ValueError("--n-jobs and --dask exclude each other; pass one.")
            stack.enter_context(workers(n_jobs, dask))
        with refusing(WorkersLost):
            yield
