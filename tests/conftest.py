"""What holds for every test: no silent broadcasting, no window, the same examples each time."""

import os
import sys
from collections import Counter

# Before anything imports matplotlib, and for the processes that tests start.
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax
import numpyro  # noqa: F401 - before ArviZ 1 puts it off, see `bdtppl.models`
import pytest

from bdtppl.inference.compiling import make_room

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation makes a first example slow, which is no failure.
hypothesis.settings.register_profile("bdtppl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bdtppl")


@pytest.fixture(autouse=True)
def _make_room():
    """Make room for what further tests compile."""
    yield
    make_room()


@pytest.fixture(autouse=True)
def _close_figures():
    """Leave no figure to the tests that come after in the same process."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_collection_modifyitems(config, items):
    """Run files of few slow tests first: where time runs out, most subjects have had theirs."""
    if config.option.markexpr == "slow":
        number = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: number[item.path])


def pytest_configure(config):
    """Let the fast run compile quickly, and once for all of its processes and for the next run.

    Compiling is most of its time. The slow run compiles as users do, with all optimisations. A
    variable of the environment overrules what is set here.
    """
    if config.option.markexpr != "not slow":
        return
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
