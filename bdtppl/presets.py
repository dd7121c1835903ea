"""Settings of published experiments, as parameters of the estimators.

Examples
--------
>>> from bdtppl import GFlowNetTreeClassifier
>>> model = GFlowNetTreeClassifier(**dt_gfn(num_features=4))
>>> model.grid, model.max_depth, model.steps
(99, 5, 100)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.inference.metropolis.alternate import Alternate
from bdtppl.inference.metropolis.proposals import as_kernel
from bdtppl.inference.metropolis.restructure import Restructure
from bdtppl.models.arguments import require_integer
from bdtppl.models.leaf_count_priors import Pinball
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength
from bdtppl.models.soft.topology import TopologyPrior
from bdtppl.models.soft.tree import SoftRegression

# h_init and h_final of DCC-Tree's Table 5, and N_INIT of section 4.1 or of the authors' program.
_DCC_TREE = {
    "bcw": (0.1, 0.025, 1000),
    "cgm": (0.01, 0.001, 5000),
    "iris": (0.01, 0.01, 1000),
    "raisin": (0.05, 0.001, 1000),
    "wine": (0.025, 0.025, 1000),
    "wu": (0.5, 0.025, 2000),
}


def dcc_tree(data_set: Literal["bcw", "cgm", "iris", "raisin", "wine", "wu"]) -> dict[str, Any]:
    """Return DCC-Tree's Table 5 and section 4, as parameters of `DCCTreeRegressor` or -Classifier.

    Settings that the paper leaves open follow the authors' program: 16 chains, 100 initial trees,
    and in regression (CGM, WU) a prior on the noise's standard deviation. Pilots, restarts, the
    mixture of all proposals as the denominator of the importance weights, and tempered SMC for
    uneven weights are ours.

    Parameters
    ----------
    data_set
        A data set of the paper, by its name in lower case.

    Returns
    -------
    dict
        Parameters by name.

    Raises
    ------
    ValueError
        If the paper has no such data set.

    References
    ----------
    Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling,
    section 4, appendix D.

    Examples
    --------
    >>> from bdtppl import DCCTreeClassifier
    >>> model = DCCTreeClassifier(**dcc_tree("iris"))
    >>> model.h_init, model.h_final, model.iterations
    (0.01, 0.01, 500)
    """
    h_init, h_final, warmup = _DCC_TREE[_known("data_set", data_set, _DCC_TREE)]
    return {
        "iterations": 500,
        "initial_trees": 100,
        "chains": 16,
        "warmup": warmup,
        "draws": 100,
        "pseudo_samples": 10,
        "h_init": h_init,
        "h_final": h_final,
        "topology_prior": TopologyPrior(0.95, 1.0),
        "model": SoftRegression(noise_on="sd") if data_set in ("cgm", "wu") else None,
    }


def plain_chains() -> dict[str, Any]:
    """Return the papers' settings of Markov chains, as parameters of `MetropolisTreeClassifier`.

    Each chain walks alone, over all cuts and for the requested number of steps. The estimator's
    defaults temper the chains, use buckets, and extend chains that disagree.

    Returns
    -------
    dict
        Parameters by name.

    References
    ----------
    Chipman, George and McCulloch 1998; Denison, Mallick and Smith 1998; Angelopoulos and Cussens
    2005; Wu, Tjelmeland and West 2007.

    Examples
    --------
    >>> plain_chains()
    {'temperatures': 1, 'extensions': 0, 'bins': None}
    """
    return {"temperatures": 1, "extensions": 0, "bins": None}


def dcc_tree_rival(method: Literal["RJHMC", "WU", "CGM"]) -> dict[str, Any]:
    """Return settings of the other methods of DCC-Tree's Table 4, on the data of Wu et al. 2007.

    Parameters
    ----------
    method
        "RJHMC", for `RJHMCTreeRegressor`; "WU" or "CGM", the samplers of Wu et al. 2007 and of
        Chipman et al. 1998, for `MetropolisTreeRegressor`.

    Returns
    -------
    dict
        Parameters by name; the table does not give lengths of chains. WU and CGM are
        `plain_chains`. Wu et al.'s p = 0.7, by which leaves are divided, is not used: our pinball
        prior divides them evenly, by a beta-binomial distribution. Their moves are those of Chipman
        et al., and a restructuring every tenth time.

    Raises
    ------
    ValueError
        If the table has no such method.

    References
    ----------
    See `dcc_tree`.

    Examples
    --------
    >>> from bdtppl import RJHMCTreeRegressor
    >>> RJHMCTreeRegressor(**dcc_tree_rival("RJHMC")).topology_prior
    TopologyPrior(alpha=0.45, beta=2.5)
    """
    chipman = as_kernel("chipman")
    rivals: dict[str, dict[str, Any]] = {
        "RJHMC": {
            "h_init": 0.025,
            "h_final": 0.025,
            "topology_prior": TopologyPrior(0.45, 2.5),
            "model": SoftRegression(noise_on="sd"),
            "start": "prior",
        },
        "WU": {
            "prior": Pinball(10.0),
            "leaf": NormalInverseGamma(1.0, 1.0, 4.0, 4.0),
            "proposal": Alternate(chipman, Restructure()),
            **plain_chains(),
        },
        "CGM": {
            "prior": DepthDecay(0.95, 1.0),
            "leaf": NormalInverseGamma(1.0, 0.5, 3.5, 0.5),
            "proposal": chipman,
            **plain_chains(),
        },
    }
    return rivals[_known("method", method, rivals)]


def _known(name: str, value: Any, choices: Mapping[str, Any]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
    return value


def dt_gfn(
    num_features: int, table: Literal[5, 6] = 5, *, as_published_code: bool = False
) -> dict[str, Any]:
    """Return DT-GFN's Tables 5 and 6, as parameters of `GFlowNetTreeClassifier`.

    Settings that the tables leave open are our defaults: the rate falls along a cosine, random
    actions become rarer, and leaves have Dirichlet(0.1).

    Parameters
    ----------
    num_features
        Features d of the training rows; a split costs log 4 + log d.
    table
        5 for all experiments except that of Figure 4; 6 for that one. Its numbers of draws and
        training steps vary; those of Table 5 are used here.
    as_published_code
        Whether to follow the authors' code where it departs from the paper: the backward policy is
        learned, the rate and exploration are constant, log Z has Adam, and one tree is remembered.
        Their log Z is a sum of 16 numbers, each with rate 1.

    Returns
    -------
    dict
        Parameters by name. ``max_depth`` is the tables' as printed; the authors' code counts levels
        of nodes, so it has one level of splits less, like ``as_published_code``.

    Raises
    ------
    ValueError
        If there is no such table, or no feature.

    References
    ----------
    Mahfoud et al. 2025, Learning Decision Trees as Amortized Structure Inference (DT-GFN),
    appendices F.2 and G.1.

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
    settings = PolicySettings(
        learning_rate=0.01,
        num_forward=90,
        num_replayed=10,
        buffer_size=10 if is_small else 100,
        epsilon=0.05 if is_small else 0.1,
    )
    if as_published_code:
        settings = replace(
            settings,
            learns_backward=True,
            decay="constant",
            last_epsilon=settings.epsilon,
            log_z_optimiser="adam",
            log_z_learning_rate=16.0,
            buffer_size=1,
        )
    return {
        "method": "trajectory",
        "prior": DescriptionLength(float(np.log(4 * num_features))),
        "max_depth": (3 if is_small else 5) - as_published_code,
        "grid": 9 if is_small else 99,
        "chains": 4,
        "draws": 250,
        "steps": 100,
        "time_limit": None,
        "ensemble": "algorithm-1",
        "settings": settings,
    }
