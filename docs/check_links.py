"""Check that every link from one built page to another leads somewhere: ``check_links.py FOLDER``.

Links to other sites are left alone, so that nothing is asked of a network.
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the names in it that can be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down links, pictures and anchors."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


@cache
def read(path: Path) -> Page:
    """Read a page once."""
    return Page(path.read_text(encoding="utf-8"))


def is_dead(page: Path, link: str) -> bool:
    """Say whether a link of a page leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return True
    is_page = target.suffix == ".html"
    return bool(parts.fragment) and is_page and unquote(parts.fragment) not in read(target).anchors


def main(folder: str) -> int:
    """Print dead links, and return the exit status."""
    pages = sorted(Path(folder).resolve().rglob("*.html"))
    links = [(page, link) for page in pages for link in read(page).links]
    dead = [(page, link) for page, link in links if is_dead(page, link)]
    for page, link in dead:
        print(f"{page.name}: {link} leads nowhere")
    print(f"{len(pages)} pages, {len(links)} links, {len(dead)} of them dead")
    return 1 if dead or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
