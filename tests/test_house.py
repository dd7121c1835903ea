"""The source of the three floors: where imports go; limits of names, functions, files and lines.

Each check is a pure function of sources, so that a twin can show it one beyond the limit. Lower
`MOST_LINES_OF_CODE` when the code gets shorter.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "models": ("bdtppl.models",),
    "inference": ("bdtppl.models", "bdtppl.inference"),
    "bdtppl": ("bdtppl",),
}
MOST_LINES_OF_A_FUNCTION = 100
MOST_LINES_OF_A_FILE = 700
MOST_LINES_OF_CODE = 40_514
# Names that several modules define: public functions and a command. It only gets shorter: a name
# that one module alone still defines leaves it.
REPEATED_NAMES = {"compare", "load"}


def module_name(path: Path) -> str:
    floor, *parts = path.relative_to(ROOT).with_suffix("").parts
    package = ["bdtppl"] if floor == "bdtppl" else ["bdtppl", floor]
    return ".".join(package + [part for part in parts if part != "__init__"])


SOURCES = {
    floor: {module_name(path): path.read_text("utf-8") for path in (ROOT / floor).rglob("*.py")}
    for floor in MAY_IMPORT
}
HOUSE = {module: source for floor in SOURCES.values() for module, source in floor.items()}
TREES = {module: ast.parse(source) for module, source in HOUSE.items()}


@cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Name what a module imports; `from a import b` as `a.b`, which may be a module or a name."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(floor: str, tree: ast.AST) -> list[str]:
    """List imports that run up the floors, are relative, or use a folder's bare name."""

    def is_wrong(name: str) -> bool:
        first = name.split(".")[0]
        if first == "bdtppl":
            allowed = MAY_IMPORT[floor]
            return not any(name == part or name.startswith(f"{part}.") for part in allowed)
        return first in ("", "models", "inference", "tests", "benchmarks")

    return [name for name in imported_modules(tree) if is_wrong(name)]


def circle(trees: dict[str, ast.Module]) -> list[str]:
    """Return modules that import each other in a circle, at the top or in functions; or none."""
    graph = {}
    for module, tree in trees.items():
        names = list(imported_modules(tree))
        for node in tree.body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for name in imported_modules(ast.Module(node.body, [])):  # they never run
                    names.remove(name)
        graph[module] = {name if name in trees else name.rpartition(".")[0] for name in names}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def long_functions(trees: dict[str, ast.Module], most: int) -> list[str]:
    return [
        f"{module}.{node.name}: {length} lines"
        for module, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > most
    ]


def long_files(sources: dict[str, str], most: int) -> list[str]:
    lengths = {module: len(source.splitlines()) for module, source in sources.items()}
    return [f"{module}: {length} lines" for module, length in lengths.items() if length > most]


def repeated_names(trees: dict[str, ast.Module]) -> set[str]:
    """Return the functions, classes and constants that more than one module defines."""
    modules = defaultdict(set)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                modules[node.name].add(module)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        modules[target.id].add(module)
    return {name for name, places in modules.items() if len(places) > 1} - {"__all__", "_"}


def lines_of_code(source: str, tree: ast.Module) -> int:
    """Count the lines that are no docstring, no comment and not blank."""
    prose = set()
    for node in nodes_of(tree):
        has_docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, has_docstring) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            prose.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return sum(number not in prose and line[:1] not in ("", "#") for number, line in lines)


@pytest.mark.parametrize("floor", list(MAY_IMPORT))
def test_imports_only_go_down(floor):
    wrong = {module: wrong_imports(floor, TREES[module]) for module in SOURCES[floor]}
    assert {module: found for module, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("floor", "line"),
    [
        ("models", "from bdtppl.inference.hard.posterior import Posterior"),
        ("models", "from bdtppl import inference"),
        ("models", "import bdtppl"),
        ("models", "def f():\n    from bdtppl.storage import load"),
        ("inference", "import bdtppl.plotting"),
        ("inference", "from bdtppl.inference_extra import x"),
        ("inference", "from ..models import data"),
        ("bdtppl", "from models.data import Design"),
    ],
)
def test_check_of_the_floors_sees_a_wrong_import(floor, line):
    assert wrong_imports(floor, ast.parse(line))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import b", "from a import f"),
        ("from b import x", "def f():\n    import a"),
        ("if TYPE_CHECKING:\n    import c\nelse:\n    import b", "if x:\n    import a"),
    ],
)
def test_check_of_circles_sees_one(first, second):
    trees = {"a": ast.parse(first), "b": ast.parse(second), "c": ast.parse("import b")}
    assert sorted(set(circle(trees))) == ["a", "b"]


def test_check_of_circles_passes_over_imports_that_never_run():
    first, second = "if TYPE_CHECKING:\n    import b", "import a"
    assert circle({"a": ast.parse(first), "b": ast.parse(second)}) == []


def test_checks_of_size_see_what_passes_a_limit():
    source = (
        '"""A."""\n\n# B\nclass A:\n  def f(self):\n    """Do."""\n    return (\n      1\n    )'
    )
    tree = ast.parse(source)
    assert lines_of_code(source, tree) == 5
    assert long_functions({"a": tree}, 5) == []
    assert long_functions({"a": tree}, 4) == ["a.f: 5 lines"]
    assert long_files({"a": source}, 9) == []
    assert long_files({"a": source}, 8) == ["a: 9 lines"]


@pytest.mark.parametrize("other", ["def f(): ...", "class f: ...", "f = g = 1", "f: int = 1"])
def test_check_of_names_sees_one_that_two_modules_define(other):
    trees = {"a": ast.parse("def f(): ...\n_ = 1\n__all__ = []"), "b": ast.parse(other)}
    assert repeated_names(trees) == {"f"}
    local = ast.parse("def h():\n    f = 1\n_ = 2\n__all__ = []")
    assert repeated_names(trees | {"b": local}) == set()


def test_the_house_keeps_its_limits():
    assert circle(TREES) == []
    assert long_functions(TREES, MOST_LINES_OF_A_FUNCTION) == []
    assert long_files(HOUSE, MOST_LINES_OF_A_FILE) == []
    assert repeated_names(TREES) == REPEATED_NAMES
    lines = sum(lines_of_code(HOUSE[module], tree) for module, tree in TREES.items())
    assert lines <= MOST_LINES_OF_CODE, f"{lines} lines of code"
