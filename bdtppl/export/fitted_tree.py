"""One tree of a fitted estimator: its splits by column, and what its leaves predict."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.hard import TreeEstimator
from bdtppl.models.data.schema import Column
from bdtppl.models.data.splits import ColumnSplit
from bdtppl.models.hard.tree import Tree
from bdtppl.models.pytrees import describe_kind
from bdtppl.models.wording import threshold_text


@dataclass(frozen=True, eq=False)
class FittedTree:
    """A tree and its predictions; k slots, c classes.

    Attributes
    ----------
    model
        The estimator.
    rank
        0 for its most probable tree.
    tree
        The tree.
    probability
        Probability of the tree, as `k_best` gives it.
    value
        float64 [k] mean of the targets of each slot, or [k, c] class probabilities.
    rows
        float64 [k]; training rows in each leaf, by their weights.
    """

    model: Any
    rank: int
    tree: Tree
    probability: float
    value: np.ndarray
    rows: np.ndarray

    @property
    def title(self) -> str:
        """Name of the tree: whose it is, its rank and probability."""
        name = type(self.model).__name__
        which = "most probable tree" if self.rank == 0 else f"tree no. {self.rank + 1}"
        return f"{name}, {which} ({self.model.probability_name} {self.probability:.3g})"

    @property
    def classes(self) -> list | None:
        """Class labels as Python's own values; None for real targets."""
        return class_list(self.model)

    def prediction(self, slot: int, probability_of: Any = None) -> Any:
        """Most probable class of a slot, or the probability of a class, or the mean."""
        if self.classes is None:
            return float(self.value[slot])
        if probability_of is None:
            return self.classes[int(self.value[slot].argmax())]
        return float(self.value[slot, self.classes.index(plain(probability_of))])

    def split(self, slot: int) -> ColumnSplit | None:
        """Tell what a slot asks; None where it is a leaf."""
        if self.tree.feature[slot] < 0:
            return None
        return self.tree.split(slot).in_table(self.model.schema_, self.model.design_.has_missing)

    def threshold_text(self, column: Column, threshold: float) -> str:
        """Write a threshold of a numeric column, with the digits that part its values."""
        feature = self.model.schema_.features.index(column.name)
        return threshold_text(threshold, self.model.design_.values_around(feature, threshold))


def take_tree(model: Any, rank: int = 0, probability_of: Any = None) -> FittedTree:
    """Take a tree of a fitted estimator, by rank.

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.
    probability_of
        Class that `FittedTree.prediction` will be asked for, to be checked.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, or there is no such class.
    """
    require_hard_trees(model)
    tree, statistics = model._ranked(rank)
    require_axis_splits(model, tree)
    classes = class_list(model)
    if probability_of is not None:
        class_place(classes, probability_of)
    with jax.enable_x64(True):
        value = np.asarray(model.leaf_.posterior_mean(statistics))
    probability = float(model.k_best(rank + 1).probability[rank])
    return FittedTree(model, rank, tree, probability, value, model._rows_of_slots(tree))


def require_hard_trees(model: Any) -> None:
    """Raise TypeError unless a fitted estimator of hard trees is given."""
    if getattr(model, "trees_are", "hard") == "soft":
        raise TypeError(
            f"{type(model).__name__} has soft trees, in which a row goes to every leaf with a "
            f"weight: they cannot be written as rules. Fit an estimator of hard trees, such as "
            f"ExactTreeClassifier or MetropolisTreeRegressor."
        )
    if getattr(model, "trees_are", "hard") == "sums":
        raise TypeError(
            f"{type(model).__name__} has sums of many trees, which have no rules to write: to_sql, "
            f"to_json and to_html write their effects. Or fit an estimator of single trees, such "
            f"as ExactTreeClassifier or MetropolisTreeRegressor."
        )
    if isinstance(model, type) or not isinstance(model, TreeEstimator):
        raise TypeError(f"A fitted estimator of hard trees is needed; got {describe_kind(model)}.")
    check_is_fitted(model)


def require_axis_splits(model: Any, trees: Tree) -> None:
    """Raise ValueError if a tree splits by a hyperplane."""
    if (trees.feature >= len(model.schema_.features)).any():
        raise ValueError(
            "The tree splits by a hyperplane, a cut of several columns at once, which only "
            "`rules` writes: fit with hyperplanes=0."
        )


def class_place(classes: list | None, probability_of: Any) -> int:
    """Find a class among others; ValueError where there is none of that name."""
    if classes is not None and plain(probability_of) in classes:
        return classes.index(plain(probability_of))
    known = "it is a regressor" if classes is None else f"its classes are {classes}"
    raise ValueError(
        f"probability_of must be a class of the model; got {probability_of!r}, but {known}."
    )


def plain(label: Any) -> Any:
    """Turn a label into one of Python's own values."""
    return label.item() if isinstance(label, np.generic) else label


def class_list(model: Any) -> list | None:
    """List class labels as Python's own values; None for real targets."""
    classes = model.class_labels
    return None if classes is None else [plain(label) for label in classes]
