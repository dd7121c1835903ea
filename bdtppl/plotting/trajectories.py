"""Figures of chains: the probability of their trees, step by step."""

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.axes import prepared
from bdtppl.plotting.colours import INK, LINE, class_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_trajectories(model: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the log likelihood of each chain's tree against its steps, warm-up included.

    Soft trees have the log joint density instead, whose parameters are part of the chain. Chains
    that agree form one band; a chain that stays above or below the others has not found their trees
    (Angelopoulos and Cussens 2005, Figures 6 to 8).

    Parameters
    ----------
    model
        A fitted `MetropolisTreeClassifier`, `MetropolisTreeRegressor`, `RJHMCTreeClassifier` or
        `RJHMCTreeRegressor`.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model has no trajectories.

    Examples
    --------
    >>> from bdtppl import MetropolisTreeClassifier, plot_trajectories
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> ax = plot_trajectories(MetropolisTreeClassifier(draws=1000, random_state=0).fit(X, y))
    >>> ax.get_xlabel(), len(ax.get_lines())
    ('step', 5)
    """
    check_is_fitted(model)
    if model.trajectory_ is None:
        raise TypeError(
            f"plot_trajectories needs a model with Markov chains; got a {type(model).__name__}."
        )
    ax = prepared(ax)
    for chain, values in enumerate(model.trajectory_):
        ax.plot(
            model.trajectory_steps_,
            values,
            color=class_style(chain)["facecolor"],
            linewidth=0.8,
            alpha=0.8,
            label=f"chain {chain}",
            gid=f"chain-{chain}",
        )
    name, number = model.thrown_away
    if number:
        ax.axvline(number, color=LINE, linestyle="--", linewidth=0.8, label=f"end of {name}")
    ax.margins(x=0.01)
    ax.set_xlabel("step")
    ax.set_ylabel("log joint density" if model.trees_are == "soft" else "log likelihood")
    ax.legend(loc="lower right", fontsize="small", labelcolor=INK, frameon=False)
    return ax
