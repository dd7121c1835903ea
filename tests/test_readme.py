"""The examples of the README, two guides and CONTRIBUTING print what is shown there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import slow_but

from bdtppl.models.priors import DepthDecay
from bdtppl.prior_files import read_prior_file

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
COMMAND_LINE = DOCS / "command_line.md"
OTHERS = [DOCS / "working_with.md", DOCS / "reading_results.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", slow_but([README], [README, *OTHERS]), ids=lambda page: page.stem)
def test_the_examples_print_what_is_shown(page, tmp_path):
    text = page.read_text()
    code, shown = (
        "".join(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)) for kind in ("python", "text")
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == shown


def test_the_file_of_a_prior_is_one(tmp_path):
    path = tmp_path / "prior.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", COMMAND_LINE.read_text(), re.DOTALL)[1])
    file = read_prior_file(path)
    assert file.prior == DepthDecay(0.9, feature_weights={"age": 3.0})
    assert file.constraints.looks_at_path
