"""What holds for every test: no silent broadcasting, no window, the same examples each time."""

import gc
import os
import subprocess
import sys

# Before anything imports matplotlib or numba, and for the processes that tests start.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("NUMBA_OPT", "1")  # compiles in a tenth less time, and runs as fast

import hypothesis
import jax
import numpyro  # noqa: F401 - before ArviZ 1 puts it off, see `bdtppl.models`
import pytest

from bdtppl.inference.compiling import make_room

# Compiles in a third less time, and on one thread: two processes share two cores.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
FIRST = ("boxes", "bart", "search", "tree_gibbs", "data_as_it_comes", "estimators", "cli")

# Tracing makes many objects that live on, and so does collecting the tests.
gc.set_threshold(100_000, 20, 100)

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation makes a first example slow, which is no failure.
hypothesis.settings.register_profile("bdtppl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bdtppl")


@pytest.fixture(autouse=True)
def _free_memory():
    """Drop compiled code where memory or its maps run short."""
    yield
    make_room()


@pytest.fixture(autouse=True)
def _optimise(request):
    """Compile with the usual optimisations what runs long; other tests mostly compile."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    if request.node.get_closest_marker("runs_long"):
        jax.config.update(name, False)
    yield
    jax.config.update(name, before)


@pytest.fixture(autouse=True)
def _close_figures():
    """Leave no figure to the tests that come after in the same process."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_collection_modifyitems(items):
    """Begin with files that compile what many others use, so that no two processes do at once."""
    place = {f"test_{name}.py": number for number, name in enumerate(FIRST, -len(FIRST))}
    items.sort(key=lambda item: place.get(item.path.name, 0))


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Let tests compile quickly, and once for all of their processes and for the next run.

    Compiling is most of their time. Docstrings, notebooks and the documentation compile as users
    do, with all optimisations. A variable of the environment overrules what is set here.
    """
    options = {
        "jax_disable_most_optimizations": True,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    if config.pluginmanager.hasplugin("cacheprovider"):
        options["jax_compilation_cache_dir"] = str(config.cache.mkdir("jax"))
    for name, value in options.items():
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)  # for the processes that tests start
            jax.config.update(name, value)
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = QUICK if _is_known(QUICK) else ""


def _is_known(flag):
    """Try a flag of XLA in a process of its own, which an unknown one ends."""
    environment = os.environ | {"XLA_FLAGS": flag}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return not subprocess.run(command, env=environment, capture_output=True, check=False).returncode
