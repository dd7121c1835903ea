"""A browser shows reports: no message on its console, all figures, and no line too wide."""

import html
import json
import re
import shutil
import subprocess

import every_estimator
import numpy as np
import pytest

from bdtppl import ExactTreeClassifier, ExactTreeRegressor, write_report

WIDTHS = (1280, 400)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

# A page of frames as wide as screens, each with a report, that measures them when they are loaded.
_FRAME = '<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>'
_MEASURE = """
<pre id="found"></pre>
<script>
window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, images = [...page.images];
    return {
      width: page.documentElement.clientWidth,
      content: page.documentElement.scrollWidth,
      images: images.length,
      shown: images.filter(each => each.complete && each.naturalWidth > 0 && each.width > 0).length,
      font: parseFloat(frame.contentWindow.getComputedStyle(page.body).fontSize),
    };
  });
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


def browse(page, folder):
    """Load a page as it is, and again inside frames; what the console said, and measures."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    frames = [_FRAME.format(width=width, page=html.escape(page)) for width in WIDTHS]
    (folder / "frames.html").write_text("".join(frames) + _MEASURE, encoding="utf-8")
    console, document = "", ""
    for name in ("page.html", "frames.html"):
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            "--enable-logging=stderr",
            *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"),
            (folder / name).as_uri(),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        document = result.stdout
        console += "".join(line for line in result.stderr.splitlines() if ":CONSOLE" in line)
    found = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert found is not None, document[-500:]
    return console, json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of a classification and a regression, with names that are long."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (60, 3))
    table = dict(zip(["a" * 60, "the width of the widest leaf in mm", "c"], X.T, strict=True))
    classes = np.where(X[:, 0] < 0.5, "x" * 50, "small")
    models = {
        "classes": ExactTreeClassifier(bins=3, draws=25, random_state=0).fit(table, classes),
        "reals": ExactTreeRegressor(bins=3, draws=25, random_state=0).fit(table, 3 * X[:, 0]),
        "soft": every_estimator.fitted("RJHMCTreeRegressor"),
    }
    for name, model in models.items():
        write_report(model, folder / f"{name}.html", target="target_" * 8)
    return {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in models}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "reals", "soft"])
def test_reports_show_whole_in_a_browser(name, pages, tmp_path):
    console, found = browse(pages[name], tmp_path)
    assert console == ""
    assert [each["width"] for each in found] == list(WIDTHS)
    for each in found:
        assert each["content"] <= each["width"]
        assert each["shown"] == each["images"] == pages[name].count("<figure") >= 7
        assert each["font"] >= 15


@pytest.mark.slow
def test_what_is_wrong_with_a_page_is_seen(tmp_path):
    page = (
        "<!DOCTYPE html><p style='width: 700px'>wide</p><figure>"
        "<img src='data:image/png;base64,AAAA'></figure><script>console.error('oh')</script>"
    )
    console, found = browse(page, tmp_path)
    assert "oh" in console
    assert found[1]["content"] > found[1]["width"]
    assert found[0]["shown"] < found[0]["images"]
