"""Execute the notebooks, each in a kernel of its own, and keep their outputs.

A notebook is written as a script of percent cells, ``notebooks/NAME.py``; what it shows lies beside
it as ``NAME.ipynb``, made anew by each execution. Arguments, if any, name scripts; without them,
all in the folder are executed. Where one fails, its ``.ipynb`` stays as it was.
"""

import os
import resource
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SECONDS_A_CELL = 600
CPU_SECONDS_A_NOTEBOOK = 270  # meant are 90 seconds on two idle cores; a machine may be slow
# ArviZ 0 announces the next version on the first import of each day.
os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning:arviz"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read_script(path: Path) -> nbformat.NotebookNode:
    """Read a script as a notebook without outputs, the same one each time."""
    notebook = jupytext.read(path)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return notebook


def execute(script: Path) -> list[str]:
    """Run one notebook in its own folder, write it beside the script, and say what it lacks."""
    notebook = read_script(script)
    NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(script.parent)}},
    ).execute()
    # A kernel writes its own version here, which would differ from run to run.
    notebook.metadata.get("language_info", {}).pop("version", None)
    partial = script.with_suffix(".partial")
    nbformat.write(notebook, partial)
    os.replace(partial, script.with_suffix(".ipynb"))
    return shortcomings(notebook)


def shortcomings(notebook: nbformat.NotebookNode) -> list[str]:
    """Say what an executed notebook lacks: each has a picture and asserts its conclusion."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    found = []
    if not any("image/png" in output.get("data", {}) for output in outputs):
        found.append("it has no picture")
    if not any("assert " in cell.source for cell in code):
        found.append("it asserts nothing")
    return found


def cpu_seconds() -> float:
    """CPU seconds of all kernels that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str]) -> int:
    """Execute the notebooks, print what each took, and return the exit status."""
    failed = 0
    scripts = [Path(argument).resolve() for argument in arguments] or sorted(FOLDER.glob("*.py"))
    for script in scripts:
        start, cpu_start = time.perf_counter(), cpu_seconds()
        try:
            lacks = execute(script)
            if cpu_seconds() - cpu_start > CPU_SECONDS_A_NOTEBOOK:
                lacks.append(f"it takes more than {CPU_SECONDS_A_NOTEBOOK} CPU s")
            failed += bool(lacks)
            outcome = f"FAILED, {'; '.join(lacks)}" if lacks else "executed"
        except CellExecutionError as error:
            failed += 1
            outcome = f"FAILED\n{error}"
        took = f"{time.perf_counter() - start:.0f} s, {cpu_seconds() - cpu_start:.0f} CPU s"
        print(f"{script.stem} ({took}): {outcome}", flush=True)
    print(f"{len(scripts) - failed} executed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
