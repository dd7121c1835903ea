"""Independent tasks on joblib's workers: processes of this machine, or of a dask cluster.

If neither ``n_jobs`` nor a `joblib.parallel_config` requests workers, tasks run in threads of this
process, distributed over JAX's devices if there are several. A task depends on its arguments alone,
and a worker computes it in one thread. So results have the same bits with every backend and any
number of workers or devices.

Shared arguments are written to one array of bytes, which is not sent with each task: dask sends it
to each worker, loky maps it into memory. A worker caches the arguments that it has read, and the
functions that JAX compiled.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from threading import Lock
from typing import Any, cast

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
from joblib import Parallel, delayed, parallel_config
from joblib.parallel import get_active_backend

from bdtppl.models.arrays.threads import as_worker, in_threads, is_worker, num_threads

_SAME = ("bdtppl", "jax", "jaxlib")  # packages that determine the bits of results
_TRIES = 3  # attempts of tasks whose workers were lost
_MOST_ARGUMENTS_KEPT = 4  # sets of shared arguments that a process caches
_SCHEDULER_TIMEOUT = 10  # seconds for a scheduler to answer

_same: set[tuple[str, str]] = set()  # tested clients and workers
_arguments_read: OrderedDict[str, tuple[Callable, tuple]] = OrderedDict()
_reading = Lock()


class WorkersLost(ConnectionError):
    """Workers, or the scheduler of a dask cluster, cannot be reached."""


@contextmanager
def workers(n_jobs: int | None = None, dask: str | None = None) -> Iterator[None]:
    """Use workers for calls in the block.

    Parameters
    ----------
    n_jobs
        Number of workers, as in joblib: -1 for one per core; None for the active setting.
    dask
        Address of a dask scheduler, whose workers compute; None for none.

    Raises
    ------
    ValueError
        If the number is 0, or dask is not installed.
    WorkersLost
        If no scheduler answers at the address.
    """
    if n_jobs == 0:
        raise ValueError("n_jobs must be None or an integer other than 0; got 0.")
    if dask is None:
        with parallel_config(**({} if n_jobs is None else {"n_jobs": n_jobs})):
            yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "A dask cluster requires dask: run `python -m pip install 'bdtppl[dask]'`."
        ) from None
    try:
        client = Client(dask, set_as_default=False, timeout=_SCHEDULER_TIMEOUT)
    except (OSError, ValueError) as error:
        raise WorkersLost(f"No dask scheduler answers at {dask}.") from error
    with client, parallel_config("dask", client=client):
        yield


def num_workers() -> int:
    """Count the workers that `fan_out` would use; 1 if tasks stay in this process.

    Raises
    ------
    WorkersLost
        If a dask cluster has no worker, or does not answer.
    """
    if is_worker():
        return 1
    backend, n_jobs = _active()
    try:
        with _reaching(backend):
            return backend.effective_n_jobs(backend.default_n_jobs if n_jobs is None else n_jobs)
    except TimeoutError:
        raise WorkersLost(
            "The dask cluster has no worker: start some with `dask worker ADDRESS`."
        ) from None


def num_at_once() -> int:
    """Count the tasks that `fan_out` would compute at a time.

    Code with checkpoints submits this many tasks, stores their results, and continues.
    """
    number = num_workers()
    return max(num_threads(), len(_devices())) if number == 1 else number


def fan_out(
    function: Callable,
    items: Iterable[tuple],
    *,
    shared: tuple = (),
    most_threads: int | None = None,
    has_shares: bool = False,
) -> list:
    """Call a function on independent tasks, and return the results in order.

    Parameters
    ----------
    function
        Called as ``function(*shared, *item)``; its result depends on these arguments alone.
    items
        Separate arguments of each task; they are sent with it.
    shared
        Arguments of all tasks, such as data and settings.
    most_threads
        Most threads if there are no workers; one for each core by default.
    has_shares
        Whether the function itself uses `in_shares`: with workers, tasks then run one after
        another, and each of them uses all workers.

    Raises
    ------
    ValueError
        If a worker has another version of bdtppl or JAX than this process.
    WorkersLost
        If the scheduler of a dask cluster was lost, or workers were lost repeatedly.

    Examples
    --------
    >>> fan_out(pow, [(2,), (3,)], shared=(10,))
    [100, 1000]
    """
    items = list(items)
    backend, _ = _active()
    has_workers = num_workers() > 1 or (hasattr(backend, "client") and not is_worker())
    if len(items) < 2 or not has_workers:
        devices = [] if most_threads == 1 else _devices()
        most = num_at_once() if most_threads is None else most_threads
        tasks = [(function, shared, item, devices, number) for number, item in enumerate(items)]
        return in_threads(lambda task: _on_device(*task), tasks, most=most)
    if has_shares:
        return [function(*shared, *item) for item in items]
    _require_same(backend)
    pickled = cloudpickle.dumps((function, shared))
    written, name = np.frombuffer(pickled, np.uint8), hashlib.sha256(pickled).hexdigest()
    error: Any = None
    for _ in range(_TRIES):
        try:
            sent = _sent(backend, written)
            tasks = [delayed(_run_task)(sent, name, _versions(), _portable(item)) for item in items]
            return cast(Any, Parallel)(batch_size=1, pre_dispatch="all")(tasks)
        except _lost(backend) as lost:
            num_workers()  # raises if the scheduler does not answer
            error = lost
    raise WorkersLost(
        f"Workers were lost {_TRIES} times in the same tasks; they may lack memory."
    ) from error


def in_shares(function: Callable, arrays: tuple, *, shared: tuple = ()) -> Any:
    """Call a function on equal shares of arrays, one for each worker, and join the results.

    Parameters
    ----------
    function
        Called as ``function(*shared, *share)``; returns arrays, or nests of them. An entry of their
        first axis depends on that entry of the share alone. Without workers there is one share,
        whose parts the function may compute in threads.
    arrays
        Arrays, or nests of them, whose first axes are equally long.
    shared
        Arguments of all calls; see `fan_out`.

    Examples
    --------
    >>> in_shares(np.add, (np.arange(3), np.ones(3)))
    array([1., 2., 3.])
    """
    number = len(jax.tree.leaves(arrays)[0])
    bounds = np.linspace(0, number, min(number, num_workers()) + 1).astype(int)
    shares = [jax.tree.map(lambda a, i=slice(*each): a[i], arrays) for each in pairwise(bounds)]
    return jax.tree.map(lambda *a: np.concatenate(a), *fan_out(function, shares, shared=shared))


def _active() -> tuple[Any, int | None]:
    """Return joblib's active backend, and its number of workers."""
    return cast(Any, get_active_backend())


def _sent(backend: Any, written: np.ndarray) -> Any:
    """Send bytes to all workers of a dask cluster, which assigns tasks to those that have them."""
    client = getattr(backend, "client", None)
    return written if client is None else client.scatter(written, broadcast=True, hash=False)


def _on_device(function: Callable, shared: tuple, item: tuple, devices: list, number: int) -> Any:
    """Compute a task in this process, on one of JAX's devices if there are several."""
    if len(devices) < 2:
        return function(*shared, *item)
    with jax.default_device(devices[number % len(devices)]):
        return _portable(function(*shared, *item))


def _devices() -> list:
    """List the devices of tasks; none in a worker, or if one has been chosen."""
    is_chosen = is_worker() or cast(Any, jax.config).jax_default_device is not None
    return [] if is_chosen else jax.local_devices()


def _run_task(written: np.ndarray, name: str, versions: dict[str, str], item: tuple) -> Any:
    """Compute a task in a worker."""
    if _versions() != versions:
        raise _unlike("A worker", _versions(), versions)
    with _reading:
        if name not in _arguments_read:
            with jax.enable_x64(True):  # else arrays of double precision would lose it
                _arguments_read[name] = cloudpickle.loads(written.data)
        _arguments_read.move_to_end(name)
        function, shared = _arguments_read[name]
        while len(_arguments_read) > _MOST_ARGUMENTS_KEPT:
            _arguments_read.popitem(last=False)
    with as_worker():
        return _portable(function(*shared, *item))


def _portable(tree: Any) -> Any:
    """Convert JAX's arrays to NumPy, which preserves double precision in transit."""

    def made(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(leaf) if isinstance(leaf, jax.Array) and not is_key else leaf

    return jax.tree.map(made, tree)


@cache
def _versions() -> dict[str, str]:
    return {package: version(package) for package in _SAME}


def _require_same(backend: Any) -> None:
    """Raise ValueError if a worker of a dask cluster has another version of a package."""
    client = getattr(backend, "client", None)
    if client is None:
        return
    with _reaching(backend):
        new = [each for each in client.nthreads() if (client.id, each) not in _same]
    # Standard library only, because a worker may lack this module.
    for package, own in _versions().items() if new else ():
        with _reaching(backend):
            answers = client.run(version, package, workers=new, on_error="return")
        for address, found in answers.items():
            if isinstance(found, PackageNotFoundError):
                raise _unlike(f"The worker {address}", {package: "none"}, {package: own})
            if isinstance(found, str) and found != own:
                raise _unlike(f"The worker {address}", {package: found}, {package: own})
    _same.update((client.id, each) for each in new)


def _unlike(who: str, found: dict[str, str], own: dict[str, str]) -> ValueError:
    package = next(each for each in found if found[each] != own[each])
    return ValueError(
        f"{who} has {package} {found[package]}, and this process {own[package]}: install the same "
        f"version everywhere."
    )


def _lost(backend: Any) -> tuple[type[BaseException], ...]:
    """List the errors that joblib raises if workers are lost."""
    kinds = CancelledError, BrokenProcessPool
    if not hasattr(backend, "client"):
        return kinds
    from distributed import KilledWorker

    return *kinds, KilledWorker, OSError, asyncio.CancelledError


@contextmanager
def _reaching(backend: Any) -> Iterator[None]:
    """Raise WorkersLost if the scheduler of a dask cluster does not answer in the block."""
    client = getattr(backend, "client", None)
    if client is None:
        yield
        return
    try:
        if client.status != "running":
            raise ConnectionError(client.status)
        yield
    except (CancelledError, OSError, asyncio.CancelledError) as error:
        if isinstance(error, TimeoutError) and client.status == "running":
            raise  # there is no worker
        raise WorkersLost(
            "The dask scheduler was lost. Restart it and its workers, and repeat the fit: a fit "
            "with a checkpoint resumes."
        ) from error
