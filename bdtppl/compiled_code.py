"""Storage of compiled code on disk, from which later processes load it.

JAX stores the programs that it compiles if it has a folder for them. numba stores its code by
itself: beside the modules, or in the user's cache folder if the installation is read-only.
"""

import os
import sys
from pathlib import Path

_CACHES = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}
_SETTINGS = {
    "jax_compilation_cache_max_size": 1 << 30,
    "jax_persistent_cache_min_compile_time_secs": 0.02,
}


def keep_compiled_code(folder: str | Path | None = None) -> Path:
    """Make JAX store the programs that it compiles, for later processes.

    It applies to this process and to those that it starts. The least recently used programs are
    deleted when they exceed 1 GB. Later processes run the stored code, so nobody else may write to
    the folder.

    Parameters
    ----------
    folder
        Folder, created if it does not exist; None for ``bdtppl`` in the user's cache folder:
        ``XDG_CACHE_HOME``, or the usual one of the platform, such as ``~/.cache``.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    OSError
        If the folder cannot be created or written.

    Examples
    --------
    >>> folder = keep_compiled_code()  # doctest: +SKIP
    """
    cache = os.environ.get("XDG_CACHE_HOME") or _CACHES.get(sys.platform, "~/.cache")
    folder = Path(folder or Path(cache) / "bdtppl").expanduser().absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"folder must be writable; {folder} is not.")
    settings = {"jax_compilation_cache_dir": str(folder), **_SETTINGS}
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if "jax" in sys.modules:
        import jax
        from jax.experimental.compilation_cache.compilation_cache import reset_cache

        for name, value in settings.items():
            jax.config.update(name, value)
        reset_cache()  # its folder is read once
    return folder
