"""Extensions and diagnostics shared by estimators that run chains."""

import math
import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from bdtppl.estimators.parameters import parameter
from bdtppl.estimators.results import LARGEST_R_HAT
from bdtppl.inference.summaries.diagnostics import diagnose, dissenting_chains
from bdtppl.inference.summaries.followed import followed, predicted
from bdtppl.summary import why_no_r_hat


def extensions_to(doubled: str, most: str, asks: str = "") -> Any:
    """Declare how often chains that disagree are extended."""
    return parameter(
        "auto",
        f"How often chains that disagree (R-hat above {LARGEST_R_HAT}) are extended: the draws so "
        f'far become warm-up, and {doubled}. "auto" allows at most {most} extensions, fewer on '
        f"many rows, where they take long.{asks}",
        least=0,
        option=int,
        is_of_run=False,
    )


def agree(posterior: Any) -> bool:
    """Return whether chains agree, as far as is known."""
    r_hats = [each.r_hat for each in diagnose(followed(posterior)).values()]
    return not any(r_hat > LARGEST_R_HAT for r_hat in r_hats)


def predictions_agree(posterior: Any) -> bool:
    """Return whether chains of sums agree on predictions, as far as is known."""
    r_hat = diagnose({"predictions": predicted(posterior)})["predictions"].r_hat
    return not r_hat > LARGEST_R_HAT


def num_extensions(model: Any, work: float, most_work: float, most: int) -> int:
    """Return how often the chains of an estimator may be extended.

    Parameters
    ----------
    model
        The estimator; a number in its ``extensions`` is returned.
    work
        Work of one step.
    most_work, most
        Limits on the work of all steps and on the extensions.
    """
    if model.extensions != "auto":
        return model.extensions
    kept = model.draws * model.thin
    steps = [model.warmup + kept * (2 ** (number + 1) - 1) for number in range(1, most + 1)]
    return sum(each * work <= most_work for each in steps)


def judge_chains(model: Any, advice: str) -> None:
    """Set ``diagnostics_`` of an estimator, and warn if its chains disagree; called by `_fit`.

    Parameters
    ----------
    model
        The estimator, with its posterior.
    advice
        What to do if chains disagree.
    """
    values = followed(model.posterior_)
    model.diagnostics_ = {name: each._asdict() for name, each in diagnose(values).items()}
    said = ""
    if why := why_no_r_hat(*model.posterior_.num_leaves.shape):
        said = (
            f"Convergence cannot be assessed: {why}, and R-hat compares at least two chains of at "
            "least 4 draws each. Raise chains or draws."
        )
    r_hats = {name: each["r_hat"] for name, each in model.judged.items()}
    worst = max(r_hats, key=lambda name: -math.inf if math.isnan(r_hats[name]) else r_hats[name])
    if r_hats[worst] > LARGEST_R_HAT:
        others = _in_words(dissenting_chains(values[worst], LARGEST_R_HAT), model.chains)
        said = (
            f"Chains disagree: R-hat of {worst} is {r_hats[worst]:.2f}, above {LARGEST_R_HAT}"
            f"{others}. {advice}"
        )
    if said:
        warnings.warn(said, ConvergenceWarning, stacklevel=4)  # the caller of `fit`


def _in_words(chains: list[int], num_chains: int) -> str:
    """Name the chains that differ from the others."""
    if not chains:
        return ""
    if len(chains) == num_chains - 2:
        group = "group of three chains agrees" if num_chains > 3 else "two chains agree"
        return f", and no {group}"
    if len(chains) == 1:
        return f" (chain {chains[0]} differs from the others)"
    return f" (chains {', '.join(map(str, chains))} differ from the others)"
