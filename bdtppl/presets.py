"""Settings of published experiments, as parameters of the estimators.

Examples
--------
>>> from bdtppl import GFlowNetTreeClassifier
>>> model = GFlowNetTreeClassifier(**dt_gfn(num_features=4))
>>> model.grid, model.max_depth, model.steps
(99, 5, 100)
"""

from typing import Any, Literal

import numpy as np

from bdtppl.estimators.parameters import require_integer
from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.models.priors import DescriptionLength

__all__ = ["dt_gfn"]


def dt_gfn(num_features: int, table: Literal[5, 6] = 5) -> dict[str, Any]:
    """Look up DT-GFN's Tables 5 and 6, as parameters of `GFlowNetTreeClassifier`.

    What the tables leave open is as elsewhere: the rate falls along a cosine, random actions become
    rarer, and leaves have Dirichlet(0.1).

    Parameters
    ----------
    num_features
        Features d of the training rows; a split costs log 4 + log d.
    table
        5: all experiments but that of Figure 4. 6: that one, whose numbers of draws and of training
        steps vary; they are those of Table 5 here.

    Returns
    -------
    dict
        Parameters by name. ``max_depth`` is the tables' as printed; the authors' code counts levels
        of nodes, and so has one level of splits less.

    Raises
    ------
    ValueError
        If there is no such table, or no feature.

    References
    ----------
    Learning Decision Trees as Amortized Structure Inference (DT-GFN), 2025, appendices F.2, G.1.

    Examples
    --------
    >>> small = dt_gfn(num_features=4, table=6) | {"draws": 10}
    >>> small["grid"], small["max_depth"], small["settings"].buffer_size
    (9, 3, 10)
    """
    if table not in (5, 6):
        raise ValueError(f"table must be 5 or 6; got {table!r}.")
    require_integer("num_features", num_features)
    is_small = table == 6
    return {
        "method": "trajectory",
        "prior": DescriptionLength(float(np.log(4 * num_features))),
        "max_depth": 3 if is_small else 5,
        "grid": 9 if is_small else 99,
        "chains": 4,
        "draws": 250,
        "steps": 100,
        "time_limit": None,
        "ensemble": "algorithm-1",
        "settings": PolicySettings(
            learning_rate=0.01,
            num_forward=90,
            num_replayed=10,
            buffer_size=10 if is_small else 100,
            epsilon=0.05 if is_small else 0.1,
        ),
    }
