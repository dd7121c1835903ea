"""Run the examples in the docstrings of every module of bdtppl.

The modules are imported under their installed names, which `pytest --doctest-modules` cannot do:
it would import the folders `models` and `inference` under those names. Arguments, if any, restrict
the run to modules whose names start with one of them.

Most of their time is compilation, of code that runs once: it is optimised less, and kept where the
build of the documentation, which draws the same examples, finds it.
"""

import doctest
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PACKAGES = ("bdtppl", "bdtppl.models", "bdtppl.inference")
COMPILED = Path(__file__).resolve().parents[1] / "build" / "jax"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    """Name every module of bdtppl, those included that an editable installation maps from afar."""

    def walk(package: str) -> Iterator[str]:
        yield package
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                yield module.name

    return sorted({name for package in PACKAGES for name in walk(package)})


def run(names: list[str]) -> tuple[int, int]:
    """Run the examples of the named modules and count those that passed and those that failed.

    A module that cannot be imported counts as one failure.
    """
    passed = failed = 0
    for name in names:
        try:
            module = import_module(name)
        except Exception as error:
            print(f"{name} cannot be imported: {type(error).__name__}: {error}")
            failed += 1
            continue
        result = doctest.testmod(module, optionflags=OPTIONS)
        passed += result.attempted - result.failed
        failed += result.failed
    return passed, failed


def main(prefixes: list[str]) -> int:
    """Run all examples in an empty folder, print the count, and return the exit status."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "True")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    names = [name for name in module_names() if not prefixes or name.startswith(tuple(prefixes))]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        passed, failed = run(names)
        os.chdir(os.path.dirname(os.path.abspath(__file__)))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
