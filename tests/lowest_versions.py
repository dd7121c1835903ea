"""Try the lowest versions of the dependencies that `pyproject.toml` allows.

They are installed, with the extras of the tests, into an environment of its own, ``build/lowest``,
beside whatever versions their own dependencies have now. Every module must import, and one quick
test of each inference, of saved models, ArviZ and exports must pass. Warnings do not fail: old
packages warn of each other.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from wheel_install import IMPORT_ALL

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "lowest"
MINUTES = 20  # on a busy machine; about three on a quiet one
TESTS = [
    *(
        f"tests/test_arviz.py::test_arviz_takes_every_estimator[{name}]"
        for name in (
            "ExactTreeClassifier",
            "GreedyModalTreeClassifier",
            "MetropolisTreeClassifier",
            "ParticleTreeRegressor",
            "GFlowNetTreeClassifier",
            "DCCTreeRegressor",
        )
    ),
    "tests/test_many_rows.py::test_a_row_gets_the_same_bits_of_sums",
    "tests/test_storage.py::test_a_kept_file_is_still_read",
    "tests/test_export.py::test_onnx_predicts_what_the_tree_predicts",
    "tests/test_export.py::test_shap_values_add_up_to_the_posterior_mean",
]


def main() -> None:
    """Install and try the lowest versions; the first failure ends the run."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, with_pip=True)
    binaries = FOLDER / ("Scripts" if sys.platform == "win32" else "bin")
    python = binaries / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
    install = [binaries / "uv", "pip", "install", "--quiet", "--python", python]
    lowest = ["--resolution", "lowest-direct", "--editable", f"{ROOT}[test]"]
    subprocess.run([*install, *lowest], check=True)
    subprocess.run([python, "-W", "ignore", "-c", IMPORT_ALL], cwd=FOLDER, check=True)
    options = [
        "-q",
        "--durations=5",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=ignore",
        "-m",
        "",
    ]
    tests = [python, "-m", "pytest", *options, *TESTS]
    subprocess.run(tests, cwd=ROOT, check=True, timeout=60 * MINUTES)


if __name__ == "__main__":
    main()
