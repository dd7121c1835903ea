"""What Jupyter shows of a notebook is what its script says, executed to the end."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def test_there_is_a_script_for_each_notebook():
    assert SCRIPTS
    assert {path.stem for path in SCRIPTS} == {path.stem for path in FOLDER.glob("*.ipynb")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_with_outputs(script):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra `notebooks`")
    pytest.importorskip("jupytext", reason="notebooks need the extra `notebooks`")
    from execute_notebooks import read_script

    shown = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    written = read_script(script)
    sources = [(cell.cell_type, cell.source) for cell in shown.cells]
    assert sources == [(cell.cell_type, cell.source) for cell in written.cells]
    code = [cell for cell in shown.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "assert " in "".join(cell.source for cell in code)
