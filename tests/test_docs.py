"""The documentation names what is public, and its links are checked by something that can fail."""

import re
import sys
from pathlib import Path

import bdtppl
import bdtppl.plotting
from bdtppl.estimators import all_inferences

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_every_public_name_has_a_place_in_the_reference():
    named = set()
    for path in (DOCS / "api").glob("*.md"):
        named |= set(re.findall(r"[\w.]+", path.read_text(encoding="utf-8")))
    generated = {cls.__name__ for own in all_inferences().values() for cls in own.values()}
    public = {*bdtppl.__all__, *bdtppl.plotting.__all__} - generated  # docs/conf.py lists these
    assert not {name for name in public if name not in named and f"bdtppl.{name}" not in named}


def test_every_guide_and_notebook_is_in_a_table_of_contents():
    for folder in (DOCS / "systems", DOCS / "reproduction", DOCS / "api"):
        listed = (folder / "index.md").read_text(encoding="utf-8").split("toctree")[1].split()
        assert {path.stem for path in folder.glob("*.md")} - {"index"} <= set(listed)
    listed = (DOCS / "notebooks" / "index.md").read_text(encoding="utf-8").split()
    assert {path.stem for path in (DOCS.parent / "notebooks").glob("*.py")} <= set(listed)


def test_the_page_of_each_system_opens_with_code_and_its_picture():
    for path in set((DOCS / "systems").glob("*.md")) - {DOCS / "systems" / "index.md"}:
        opening = path.read_text(encoding="utf-8").split("\n## ")[0]
        lines = opening.partition(".. plot::\n")[2].partition("```")[0].splitlines()
        assert ":include-source: true" in lines[0]
        assert 5 <= sum(not line.strip().startswith(":") for line in lines if line.strip()) <= 10


def test_dead_links_are_found(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(DOCS)
    import check_links

    (tmp_path / "other.html").write_text('<p id="here">')
    alive = '<a href="other.html#here"><a href="#top"><a href="https://example.org"><p id="top">'
    (tmp_path / "page.html").write_text(alive)
    assert check_links.main(str(tmp_path)) == 0
    (tmp_path / "broken.html").write_text('<a href="other.html#gone"><img src="none.png">')
    assert check_links.main(str(tmp_path)) == 1
    assert "2 of them dead" in capsys.readouterr().out
    sys.modules.pop("check_links")
