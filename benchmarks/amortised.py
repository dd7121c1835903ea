"""Amortised trees beside the exact posterior: ``python -m benchmarks.amortised agreement``.

``agreement`` holds posteriors of iris against the exact one, ``steps`` times steps of training, and
``policies`` compares ways to train. The tables and figures of the DT-GFN paper are run by
``python -m benchmarks.reproduce``.
"""

import argparse
from collections.abc import Sequence

from benchmarks.gflownet.agreement import agreement, policies, step_times

__all__ = ["PARTS", "main"]

PARTS = ("agreement", "steps", "policies")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amortised", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--depth", type=int, default=4, help="levels of splits")
    parser.add_argument("--steps", type=int, default=500, help="of training policies")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    run = {
        "agreement": lambda: agreement(options.seeds, sorted({2, options.depth})),
        "steps": step_times,
        "policies": lambda: policies(options.seeds, options.depth, options.steps),
    }
    for part in options.parts or PARTS:
        run[part]()


if __name__ == "__main__":
    main()
