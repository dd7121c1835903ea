"""Execute the notebooks in place, each in a kernel of its own, and keep their outputs.

Arguments, if any, name the notebooks; without them, every one in the folder `notebooks`.
A notebook that fails is left as it was.
"""

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SECONDS_A_CELL = 900


def execute(path: Path) -> None:
    """Run one notebook from its own folder and write it back with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    # A kernel writes its own version here, which would differ from run to run.
    notebook.metadata.get("language_info", {}).pop("version", None)
    partial = path.with_suffix(".partial")
    nbformat.write(notebook, partial)
    os.replace(partial, path)


def main(arguments: list[str]) -> int:
    """Execute the notebooks, print what each took, and return the exit status."""
    failed = 0
    paths = [Path(argument).resolve() for argument in arguments] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        start = time.perf_counter()
        try:
            execute(path)
            outcome = "executed"
        except CellExecutionError as error:
            failed += 1
            outcome = f"FAILED\n{error}"
        print(f"{path.name} ({time.perf_counter() - start:.0f} s): {outcome}", flush=True)
    print(f"{len(paths) - failed} executed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
