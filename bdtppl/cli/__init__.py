"""The command line: ``bdtppl demo``, ``fit``, ``predict`` and ``report``.

What takes long to import is imported by the commands, so that help is there at once.
"""

import sys
from typing import Annotated

import typer

from bdtppl import __version__
from bdtppl.cli.console import Commands
from bdtppl.cli.demo import demo
from bdtppl.cli.fit import fit
from bdtppl.cli.predict import predict
from bdtppl.cli.report import report

__all__ = ["app", "main"]

app = typer.Typer(cls=Commands, name="bdtppl")
for _command in (demo, fit, predict, report):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bdtppl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Bayesian decision trees: the posterior over trees of a table, printed, drawn and saved."""


def main() -> None:
    """Run the command that the process was started with; help where there is none."""
    app(sys.argv[1:] or ["--help"])
