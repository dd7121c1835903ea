"""``bdtppl prior``: trees and their sizes under a prior, before seeing any target."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from bdtppl.cli.console import UserError, notes_after, refusing, say, say_json
from bdtppl.cli.fit import feature_names, located, parse_bins, read_prior
from bdtppl.files import staged

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from bdtppl.models.constraints import Constraints
    from bdtppl.models.data.design import Design
    from bdtppl.models.hard.tree import Tree

_DEFAULT = "depth-decay"


_PriorFilePath = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with tables \\[prior], \\[constraints] and \\[\\[keep_together]], as "
        "for `bdtppl fit`.",
        show_default=False,
    ),
]
_MaxSubproblems = Annotated[
    int,
    typer.Option(
        min=1,
        help="Most sets of rows that trees may make, for priors that cannot grow trees directly.",
    ),
]
_FigureFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for figures of the sizes and the trees shown; created if it does not exist.",
        show_default="nothing is drawn",
    ),
]


def prior(
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="TABLE",
            help="CSV, TSV or Parquet file whose columns the trees split on.",
            show_default="simulated columns",
        ),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Tree prior: leaf-penalty[:log_phi=2], depth-decay[:alpha=0.95,beta=1], "
            "description-length[:beta=...] or greedy-partition[:p=0.99].",
            show_default=_DEFAULT,
        ),
    ] = None,
    prior_file: _PriorFilePath = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to leave out, such as the target; may be repeated.", show_default=False
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Rows to simulate without a table.")] = 100,
    columns: Annotated[int, typer.Option(min=1, help="Columns to simulate without a table.")] = 3,
    bins: Annotated[
        str | None,
        typer.Option(
            help="Most buckets a feature, or 'none' for a cut between any two values.",
            show_default="none",
        ),
    ] = None,
    binning: Annotated[
        Literal["quantile", "uniform"], typer.Option(help="How buckets are cut.")
    ] = "quantile",
    grid: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead of bins: number of evenly spaced cuts over each feature's range.",
            show_default=False,
        ),
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(min=0, help="Most levels of splits.", show_default=False)
    ] = None,
    min_leaf: Annotated[int, typer.Option(min=1, help="Fewest rows in a leaf.")] = 1,
    max_subproblems: _MaxSubproblems = 500_000,
    draws: Annotated[int, typer.Option(min=1, help="Number of trees to draw.")] = 1000,
    show: Annotated[int, typer.Option(min=0, help="Number of drawn trees to show.")] = 3,
    out: _FigureFolder = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the results, as JSON.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the draws.")] = 0,
) -> None:
    """Draw trees from a prior, and show some of them and their sizes."""
    import jax

    from bdtppl.files import require_writable
    from bdtppl.inference.prior_predictive.draws import draw_prior_trees
    from bdtppl.progress import waiting
    from bdtppl.summary import prior_view

    with refusing(ValueError, OSError):
        file = None if prior_file is None else read_prior(prior_file)
        if file is not None and file.prior is not None and prior is not None:
            raise ValueError(f"--prior {prior} and the [prior] of {prior_file} exclude each other.")
        if out is not None:
            require_writable(out, "--out")
        features = _prior_features(table, drop or [], rows, columns, seed)
        cuts = {
            "bins": None if bins is None or bins == "auto" else parse_bins(bins, grid),
            "binning": binning,
            "grid": grid,
        }
        with notes_after(), located(file), refusing(ValueError, TypeError):
            model = _model(features, cuts, prior, file, (max_depth, min_leaf))
            with waiting(f"drawing {draws:,} trees", shown=True):
                trees = draw_prior_trees(
                    jax.random.key(seed), *model, draws, max_subproblems=max_subproblems
                )
        shown = _PriorDraws(*model, trees)
    where = f"{rows} simulated rows" if table is None else str(table)
    sizes = _sizes(shown, where, show)
    names = [] if out is None else _write_draws(shown, sizes, out)
    if as_json:
        say_json(sizes)
        return
    say(prior_view(sizes))
    if names:
        typer.echo(f"\nSaved {', '.join(names)} in {out}.")


class _PriorDraws(NamedTuple):
    """Trees drawn from a prior on a design."""

    design: "Design"
    prior: Any
    constraints: "Constraints"
    trees: "Tree"


def _prior_features(
    table: Path | None, dropped: list[str], rows: int, columns: int, seed: int
) -> "dict[str, np.ndarray]":
    """Return columns of a table, or uniform ones."""
    import numpy as np

    from bdtppl.table_files import read_table

    if table is not None:
        read = read_table(table)
        return read.features(feature_names(read, None, dropped))
    if dropped:
        raise ValueError(f"--drop {dropped[0]} requires a table, and none is given.")
    rng = np.random.default_rng(seed)
    return {f"x{j}": rng.random(rows) for j in range(columns)}


def _model(
    features: "dict[str, np.ndarray]",
    cuts: dict[str, Any],
    prior: str | None,
    file: Any,
    limits: tuple[int | None, int],
) -> "tuple[Design, Any, Constraints]":
    """Return the design, and the prior on it."""
    from bdtppl.cli.specification import parse_prior
    from bdtppl.estimators.hard import join_limits, with_weights_of_marks
    from bdtppl.models.data.design import Design
    from bdtppl.models.data.schema import Schema

    chosen = None if file is None else file.prior
    chosen = parse_prior(prior or _DEFAULT) if chosen is None else chosen
    schema, matrix = Schema.read(features)
    design = Design.from_matrix(
        matrix,
        names=schema.features,
        is_indicator=schema.is_indicator,
        column=schema.column,
        **cuts,
    )
    constraints = join_limits(schema, None if file is None else file.constraints, *limits)
    return design, with_weights_of_marks(schema, chosen).resolve(design), constraints


def _sizes(shown: _PriorDraws, where: str, show: int) -> dict[str, Any]:
    """Summarise draws with JSON types."""
    from bdtppl.estimators.hard import describe_constraints
    from bdtppl.models.wording import describe_model

    design, prior, constraints, trees = shown
    num_draws = len(trees.num_nodes)
    leaves, depth = trees.num_leaves, trees.depth
    return {
        "prior": describe_model(prior),
        "constraints": describe_constraints(constraints),
        "table": where,
        "rows": design.num_rows,
        "features": list(design.names),
        "draws": num_draws,
        "expected_leaves": float(leaves.mean()),
        "expected_depth": float(depth.mean()),
        "leaves": _shares_of_draws(leaves),
        "depth": _shares_of_draws(depth),
        "trees": [trees[i].rules(design.names, design=design) for i in range(min(show, num_draws))],
    }


def _shares_of_draws(counts: "np.ndarray") -> dict[str, float]:
    """Return the share of each number among the draws."""
    numbers = Counter(counts.tolist())
    return {str(number): numbers[number] / len(counts) for number in sorted(numbers)}


def _write_draws(shown: _PriorDraws, sizes: dict[str, Any], folder: Path) -> list[str]:
    """Draw figures into a folder; return their names."""
    from matplotlib import pyplot

    from bdtppl.plotting import plot_tree

    try:
        with staged(folder) as staging:
            figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
            _plot_shares(axes[0], sizes["leaves"], "number of leaves")
            _plot_shares(axes[1], sizes["depth"], "levels of splits")
            figure.suptitle(sizes["prior"])
            figure.savefig(staging / "sizes.png", dpi=150)
            pyplot.close(figure)
            for index in range(len(sizes["trees"])):
                ax = plot_tree(shown.trees[index], names=shown.design.names)
                drawn = cast("Figure", ax.figure)  # a new figure, not a subfigure
                drawn.savefig(staging / f"tree-{index + 1}.png", dpi=150)
                pyplot.close(drawn)
            return sorted(path.name for path in staging.iterdir())
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written: {error.strerror or error}.") from error


def _plot_shares(ax: Any, shares: dict[str, float], name: str) -> None:
    from bdtppl.plotting.axes import prepared
    from bdtppl.plotting.colours import class_style

    prepared(ax).bar(
        list(map(int, shares)), list(shares.values()), color=class_style(0)["facecolor"]
    )
    ax.set_xlabel(name)
    ax.set_ylabel("share of the trees drawn")
    ax.xaxis.get_major_locator().set_params(integer=True)
