"""Output of the commands, and their exit status.

Results go to the standard output stream; progress, notes and errors to the error stream. An error
that the user can correct is printed as one sentence with exit status 2, an unexpected failure as
one sentence with status 1.
"""

import json
import math
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

import bdtppl.inference
import bdtppl.models
from bdtppl.compiled_code import keep_compiled_code
from bdtppl.interruption import TERMINATED, Terminated, terminable

SavedModel = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="Folder written by `bdtppl fit --out` or by an estimator's method `save`.",
        show_default=False,
    ),
]

_INTERRUPTED = 130  # the status of a shell command ended by Ctrl-C


class UserError(Exception):
    """An error that the user can correct; its text is one sentence."""


class Commands(TyperGroup):
    """Commands whose errors are printed as one sentence, without a traceback.

    Attributes
    ----------
    on_demand
        Functions that make commands by name. Such a command's imports happen when the command is
        run or explained, not when commands are listed.
    """

    on_demand: ClassVar[dict[str, Callable[[], Any]]] = {}
    _is_listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, creating it first if it is made on demand."""
        if cmd_name in self.on_demand and not self._is_listing:
            return self.on_demand[cmd_name]()
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page, with the first sentence of each command."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def main(self, args: Any = None, *arguments: Any, **options: Any) -> Any:
        """Run a command and exit with its status."""
        options["standalone_mode"] = False
        os.environ["MPLBACKEND"] = "Agg"  # figures are saved, never shown
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            with suppress(OSError, RuntimeError):  # a folder that is not writable, or no home
                keep_compiled_code()
        try:
            with terminable():
                args = args and [*map(_with_home, args)]
                status = super().main(args, *arguments, **options)
            if status == _INTERRUPTED:  # typer catches Ctrl-C itself, silently
                status = _fail("Interrupted.", _INTERRUPTED)
        except UserError as error:
            status = _fail(str(error), 2)
        except typer.Abort:
            status = _fail("Interrupted.", _INTERRUPTED)
        except Terminated:
            status = _fail("Terminated.", TERMINATED)
        except Exception as error:
            usage = getattr(error, "format_message", None)  # wrong usage, detected by typer
            status = _fail(_unexpected(error), 1) if usage is None else _fail(usage(), 2)
        raise SystemExit(status if isinstance(status, int) else 0)


def _with_home(argument: str) -> str:
    """Expand ``~/``, which shells keep in quotes and after ``--out=``."""
    home = os.path.expanduser("~")
    return re.sub("^(--[a-z-]+=)?~/", lambda match: f"{match[1] or ''}{home}/", argument)


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into a `UserError`."""
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.strerror:  # raised by the system, not by bdtppl
            raise UserError(f"{error.filename} cannot be used: {error.strerror}.") from error
        raise UserError(_as_options(str(error))) from error


@contextmanager
def notes_after() -> Iterator[None]:
    """Collect the warnings of the library, and print each after the block has succeeded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(each.message) for each in caught if _is_own(each)]
    for text in dict.fromkeys(texts):
        note(_as_options(text))


def _is_own(caught: warnings.WarningMessage) -> bool:
    """Return whether a warning is for users: of our own kinds, or raised where our code runs.

    Warnings of other packages are for programmers.
    """
    if not issubclass(caught.category, UserWarning):
        return False
    if caught.category.__module__.startswith("bdtppl."):
        return True
    folders = [*bdtppl.__path__, *bdtppl.models.__path__, *bdtppl.inference.__path__]
    return any(Path(caught.filename).is_relative_to(folder) for folder in folders)


def note(text: str) -> None:
    """Print a note on the error stream."""
    typer.echo(f"Note: {_one_line(text)}", err=True)


def say(*contents: Any) -> None:
    """Print text, or an object that rich renders, without interpreting brackets as markup."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(*contents)
    # Tables fill their last column with spaces.
    typer.echo("\n".join(line.rstrip() for line in capture.get().split("\n")), nl=False)


def readable_json(value: Any) -> str:
    """Write readable JSON; numbers that are not finite become null."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say_json(value: Any) -> None:
    """Print JSON."""
    typer.echo(readable_json(value))


def _fail(message: str, status: int) -> int:
    typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {_one_line(message)}", err=True)
    return status


def _unexpected(error: Exception) -> str:
    if os.environ.get("BDTPPL_TRACEBACK"):
        traceback.print_exception(error)
    text = str(error) or "no message"
    return (
        f"Unexpected failure, {type(error).__name__}: {text.rstrip('.')}; set BDTPPL_TRACEBACK=1 "
        f"to see where, and report it."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _as_options(message: str) -> str:
    """Write parameters of estimators as the command-line options that set them."""
    message = re.sub(r"^sample_weight\b", "--weight", message)
    message = re.sub(r"\bbins=(\d+)", r"--bins \1", message)
    message = re.sub(r"\bmax_subproblems=", "--max-subproblems ", message)
    message = re.sub(r"\bmax_depth=(\d+)", r"--max-depth \1", message)
    message = re.sub(r"\bfewer features\b", "fewer columns (--drop)", message)
    message = re.sub(
        r"(?<=\bRaise )extensions, warmup, draws or thin\b",
        "--extensions, --warmup, --draws or --thin",
        message,
    )
    return re.sub(
        r"(?<!['\w])(max_depth|min_leaf|max_subproblems)(?!['\w])",
        lambda match: "--" + match[0].replace("_", "-"),
        message,
    )
