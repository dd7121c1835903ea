"""Trees as ONNX models, through scikit-learn and skl2onnx."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from bdtppl.export.fitted_tree import require_hard_trees
from bdtppl.export.scikit_learn import to_sklearn


def to_onnx(model: Any, rank: int = 0) -> Any:
    """Convert a tree to an ONNX model, which runs where there is no Python.

    Its input is ``X``, float32 [m, d], the features that `to_sklearn` describes; its outputs are
    ``label`` and ``probabilities`` [m, c] for classes, ``variable`` [m, 1] for real targets.
    Predictions are rounded to single precision; labels that are numbers are whole ones.

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.

    Returns
    -------
    onnx.ModelProto
        The model; ``SerializeToString()`` gives the bytes of an ``.onnx`` file.

    Raises
    ------
    ImportError
        If skl2onnx is not installed.
    TypeError
        If it is no estimator of hard trees.
    ValueError
        As `to_sklearn` does, or if a leaf's mean is too large for single precision.

    Examples
    --------
    >>> from pathlib import Path
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier().fit([[1.0], [2.0]] * 9, ["a", "b"] * 9)
    >>> path = Path("tree.onnx")
    >>> path.write_bytes(to_onnx(model).SerializeToString()) == path.stat().st_size
    True
    """
    require_hard_trees(model)
    if find_spec("skl2onnx") is None:
        raise ImportError(
            "ONNX models are written by skl2onnx, which is not installed: run `python -m pip "
            "install 'bdtppl[export]'`."
        )
    from skl2onnx import convert_sklearn  # pyright: ignore[reportMissingImports]
    from skl2onnx.common.data_types import FloatTensorType  # pyright: ignore[reportMissingImports]

    tree = to_sklearn(model, rank)
    largest, most = float(np.abs(tree.tree_.value).max()), float(np.finfo(np.float32).max)
    if largest > most:
        raise ValueError(
            f"A leaf predicts {largest:.3g} (or minus that), and ONNX models of trees hold single "
            f"precision, at most {most:.3g}: fit to targets in a larger unit."
        )
    inputs = [("X", FloatTensorType([None, tree.n_features_in_]))]
    options = {id(tree): {"zipmap": False}} if hasattr(tree, "classes_") else None
    name = type(model).__name__
    converted: Any = convert_sklearn(tree, name=name, initial_types=inputs, options=options)
    for node in converted.graph.node:
        for attribute in node.attribute:  # skl2onnx sends all missing values to the right
            if attribute.name == "nodes_missing_value_tracks_true":
                attribute.ints[:] = tree.tree_.missing_go_to_left.tolist()
    return converted
