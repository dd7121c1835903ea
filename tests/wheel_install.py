"""Build the wheel, install it into a clean environment outside the checkout, and try it there.

The wheel must hold every source file and put nothing but `bdtppl` into site-packages; every module
must import with the declared dependencies alone; a small example must run; and Python started
inside the checkout, where the source folder hides the installation, must say so in one sentence.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from shutil import rmtree

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"bdtppl": "bdtppl", "models": "bdtppl/models", "inference": "bdtppl/inference"}

IMPORT_ALL = """
import importlib, pkgutil
import bdtppl
names = [m.name for m in pkgutil.walk_packages(bdtppl.__path__, "bdtppl.")]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
for name in bdtppl.__all__:
    getattr(bdtppl, name)
print(f"imported {len(names)} modules from {bdtppl.__path__[0]}")
"""

EXAMPLE = """
from sklearn.datasets import load_iris
from bdtppl import ExactTreeClassifier
X, y = load_iris(return_X_y=True)
model = ExactTreeClassifier(bins=4).fit(X, y)
print(f"iris, 4 bins: log evidence {model.log_evidence_:.3f}, accuracy {model.score(X, y):.3f}")
assert model.score(X, y) > 0.9
"""


def build(folder: Path) -> Path:
    """Build the wheel into a folder and return its path."""
    rmtree(ROOT / "build" / "lib", ignore_errors=True)  # files since removed would go in
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("bdtppl-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Exit unless the wheel holds just the sources and templates, all of them under `bdtppl`."""
    wanted = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi")
        or path.name == "py.typed"
        or path.parent.name == "templates"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    if missing := sorted(wanted - held):
        sys.exit(f"the wheel lacks {missing}: is the package listed in pyproject.toml?")
    if surplus := sorted(held - wanted):
        sys.exit(f"the wheel holds what is no source file: {surplus}")
    print(f"{wheel.name}: {len(held)} files, all of them under bdtppl")


def check_shadowed(python: Path) -> None:
    """Exit unless the checkout refuses to hide the installation, in one clear ImportError."""
    result = subprocess.run(
        [python, "-c", "import bdtppl"], cwd=ROOT, capture_output=True, text=True
    )
    last = result.stderr.strip().splitlines()[-1:]
    if result.returncode == 0 or not last or "from its source folder" not in last[0]:
        sys.exit(f"inside the checkout an ImportError was wanted, not: {result.stderr or 'none'}")
    if "another exception" in result.stderr:
        sys.exit(f"one ImportError was wanted, not a chain of them: {result.stderr}")
    print(f"inside the checkout: {last[0]}")


def main() -> None:
    """Build, install and try the wheel; the first failure ends the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        venv.create(folder / "env", with_pip=True)
        binaries = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        python = binaries / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        check_shadowed(python)
        for script in (IMPORT_ALL, EXAMPLE):
            subprocess.run([python, "-c", script], cwd=folder, check=True)
        subprocess.run([binaries / "bdtppl", "--help"], cwd=folder, check=True)


if __name__ == "__main__":
    main()
