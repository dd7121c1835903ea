"""The README's example prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

from bdtppl.models.priors import DepthDecay
from bdtppl.prior_files import read_prior_file

README = Path(__file__).parent.parent / "README.md"


def test_the_example_prints_what_is_shown(tmp_path):
    text = README.read_text()
    code, shown = (
        re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "text")
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == shown


def test_the_file_of_a_prior_is_one(tmp_path):
    path = tmp_path / "prior.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)[1])
    file = read_prior_file(path)
    assert file.prior == DepthDecay(0.9, feature_weights={"age": 3.0})
    assert file.constraints.looks_at_path
