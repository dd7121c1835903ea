"""Files that appear whole or not at all, whenever the process is killed."""

import io
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, which refuses to delete what another process has open
    fcntl = None

_UNFINISHED = ".partial"  # the end of names that no reader looks at
_NEW = 10.0  # seconds in which what was made counts as new
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


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
        If it is a file or a link to nothing, or may not be written or made.
    """
    above = (folder, *folder.absolute().parents)
    nearest = next(path for path in above if path.exists() or path.is_symlink())
    if not nearest.exists():
        raise FileNotFoundError(
            f"{name} {folder} cannot be written: {nearest} is a link to nothing."
        )
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name} {folder} cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{name} {folder} cannot be written: {nearest} is read-only.")


def write_whole(path: Path, pieces: Iterable[Any]) -> None:
    """Write a file, or replace it; a killed process leaves the old one or the new one.

    What processes that were killed have left unfinished in its folder is removed.

    Parameters
    ----------
    path
        The file; its folder must exist.
    pieces
        Bytes, or buffers of them, in order.

    Raises
    ------
    OSError
        If it cannot be written; the old file is as it was.
    """
    _remove_abandoned(path.parent)
    unfinished = path.parent / f".{path.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    try:
        with unfinished.open("xb") as file:
            with suppress(OSError):  # a file system without locks
                _hold(file.fileno())
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        _quietly(unfinished.unlink)
        raise


def open_ordinary(path: Path) -> io.BufferedReader:
    """Open a file to read, if it is an ordinary one: a pipe would keep its reader waiting.

    Raises
    ------
    OSError
        If it cannot be opened, or is no ordinary file.
    """
    descriptor = os.open(path, os.O_RDONLY | _WITHOUT_WAITING)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(f"{path} is not an ordinary file")


@contextmanager
def staged(folder: Path, obsolete: Collection[str] = ()) -> Iterator[Path]:
    """Hand out an empty folder whose files move into another one at the end, all or none.

    Files of the same names are replaced, others are left alone. If the block or a move fails, all
    is as it was before. If the process is killed, each file is the old one or the new one.

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
    with ExitStack() as undo, ExitStack() as always:
        for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
            missing.mkdir(exist_ok=True)
            undo.callback(_quietly, missing.rmdir)
        _remove_abandoned(folder)
        staging = Path(tempfile.mkdtemp(prefix=".", suffix=_UNFINISHED, dir=folder))
        always.callback(rmtree, staging, ignore_errors=True)
        always.enter_context(_held(staging))
        new, old = staging / "new", staging / "old"
        new.mkdir()
        old.mkdir()
        yield new
        leaving = [name for name in obsolete if not (new / name).exists()]
        arriving = sorted(path.name for path in new.iterdir())
        for name in (*arriving, *leaving):
            if (folder / name).is_file():
                _keep(folder / name, old / name)
                undo.callback(_quietly, os.replace, old / name, folder / name)
            elif name in arriving:
                undo.callback(_quietly, (folder / name).unlink)
        for name in arriving:
            os.replace(new / name, folder / name)
        for name in leaving:
            (folder / name).unlink(missing_ok=True)
        undo.pop_all()


def _keep(path: Path, copy: Path) -> None:
    """Keep a file under a second name."""
    try:
        os.link(path, copy)
    except OSError:  # some file systems have no links
        copyfile(path, copy)


# A process holds a lock on what it has not finished. The system drops the lock when the process
# ends, however it ends: whatever can be locked has been abandoned.


def _hold(descriptor: int) -> None:
    """Lock an open file or folder.

    Raises
    ------
    OSError
        If another process holds it.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _held(path: Path, *, or_fail: bool = False) -> Iterator[None]:
    """Hold a file or folder for a while."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | _WITHOUT_WAITING)
    try:
        with suppress(*(() if or_fail else (OSError,))):  # a file system without locks
            _hold(descriptor)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes have left unfinished."""
    for path in folder.glob(f".*{_UNFINISHED}"):
        with suppress(OSError):
            found = path.lstat()
            is_new = abs(time.time() - found.st_mtime) < _NEW  # its owner may be about to lock it
            if is_new or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                continue
            with _held(path, or_fail=True):
                if stat.S_ISDIR(found.st_mode):
                    rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _quietly(action: Callable, *arguments: Any) -> None:
    with suppress(OSError):
        action(*arguments)


def reason_of(error: BaseException) -> str:
    """Say in one line, without a full stop, what went wrong."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")
