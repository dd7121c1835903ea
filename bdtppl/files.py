"""Files that appear together, whole, or not at all."""

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

__all__ = ["require_writable", "staged"]


def require_writable(folder: Path, name: str) -> None:
    """Refuse a folder that cannot be written, before anything long has been computed.

    Parameters
    ----------
    folder
        The folder, which need not exist.
    name
        What the user calls it.

    Raises
    ------
    OSError
        If it is a file, or may not be written or made.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name} {folder} cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{name} {folder} cannot be written: {nearest} is read-only.")


@contextmanager
def staged(folder: Path, obsolete: Collection[str] = ()) -> Iterator[Path]:
    """Hand out an empty folder whose files move into another one at the end, all or none.

    Files of the same names are replaced, others are left alone. If the block or a move fails, all
    is as it was before.

    Parameters
    ----------
    folder
        Where the files go; made, with its parents, if it does not exist.
    obsolete
        Names of files that go away where no file of that name is written.

    Yields
    ------
    pathlib.Path
        The folder to write the files in.

    Raises
    ------
    OSError
        If the folder cannot be written.

    Examples
    --------
    >>> with staged(Path("results")) as folder:
    ...     _ = (folder / "numbers.txt").write_text("1 2 3")
    >>> Path("results/numbers.txt").read_text()
    '1 2 3'
    """
    with ExitStack() as undo:
        for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
            missing.mkdir(exist_ok=True)
            undo.callback(_quietly, missing.rmdir)
        staging = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=folder))
        undo.callback(rmtree, staging, ignore_errors=True)
        new, old = staging / "new", staging / "old"
        new.mkdir()
        old.mkdir()
        yield new
        for name in obsolete:
            if (folder / name).is_file() and not (new / name).exists():
                os.replace(folder / name, old / name)
                undo.callback(_quietly, os.replace, old / name, folder / name)
        for path in sorted(new.iterdir()):
            final, previous = folder / path.name, old / path.name
            if final.is_file():
                os.replace(final, previous)
                undo.callback(_quietly, os.replace, previous, final)
            else:
                undo.callback(_quietly, final.unlink)
            os.replace(path, final)
        undo.pop_all()
    rmtree(staging, ignore_errors=True)


def _quietly(action: Callable, *arguments: Any) -> None:
    with suppress(OSError):
        action(*arguments)
