"""The command line, ``bdtppl COMMAND``.

Commands import slow modules when they run, so that help appears at once.
"""

import sys
from typing import Annotated

import typer

from bdtppl import __version__
from bdtppl.cli.compare import compare
from bdtppl.cli.console import Commands
from bdtppl.cli.datasets import datasets
from bdtppl.cli.demo import demo
from bdtppl.cli.fit import fit, make_fit
from bdtppl.cli.predict import predict
from bdtppl.cli.prior import prior
from bdtppl.cli.report import report

__all__ = ["app", "main"]

_EPILOG = (
    "Results go to the standard output, notes and errors to the error stream. Exit status: 0 done, "
    "1 an unexpected failure, 2 an error that you can correct, 130 interrupted, 143 terminated."
)

app = typer.Typer(cls=Commands, name="bdtppl", epilog=_EPILOG)
for _command in (demo, fit, predict, report, compare, prior, datasets):
    app.command()(_command)
Commands.on_demand["fit"] = make_fit


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
    """Run the command that the process was started with, or print help if there is none."""
    app(sys.argv[1:] or ["--help"])
