"""Tree searches for estimators, with limits and progress."""

from collections.abc import Callable

from bdtppl.inference.pcfg.search.search import TreeSearch
from bdtppl.progress import counting


def run_search(
    search: TreeSearch,
    seconds: float,
    num_bytes: float,
    shown: bool,
    in_words: Callable[[TreeSearch], str],
) -> None:
    """Search until all is known or a limit is reached, and show progress.

    Parameters
    ----------
    search
        The search.
    seconds, num_bytes
        Its limits.
    shown
        Whether to show progress at all.
    in_words
        Describes what is known.
    """
    with counting("sets of rows", shown=shown) as report:

        def on_step(search: TreeSearch) -> None:
            if report is not None:
                report(search.num_expansions, in_words(search))

        search.run(float(seconds), float(num_bytes), on_step=on_step)
