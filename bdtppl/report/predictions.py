"""Sections on predictions: their quality, and the effects of columns."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bdtppl.models.wording import listed
from bdtppl.plotting import (
    plot_calibration,
    plot_partial_dependence,
    plot_predictive,
    plot_predictive_check,
    plot_roc,
)
from bdtppl.plotting.bands import LEVELS_SHOWN, are_named_upright
from bdtppl.plotting.colours import NUM_COLOURS
from bdtppl.report.blocks import Block, Code, Figure, Figures, Text
from bdtppl.report.cautions import intervals_that_fail
from bdtppl.report.pictures import picture
from bdtppl.report.scores import confusion_table, score_table
from bdtppl.report.subject import Subject

_MOST_CLASSES = 12  # classes in a confusion matrix
_DEPENDENCES = 12  # columns that are drawn
_DEPENDENCES_A_ROW = 3
_DEPENDENCE_SIZE = 3.1, 2.6  # inches
_LEVEL_HEIGHT = 0.18
_LEGEND_WIDTH = 1.9


def predictions(subject: Subject) -> Iterator[Block]:
    """Compare predictions with outcomes."""
    model, forecasts = subject.model, subject.forecasts
    if forecasts is None:
        yield Text(
            "Rows have no individual likelihood under this model, so training rows cannot be left "
            "out one by one; judging the predictions requires a table of new rows."
        )
    else:
        is_new = subject.X is not None
        yield score_table(forecasts, f"{len(forecasts.y):,} {subject.which}", ranks=is_new)
        if subject.classes is not None and len(subject.classes) == 2 and not is_new:
            yield Text(
                "Only new rows show how well the two classes are ranked (the area under the ROC "
                "curve): a row that is left out has a lower probability of its own class."
            )
        if subject.classes is not None and len(subject.classes) <= _MOST_CLASSES:
            yield confusion_table(forecasts, subject.classes)
        yield Figures(list(_calibrations(subject)))
        if forecasts.cdf is not None and any(intervals_that_fail(forecasts.cdf)):
            settings = model.other_noise
            lines = [f"{type(model).__name__}({code})  # {why}" for code, why in settings.items()]
            if subject.command is not None:
                options = (code.replace("_", "-").replace("=", " ") for code in settings)
                lines = [f"{subject.command} --{option}" for option in options]
            if lines:
                yield Code("Predictive intervals do not hold; try instead", "\n".join(lines))
    if subject.classes is None:
        yield picture(
            lambda: subject.named(plot_predictive(model, subject.X, subject.y)),
            "Predictive means and bands of all rows in order, with the observed targets.",
            "Predictive mean and bands, rows in the order of their means, with the observed targets"
            + (". The rows are those that the model was fitted to." if subject.X is None else "."),
        )
    yield picture(
        lambda: subject.named(plot_predictive_check(model, subject.X, subject.y)),
        "Replicated targets beside the observed ones.",
        "Posterior predictive check: data simulated by the model, including its tree, beside the "
        "observed data. The model misses features of the observed data that no replicate shows.",
    )


def _calibrations(subject: Subject) -> Iterator[Figure]:
    given = subject.model, subject.X, subject.y
    if subject.classes is not None:
        yield picture(
            partial(plot_calibration, *given),
            "Observed frequencies against predicted probabilities.",
            "Calibration: points inside the bars mean that events happened as often as predicted. "
            "Numbers count rows.",
        )
        if len(subject.classes) == 2 and subject.X is not None:
            yield picture(
                partial(plot_roc, *given),
                "Share of a class that is found against the share of others taken for it.",
                "Each point of the curve is a threshold of the probability. The area below it is "
                "the probability that a row of the class is scored higher than another row.",
            )
        return
    yield picture(
        partial(plot_calibration, *given),
        "Histogram of predictive distribution functions at the targets.",
        "Calibration: bars inside the grey band mean that targets follow their predictions. A hill "
        "in the middle means that bands are wider than necessary; a valley means that they are too "
        "narrow.",
    )
    yield picture(
        partial(plot_calibration, *given, kind="coverage"),
        "Share of targets inside predictive intervals against their probability.",
        "Coverage of the predictive intervals of all probabilities.",
    )


def dependences(subject: Subject) -> Iterator[Block]:
    """Show the mean prediction against the most important columns."""
    model = subject.model
    columns = {
        feature: column.name
        for column in model.schema_.columns
        for feature in (column.name, *column.features, *column.missing_feature)
    }
    names = dict.fromkeys(columns[name] for name in subject.shares if name in columns)
    levels: dict[str, Sequence[str]] = {
        column.name: column.levels or () for column in model.schema_.columns
    }
    chosen = {name: levels[name] for name in list(names)[:_DEPENDENCES]}
    what = subject.target if subject.classes is None else f"Probabilities of {subject.target}"
    yield Text(
        "Partial dependence: all rows get each value of a column in turn, and their mean "
        "predictions are averaged. Bands show the posterior uncertainty of the average; they are "
        "not predictive intervals. The most important columns come first."
    )
    for are_upright in (False, True):
        some = {name: own for name, own in chosen.items() if are_named_upright(own) == are_upright}
        if some:
            yield picture(
                partial(_dependences, subject, some, are_upright),
                f"Mean prediction against {listed([*some])}.",
                f"{what} against each column, on one scale.",
            )


def _dependences(subject: Subject, levels: dict[str, Sequence[str]], are_upright: bool) -> Any:
    """Draw the partial dependence on columns with one axis of predictions.

    They are side by side, or one below the other if levels of categories are listed vertically or
    each shows other classes.
    """
    from matplotlib import pyplot

    num_classes = len(subject.classes or ())
    legend = _LEGEND_WIDTH if num_classes > 2 else 0  # which stands beside
    are_stacked = are_upright or num_classes > NUM_COLOURS
    most = 1 if are_stacked else _DEPENDENCES_A_ROW - bool(legend)
    across = min(len(levels), most)
    width, height = _DEPENDENCE_SIZE
    heights = [height] * -(-len(levels) // across)
    if are_upright:
        heights = [_LEVEL_HEIGHT * min(len(own), LEVELS_SHOWN) + 1.5 for own in levels.values()]
    grid = pyplot.subplots(
        len(heights),
        across,
        sharex=are_upright,
        sharey=not are_upright,
        squeeze=False,
        figsize=(width * (across + are_stacked) + legend, sum(heights)),
        height_ratios=heights,
        layout="constrained",
    )[1]
    for place, (ax, name) in enumerate(zip(grid.flat, levels, strict=False)):
        is_named = num_classes > NUM_COLOURS or place == (across - 1 if legend else 0)
        subject.named(plot_partial_dependence(subject.model, name, legend=is_named, ax=ax))
        if place % across:
            ax.set_ylabel("")
        if are_upright and place < len(levels) - 1:
            ax.set_xlabel("")
    for ax in grid.flat[len(levels) :]:
        ax.set_axis_off()
    return grid.flat[0]
