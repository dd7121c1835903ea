"""Speed of the exact posterior: ``python -m benchmarks.exact``.

Times and memory beside a plain NumPy recursion. The environment variable ``BDTPPL_DATA`` names the
folder of data sets. The tables of the paper are those of ``python -m benchmarks.reproduce
bcart_pcfg``.
"""

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line asks for."""
    # Processes that the benchmarks start import this module: it stays light.
    from benchmarks.pcfg.problems import NAMES, available_problems

    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact", description=__doc__)
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="warm calls behind each median")
    parser.add_argument("--draws", type=int, default=100_000, help="trees to draw")
    options = parser.parse_args(arguments)
    from benchmarks.pcfg.speed_report import report

    report(available_problems(options.sets), repeats=options.repeats, num_draws=options.draws)


if __name__ == "__main__":
    main()
