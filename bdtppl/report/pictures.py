"""Figures embedded in a page: data URIs, which need no other file."""

import base64
import io
from collections.abc import Callable
from typing import Any

from bdtppl.report.blocks import Figure

_MOST_SVG = 400_000  # size in bytes from which a drawing is rasterised
_DOTS = 160  # an inch
_PIXELS = 96  # CSS pixels, an inch
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "svg.fonttype": "path",  # the reader may lack the font
    "svg.hashsalt": "bdtppl",  # the same fit gives the same page
    "figure.facecolor": "white",
}


def picture(draw: Callable[[], Any], text: str, caption: str) -> Figure:
    """Draw a figure and encode it.

    Parameters
    ----------
    draw
        A function that returns axes, or an array of them, of a new figure.
    text, caption
        See `Figure`.

    Examples
    --------
    >>> from matplotlib import pyplot
    >>> found = picture(lambda: pyplot.subplots(figsize=(2, 1))[1], "no lines", "Empty axes.")
    >>> found.width, found.source[:26]
    (192, 'data:image/svg+xml;base64,')
    """
    from matplotlib import pyplot

    with pyplot.ioff(), pyplot.rc_context(_STYLE):
        axes = draw()
        figure = getattr(axes, "figure", None) or axes[0].figure
        try:
            width, height = (round(_PIXELS * inches) for inches in figure.get_size_inches())
            data, kind = _saved(figure, format="svg", metadata={"Date": None}), "svg+xml"
            if len(data) > _MOST_SVG:
                data, kind = _saved(figure, format="png", dpi=_DOTS), "png"
        finally:
            pyplot.close(figure)
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Figure(source, width, height, text, caption)


def _saved(figure: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()
