"""Runs of DCC-Tree with the authors' settings, and what they score and cost."""

import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bdtppl.inference.dcc.combine import Component
from bdtppl.inference.evidence.estimates import EvidenceMethod
from benchmarks.compilations import Compilations
from benchmarks.processes import peak_memory
from benchmarks.soft.sets import REGRESSION, Runs, agreement, dcc_tree, split

__all__ = ["Score", "Weighed", "score"]


class Weighed(NamedTuple):
    """A topology: its code, log evidence with standard error and estimator, and probability."""

    code: str
    log_evidence: float
    standard_error: float
    method: str
    probability: float


class Score(NamedTuple):
    """One run; scores are mean squared errors or accuracies.

    Attributes
    ----------
    train, test, hard
        By the posterior mean: training rows, test rows, and test rows by hard routing.
    by_draw
        Mean over single draws, test rows.
    balanced
        By the authors' class-balanced votes, test rows; None in regression.
    seconds, cpu_seconds
        Of the fit, compilation included.
    proposals
        Draws of the chains, of which a proposal is one.
    weighted
        Share of proposals whose weight does not vanish in single precision, the authors'.
    peak
        Peak memory of the process, GB.
    compilations, compile_seconds
        XLA compilations of the fit, of all kinds, and what they took; some of them side by side.
    topologies
        The likeliest ones.
    """

    train: float
    test: float
    hard: float
    by_draw: float
    balanced: float | None
    seconds: float
    cpu_seconds: float
    proposals: int
    weighted: float
    peak: float
    compilations: int
    compile_seconds: float
    topologies: list[Weighed]


def score(name: str, seed: int, runs: Runs, evidence: EvidenceMethod = "auto") -> Score:
    """Run DCC-Tree with the authors' settings; for memory to mean anything, in a fresh process."""
    data, model = split(name), dcc_tree(name, runs, evidence=evidence, random_state=seed)
    start, cpu_start = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(), Compilations() as compilations:
        warnings.simplefilter("ignore")  # estimators of evidence are told
        model.fit(data.X, data.y)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    soft = model.posterior_.predictive(data.X_test).mean()
    hard = model.posterior_.predictive(data.X_test, sharpness=0.0).mean()
    balanced = None
    if name not in REGRESSION:
        votes = model.posterior_.predictive(data.X_test, votes="balanced").mean()
        balanced = agreement(model, votes, data.y_test)
    single = model.predict_draws(data.X_test)
    flat = single.reshape(-1, *single.shape[2:])
    return Score(
        train=agreement(model, model.posterior_.predictive(data.X).mean(), data.y),
        test=agreement(model, soft, data.y_test),
        hard=agreement(model, hard, data.y_test),
        by_draw=float(np.mean([agreement(model, each, data.y_test) for each in flat[::10]])),
        balanced=balanced,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        proposals=model.num_iterations_ * model.chains * model.draws,
        weighted=_weighted(model.components_),
        peak=peak_memory(),
        compilations=compilations.total,
        compile_seconds=compilations.seconds,
        topologies=[
            Weighed(
                part.topology.code,
                float(part.evidence.log_evidence),
                float(part.evidence.standard_error),
                part.evidence.method,
                part.probability,
            )
            for part in model.components_[:8]
        ],
    )


def _weighted(components: Sequence[Component]) -> float:
    weights = np.concatenate([part.probability * part.weight for part in components])
    return float((weights >= np.finfo(np.float32).tiny).mean())
