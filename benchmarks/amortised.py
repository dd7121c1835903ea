"""The experiments of the DT-GFN paper: ``python -m benchmarks.amortised table3 --seeds 1``.

Tables 1, 2, 3, 4, 7 and 10 and Figures 2 (with 5), 3 and 4 beside the printed figures, with the
exact posterior wherever its chart fits; ``policies`` compares ways to train. ``agreement`` holds
posteriors of iris against the exact one, and ``steps`` times steps of training. Random forests and
perceptrons are scikit-learn's; XGBoost, LightGBM and CatBoost are run where they are installed
(``pip install bdtppl[benchmarks]``). The environment variable ``BDTPPL_DATA`` names the folder of
data sets.
"""

import argparse
from collections.abc import Sequence

from benchmarks.gflownet.agreement import agreement, step_times
from benchmarks.gflownet.figures import figure_2, figure_3, figure_4, policies, table_7
from benchmarks.gflownet.models import Runs
from benchmarks.gflownet.problems import ANOMALIES, SETS
from benchmarks.gflownet.tables import available, table_3, table_4, table_10, tables_1_and_2

__all__ = ["PARTS", "main"]

PARTS = (
    "agreement",
    "steps",
    "tables1+2",
    "table3",
    "table4",
    "table7",
    "table10",
    "figure2",
    "figure3",
    "figure4",
    "policies",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amortised", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="default: all")
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[4, 5], help="levels of splits (default: 4 5)"
    )
    parser.add_argument("--steps", type=int, default=500, help="of the longer training")
    parser.add_argument("--noise", type=int, nargs="+", default=[2, 6, 10, 14, 18, 20])
    parser.add_argument("--methods", nargs="+", default=[""], help="parts of names; default: all")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    seeds, depths, steps = options.seeds, options.depths, options.steps
    runs = Runs(depths, steps, options.methods)
    sets = available(options.sets)
    originals = ["breast cancer (original)" if name == "breast cancer" else name for name in sets]
    run = {
        "agreement": lambda: agreement(seeds, sorted({2, depths[0]})),
        "steps": step_times,
        "tables1+2": lambda: tables_1_and_2(sets, seeds, runs),
        "table3": lambda: table_3(runs),
        "table4": lambda: table_4(ANOMALIES, seeds, depths[0], steps),
        "table7": lambda: table_7(sets),
        "table10": lambda: table_10(available(originals), runs),
        "figure2": lambda: figure_2(depths[0], steps),
        "figure3": lambda: figure_3(options.noise, seeds, runs),
        "figure4": lambda: figure_4(seeds),
        "policies": lambda: policies(seeds, depths[0], steps),
    }
    for part in options.parts or PARTS:
        run[part]()


if __name__ == "__main__":
    main()
