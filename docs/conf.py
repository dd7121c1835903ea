"""Settings of Sphinx: guides, notebooks with their outputs, and the reference from docstrings.

Pictures of figures are drawn by the examples in their docstrings, at each build. A name in single
backquotes in a docstring is a link wherever one documented object alone has that name.
"""

import dataclasses
import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

# Most of a picture's time is compilation, of code that runs once; the next build finds it compiled.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "True")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import bdtppl
from bdtppl.estimators import all_inferences
from bdtppl.inference.metropolis import proposals as metropolis_proposals
from bdtppl.inference.particle import proposals as particle_proposals
from bdtppl.models.constraints import Constraints
from bdtppl.models.registry import LEAF_FAMILIES, TREE_PRIORS

HERE = Path(__file__).parent
LOGGER = logging.getLogger(__name__)

project = "bdtppl"
author = "the authors of bdtppl"
copyright = author
version = release = bdtppl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",
]
exclude_patterns = ["_templates", "api/generated/*.md"]  # pages include the latter
templates_path = ["_templates"]
default_role = "py:obj"
suppress_warnings = ["autosummary.import_cycle"]  # full names are meant
maximum_signature_line_length = 80

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

plot_formats = [("svg", 100)]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = False

html_theme = "furo"
html_title = "bdtppl"
html_static_path = ["_static"]
html_css_files = ["bdtppl.css"]
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}


def copy_notebooks(app: Sphinx) -> None:
    """Bring the notebooks to where Sphinx looks for pages."""
    for path in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        copy = HERE / "notebooks" / path.name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copy(path, copy)


def first_line(documented: Any) -> str:
    """Take the first paragraph of a docstring, as Markdown for a cell of a table."""
    text = (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"{py:obj}`\1`", text).replace("``", "`")
    return text.replace("|", r"\|")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table in Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def class_table(classes: Iterable[type]) -> str:
    """Write a table of classes with their fields and defaults."""
    rows = []
    for cls in classes:
        if not dataclasses.is_dataclass(cls):  # a base class, which nobody gives to an estimator
            continue
        shown = [
            f"`{field.name}`"
            if field.default is dataclasses.MISSING
            else f"`{field.name} = {field.default!r}`"
            for field in dataclasses.fields(cls)
        ]
        link = f"{{py:obj}}`{cls.__name__} <{cls.__module__}.{cls.__name__}>`"
        rows.append([link, first_line(cls), ", ".join(shown)])
    return table(["name", "meaning", "parameters"], rows)


def list_estimators(app: Sphinx, config: Any) -> None:
    """Write a page for each registered estimator, and the table of all of them."""
    folder = HERE / "api" / "generated"
    folder.mkdir(exist_ok=True)
    template = (HERE / "_templates" / "estimator.rst").read_text()
    rows, pages = [], []
    for inference, of_tasks in all_inferences().items():
        for _, cls in sorted(of_tasks.items()):
            name = cls.__name__
            page = template.replace("{name}", name).replace("{line}", "=" * len(name))
            (folder / f"bdtppl.{name}.rst").write_text(page)
            pages.append(f"generated/bdtppl.{name}")
            rows.append([f"{{py:obj}}`{name} <bdtppl.{name}>`", f"`{inference}`", first_line(cls)])
    listed = table(["class", "inference", "meaning"], rows)
    tree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    (folder / "estimators.md").write_text(f"{listed}\n{tree}\n")


def list_names(app: Sphinx, config: Any) -> None:
    """Write tables of all that registers itself, or has a name in a registry."""
    folder = HERE / "api" / "generated"
    proposals = {
        "Metropolis": metropolis_proposals.KERNELS,
        "particle filter": particle_proposals.PROPOSALS,
    }
    exports = [getattr(bdtppl.export, name) for name in bdtppl.export.__all__]
    sections = {
        "Leaf families": class_table(LEAF_FAMILIES.values()),
        "Priors": class_table(TREE_PRIORS.values()),
        "Constraints": class_table([Constraints]),
        "Proposals": table(
            ["inference", "names"],
            [
                [inference, ", ".join(f"`{name}`" for name in names)]
                for inference, names in proposals.items()
            ],
        ),
        "Exports": table(
            ["function", "what it writes"],
            [
                [f"{{py:obj}}`{made.__name__} <bdtppl.export.{made.__name__}>`", first_line(made)]
                for made in exports
            ],
        ),
    }
    text = "\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
    (folder / "names.md").write_text(text)


def describe_command_line(app: Sphinx) -> None:
    """Write the help texts of all commands as a page."""
    folder = HERE / "api" / "generated"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "typer", "bdtppl.cli", "utils", "docs", "--name", "bdtppl"]
    subprocess.run([*command, "--output", str(folder / "command_line.md")], check=True)


def skip_inherited(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields of named tuples, which the class explains, and scikit-learn's routing."""
    is_field = str(getattr(obj, "__doc__", "")).startswith("Alias for field")
    return is_field or (name.startswith("set_") and name.endswith("_request")) or None


def add_picture(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list) -> None:
    """Draw below the docstring of a figure what its example draws."""
    if what != "function" or not name.rpartition(".")[2].startswith("plot_"):
        return
    examples = doctest.DocTestParser().get_examples("\n".join(lines))
    source = textwrap.indent("".join(example.source for example in examples), "   ")
    prefix = f"   :filename-prefix: {name.rpartition('.')[2]}"  # the front page shows some of them
    lines += ["", ".. plot::", prefix, "", *source.splitlines(), ""]


def resolve_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Link a name to the one object that has it; a full name must exist."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip(".")
    objects = env.domains["py"].objects
    found = [name for name in objects if name == target or name.endswith(f".{target}")]
    found = [name for name in found if not objects[name].aliased]
    if len(found) == 1:
        entry = objects[found[0]]
        return make_refnode(
            app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0]
        )
    module = target.rpartition(".")[0]
    if module in env.domains["py"].modules:  # of a constant, which has no entry of its own
        entry = env.domains["py"].modules[module]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content)
    if target.startswith("bdtppl."):
        LOGGER.warning("nothing is documented under the name %s", target, location=node)
    return None


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("config-inited", list_estimators)
    app.connect("config-inited", list_names)
    app.connect("builder-inited", copy_notebooks, priority=0)
    app.connect("builder-inited", describe_command_line, priority=0)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", add_picture)
    app.connect("missing-reference", resolve_short_name)
