"""Colours that most colour-blind readers can distinguish, the same in every figure."""

from typing import Any

INK = "#222222"
LINE = "#7f7f7f"
FAINT = "#e6e6e6"
ACCENT = "#0072b2"

# Okabe and Ito (2008), without black, which is the ink, and with yellow last for its low contrast.
_CLASSES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
NUM_COLOURS = len(_CLASSES)
_HATCHES = ("", "////", "....", "xxxx", "----", "||||")


def class_style(index: int) -> dict[str, Any]:
    """Return the fill of a class: seven colours, then the same seven hatched.

    Examples
    --------
    >>> class_style(0)["facecolor"], class_style(7)["facecolor"], class_style(7)["hatch"]
    ('#0072b2', '#0072b2', '////')
    """
    lap, colour = divmod(index, len(_CLASSES))
    return {
        "facecolor": _CLASSES[colour],
        "hatch": _HATCHES[lap % len(_HATCHES)],
        "edgecolor": "white",
    }


def tint(share: float, colour: str = ACCENT) -> tuple[float, float, float]:
    """Mix a colour, with a share of 0 to 1, with white.

    Unlike transparency, a tint looks the same where two areas overlap and in the legend.

    Examples
    --------
    >>> tint(0.0)
    (1.0, 1.0, 1.0)
    """
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)
