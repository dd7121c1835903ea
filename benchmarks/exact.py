"""Benchmarks of the exact posterior: ``python -m benchmarks.exact [speed|tables]``.

``speed`` prints times and memory beside a plain NumPy recursion; ``tables`` prints Tables 1 to 3 of
Sullivan et al. 2023 beside the published figures. Without either word, both are printed. The
environment variable ``BDTPPL_DATA`` names the folder of data sets.
"""

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line asks for."""
    # Processes that the benchmarks start import this module: it stays light.
    from benchmarks.pcfg.problems import NAMES, available_problems

    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("speed", "tables"), help="default: both")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--trials", type=int, default=5, help="cross-validations of the tables")
    parser.add_argument("--repeats", type=int, default=5, help="warm calls behind each median")
    parser.add_argument("--draws", type=int, default=100_000, help="trees to draw")
    options = parser.parse_args(arguments)
    if options.part in ("speed", None):
        from benchmarks.pcfg.speed_report import report

        report(available_problems(options.sets), repeats=options.repeats, num_draws=options.draws)
    if options.part in ("tables", None):
        from benchmarks.pcfg.tables import report

        report(available_problems(options.sets, xor_rows=1000), trials=options.trials)


if __name__ == "__main__":
    main()
