"""The house stands: three folders are one package, and names are lazy."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bdtppl

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    *("jax", "numpyro", "blackjax", "optax", "numba"),
    *("arviz", "xarray", "matplotlib", "sklearn", "numpy"),
)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


AS_ARVIZ_1_DOES = """
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec

spec = find_spec("numpyro")
spec.loader = LazyLoader(spec.loader)
sys.modules["numpyro"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["numpyro"])
{first}
import numpyro.distributions as dist

print(hasattr(dist, "distribution"))
"""


@pytest.mark.parametrize(("first", "has_its_names"), [("import bdtppl.models", True), ("", False)])
def test_numpyro_is_whole_after_arviz_has_put_it_off(first, has_its_names):
    found = run_python("-c", AS_ARVIZ_1_DOES.format(first=first))
    assert found.stdout.strip() == str(has_its_names), found.stderr


@pytest.mark.parametrize("name", ["models", "inference"])
def test_folders_refuse_to_be_imported_by_their_bare_names(name):
    result = run_python("-c", f"import {name}")
    assert result.returncode == 1
    assert f"write `from bdtppl.{name} import ...`" in result.stderr.splitlines()[-1]


def test_source_folder_without_its_parts_says_so_in_one_sentence():
    # Without `site` no installation is seen, as where the source folder hides one.
    result = run_python("-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import bdtppl")
    assert result.returncode == 1
    assert "ImportError: bdtppl was imported from its source folder" in result.stderr
    assert result.stderr.count("Traceback") == 1


@pytest.mark.parametrize("module", ["bdtppl", "bdtppl.cli"])
def test_import_loads_nothing_heavy(module):
    script = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    result = run_python("-c", script)
    assert result.stdout.strip() == "[]", result.stderr


def test_every_public_name_resolves():
    for name in bdtppl.__all__:
        assert getattr(bdtppl, name) is getattr(bdtppl, name)
        assert name in dir(bdtppl)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ExactForest'"):
        _ = bdtppl.ExactForest


def test_every_package_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = settings["tool"]["setuptools"]["packages"]
    folders = settings["tool"]["setuptools"]["package-dir"]
    found = {
        ".".join((package, *path.parent.relative_to(ROOT / folder).parts))
        for package, folder in folders.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(found) == sorted(packages)


def test_version_is_that_of_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["version"] == bdtppl.__version__
