"""Tasks over workers: the bits of one process, and clear errors where workers are lost."""

import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from bdtppl import (
    BARTRegressor,
    DCCTreeRegressor,
    ExactTreeClassifier,
    GreedyModalTreeClassifier,
    MetropolisTreeRegressor,
    ParticleTreeRegressor,
    compare,
)
from bdtppl.estimators import checkpoints
from bdtppl.inference.parallel import WorkersLost, fan_out, in_shares, num_workers, workers
from bdtppl.models.arrays.threads import num_threads

TASKS = [(number,) for number in range(5)]
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(60, 2))
Y = (X[:, 0] > 0.5) + 0.3 * RNG.normal(size=60)
LABELS = np.where(Y > 0.5, "high", "low")
SMALL = {
    "iterations": 8,
    "initial_trees": 20,
    "activation_count": 1,
    "chains": 4,
    "warmup": 60,
    "draws": 20,
    "max_splits": 1,
    "random_state": 0,
}


def described(key, values, number):
    """What a task sees: its threads, its workers, the type of shared values, and a result."""
    drawn = jax.random.normal(jax.random.fold_in(key, number))
    result = float(np.asarray(values).sum() * drawn)
    return num_threads(), num_workers(), str(values.dtype), result


def given():
    with jax.enable_x64(True):
        return jax.random.key(0), jnp.linspace(0.1, 0.7, 9)


def test_tasks_compute_alone_and_in_double_precision():
    shared = given()
    wanted = [described(*shared, *task)[-1] for task in TASKS]
    assert [each[-1] for each in fan_out(described, TASKS, shared=shared)] == wanted
    with workers(2), parallel_config("threading"):
        assert num_workers() == 2
        found = fan_out(described, TASKS, shared=shared)
    assert found == [(1, 1, "float64", result) for result in wanted]
    assert num_workers() == 1


def shared_out(factor, numbers, names):
    return {"product": factor * numbers, "length": np.full(len(names), len(names))}


def task_of_shares(length):
    assert num_workers() == 2
    return in_shares(shared_out, (np.arange(length), np.zeros(length)), shared=(3,))


def test_shares_are_equal_and_joined_in_order():
    arrays = np.arange(5), np.zeros((5, 2))
    assert in_shares(shared_out, arrays, shared=(3,))["length"].tolist() == [5] * 5
    with workers(2), parallel_config("threading"):
        made = in_shares(shared_out, arrays, shared=(3,))
        tasks = fan_out(task_of_shares, [(1,), (4,)], has_shares=True)
    assert made["product"].tolist() == [0, 3, 6, 9, 12]
    assert made["length"].tolist() == [2, 2, 3, 3, 3]
    assert [each["length"].tolist() for each in tasks] == [[1], [2, 2, 2, 2]]


def test_an_error_of_a_task_is_raised_as_it_is():
    with parallel_config("threading", n_jobs=2), pytest.raises(ZeroDivisionError):
        fan_out(divmod, TASKS, shared=(1,))


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="n_jobs must be None or an integer other than 0; got 0"):
        DCCTreeRegressor(**SMALL, n_jobs=0).fit(X, Y)


def comparison(**options):
    models = {
        "exact": ExactTreeClassifier(bins=5, max_depth=2, random_state=0).fit(X, LABELS),
        "greedy": GreedyModalTreeClassifier().fit(X, LABELS),
    }
    return compare(models, X, LABELS, cv=3, **options)


def test_cross_validation_of_scikit_learn_takes_workers():
    model = GreedyModalTreeClassifier(random_state=0)
    alone = cross_val_score(model, X, LABELS, cv=3)
    with parallel_config("threading"):
        np.testing.assert_array_equal(cross_val_score(model, X, LABELS, cv=3, n_jobs=2), alone)


@pytest.fixture
def one_run_a_task(monkeypatch):
    monkeypatch.setattr("bdtppl.inference.particle.sample._WORK_AT_ONCE", 1.0)


# Processes, of this machine and of a dask cluster.


@contextmanager
def _running(*commands, **options):
    """Run modules of Python until the block ends."""
    running = [
        subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, **options)
        for command in commands
    ]
    try:
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()


@contextmanager
def _cluster(folder, *, number=2, **options):
    """Start a scheduler and workers; yields its address and the scheduler's process."""
    pytest.importorskip("distributed", reason="dask is not installed")
    file = folder / "scheduler.json"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    scheduler += ["--no-dashboard", "--scheduler-file", str(file)]
    worker = ["distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"]
    worker += ["--no-dashboard", "--local-directory", str(folder), "--host", "127.0.0.1"]
    with _running(scheduler) as [process], _running(*[worker] * number, **options):
        from distributed import Client

        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(number, timeout=120)
            yield client.scheduler.address, process


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with _cluster(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def alone():
    return DCCTreeRegressor(**SMALL).fit(X, Y)


def require_same(model, other):
    assert model.log_evidence_ == other.log_evidence_
    for mine, theirs in zip(model.components_, other.components_, strict=True):
        assert mine.topology == theirs.topology
        assert mine.evidence == theirs.evidence
        np.testing.assert_array_equal(mine.position, theirs.position)


def slow_process(values, number):
    time.sleep(0.3)
    return os.getpid()


def killing(folder, number):
    """End its own process, the first time that task 2 is computed."""
    mark = folder / "killed"
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return number


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_processes_of_this_machine_give_the_same_bits(alone, tmp_path):
    require_same(DCCTreeRegressor(**SMALL, n_jobs=2).fit(X, Y), alone)
    assert comparison(n_jobs=2).rows() == comparison().rows()
    with workers(2):
        assert fan_out(killing, TASKS, shared=(tmp_path,)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_cluster_gives_the_same_bits(alone, address, tmp_path):
    shared, compared = given(), comparison().rows()
    wanted = [described(*shared, *task)[-1] for task in TASKS]
    with workers(dask=address):
        assert num_workers() == 2
        assert [each[-1] for each in fan_out(described, TASKS, shared=shared)] == wanted
        assert len(set(fan_out(slow_process, TASKS[:2], shared=(np.zeros(1000),)))) == 2
        require_same(DCCTreeRegressor(**SMALL).fit(X, Y), alone)
        assert comparison().rows() == compared
        assert fan_out(killing, TASKS, shared=(tmp_path,)) == [0, 1, 2, 3, 4]


CHAINS = {
    "metropolis": MetropolisTreeRegressor(
        chains=4, warmup=64, draws=40, temperatures=8, extensions=0, random_state=0
    ),
    "bart": BARTRegressor(trees=10, chains=2, warmup=60, draws=80, extensions=0, random_state=0),
    "particle": ParticleTreeRegressor(particles=30, runs=4, random_state=0),
}


def predicted(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short chains disagree
        return clone(CHAINS[name]).fit(X, Y).predict(X)


predicted_alone = functools.cache(predicted)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CHAINS)
def test_chains_and_runs_have_the_same_bits_with_workers(name, address, one_run_a_task):
    with parallel_config("threading", n_jobs=2):
        np.testing.assert_array_equal(predicted(name), predicted_alone(name))
    with workers(dask=address):
        np.testing.assert_array_equal(predicted(name), predicted_alone(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_lost_scheduler_is_said_and_the_checkpoint_resumes(alone, tmp_path, monkeypatch):
    model = DCCTreeRegressor(**SMALL, checkpoint=tmp_path / "kept")
    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    write, written = checkpoints.write_arrays, []
    with _cluster(tmp_path) as (address, scheduler):

        def write_and_kill(file, kind, header, arrays):
            write(file, kind, header, arrays)
            written.append(len(arrays["visited"]))
            if len(written) == 2:
                scheduler.kill()
                scheduler.wait()

        monkeypatch.setattr(checkpoints, "write_arrays", write_and_kill)
        with (
            pytest.raises(WorkersLost, match=r"The dask scheduler was lost\. Restart it and its"),
            workers(dask=address),
        ):
            model.fit(X, Y)
    assert written[-1] < SMALL["iterations"]
    require_same(model.fit(X, Y), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_worker_of_another_version_is_refused(tmp_path):
    other = tmp_path / "bdtppl-9.9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: bdtppl\nVersion: 9.9.9\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    wrong = r"The worker tcp://\S+ has bdtppl 9\.9\.9, and this process \S+: install the same"
    with (
        _cluster(tmp_path, number=1, env=environment, cwd=tmp_path) as (address, _),
        workers(dask=address),
        pytest.raises(ValueError, match=wrong),
    ):
        fan_out(pow, TASKS, shared=(2,))


@pytest.mark.slow
def test_no_scheduler_is_said_in_one_sentence():
    pytest.importorskip("distributed", reason="dask is not installed")
    with (
        pytest.raises(WorkersLost, match=r"No dask scheduler answers at tcp://127\.0\.0\.1:9\."),
        workers(dask="tcp://127.0.0.1:9"),
    ):
        pass


ON_DEVICES = """
import jax
import test_parallel
from bdtppl.inference.particle import sample
sample._WORK_AT_ONCE = 1.0
fitted = [test_parallel.predicted(name).tolist() for name in ("metropolis", "particle")]
print(len(jax.devices()), fitted)
"""


@pytest.mark.slow
def test_any_number_of_devices_gives_the_same_bits(one_run_a_task):
    assert len(jax.devices()) == 1
    alone = [predicted_alone(name).tolist() for name in ("metropolis", "particle")]
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.path.dirname(__file__),
    }
    command = [sys.executable, "-c", ON_DEVICES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"2 {alone}\n"
