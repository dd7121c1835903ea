"""Files that appear completely or not at all, even if the process is killed."""

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
except ImportError:  # Windows refuses to delete files that another process has open
    fcntl = None

_UNFINISHED = ".partial"  # suffix of names that no reader opens
_NEW = 10.0  # seconds during which a created file counts as new
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def require_writable(folder: Path, name: str) -> None:
    """Raise if a folder cannot be written, before any long computation.

    Parameters
    ----------
    folder
        The folder, which need not exist.
    name
        The user's name for it.

    Raises
    ------
    OSError
        If it is a file or a dangling link, or cannot be written or created.
    """
    above = (folder, *folder.absolute().parents)
    nearest = next(path for path in above if path.exists() or path.is_symlink())
    if not nearest.exists():
        raise FileNotFoundError(f"{name} {folder} cannot be written: {nearest} is a dangling link.")
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name} {folder} cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{name} {folder} cannot be written: {nearest} is read-only.")


def write_whole(path: Path, pieces: Iterable[Any]) -> None:
    """Write a file, or replace it; a killed process leaves the old or the new file.

    Unfinished files of killed processes in its folder are removed.

    Parameters
    ----------
    path
        The file; its folder must exist.
    pieces
        Bytes, or buffers of them, in order.

    Raises
    ------
    OSError
        If it cannot be written; the old file is then unchanged.
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
    """Open a file for reading if it is a regular file; a pipe would block its reader.

    Raises
    ------
    OSError
        If it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | _WITHOUT_WAITING)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(f"{path} is not a regular file")


@contextmanager
def staged(folder: Path, obsolete: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder whose files move to another one at the end, all or none.

    Files of the same names are replaced, others are left alone. If the block or a move fails,
    nothing changes. If the process is killed, each file is the old or the new one.

    Parameters
    ----------
    folder
        Destination; created, with its parents, if it does not exist.
    obsolete
        Names of files that are deleted unless a file of that name is written.

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


# A process locks its unfinished files. The system releases the locks when the process ends, for
# whatever reason, so an unfinished file that can be locked has been abandoned.


def _hold(descriptor: int) -> None:
    """Lock an open file or folder.

    Raises
    ------
    OSError
        If another process has locked it.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _held(path: Path, *, or_fail: bool = False) -> Iterator[None]:
    """Lock a file or folder during the block."""
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
    """Remove unfinished files of killed processes."""
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
    """Describe an error in one line, without a full stop."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")
