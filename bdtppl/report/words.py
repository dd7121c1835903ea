"""Models in words: sentences on priors, leaves, constraints and inferences."""

from collections.abc import Sequence
from typing import Any

from bdtppl.models.constraints import FUNCTIONS, Constraints
from bdtppl.models.leaves import dirichlet_in_words
from bdtppl.models.prior_kinds import RegisteredPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.models.wording import counted, describe_model, function_name, listed, number


def prior_in_words(prior: Any) -> list[str]:
    """Describe in sentences how probable a prior finds trees."""
    if not isinstance(prior, RegisteredPrior):
        return [f"The prior is {describe_model(prior)}."]
    said = prior.in_words()
    if getattr(prior, "rules", "gaps") == "cuts":
        said.append("Rules count by cut points, whether or not there are rows between them.")
    return said


def soft_model_in_words(model: Any, sharpness: float, classes: Sequence[Any] | None) -> list[str]:
    """Describe the assumptions of a soft tree."""
    said = [
        "Trees are soft: at a split a row goes to both sides, with probabilities that change over "
        f"a distance of about {number(sharpness)}; each column is scaled to [0, 1]."
    ]
    match model:
        case SoftRegression():
            law = (
                "normal"
                if model.degrees_of_freedom is None
                else f"Student-t with {number(model.degrees_of_freedom)} degrees of freedom"
            )
            noise = "one in each leaf" if model.by_leaf else "the same in all leaves"
            of = "variance" if model.noise_on == "variance" else "standard deviation"
            said.append(
                f"Targets are {law} around the leaves' means. A leaf's mean has a normal prior "
                f"with mean {number(model.mean_loc)} and standard deviation "
                f"{number(model.mean_scale)}; the noise, {noise}, has an inverse gamma prior of "
                f"its {of} with shape {number(model.noise_shape)} and scale "
                f"{number(model.noise_scale)}."
            )
        case SoftClassification() if model.likelihood == "compound":
            said.append(
                f"{dirichlet_in_words(model.concentration, classes)} Rows count in leaves by their "
                "probabilities there (the compound likelihood, which is not a distribution of "
                "labels: its evidence compares topologies and no other models)."
            )
        case SoftClassification():
            said.append(
                dirichlet_in_words(model.concentration, classes).replace(
                    " They are integrated out.", ""
                )
            )
    return said


def constraints_in_words(constraints: Constraints) -> list[str]:
    """Describe what the constraints forbid."""
    said = []
    if constraints.min_leaf > 1:
        said.append(f"A leaf has at least {constraints.min_leaf} rows.")
    if constraints.max_depth is not None:
        levels = counted(constraints.max_depth, "level", "levels")
        said.append(f"A tree has at most {levels} of splits.")
    if constraints.features is not None:
        said.append(f"Only {listed(constraints.features)} may be split on.")
    for first, then in constraints.before:
        said.append(f"Splits on {then} occur only below a split on {first}.")
    for depth, features in constraints.features_at_depth:
        said.append(f"At depth {depth} only {listed(features)} may be split on.")
    if constraints.keep_together:
        count = len(constraints.keep_together)
        said.append(f"{count} box{'es' if count > 1 else ''} of rows may not be cut.")
    for feature, direction in constraints.monotone:
        way = "fall" if direction > 0 else "rise"
        said.append(f"Predictions must not {way} along {feature}.")
    if constraints.refused:
        said.append(f"{counted(len(constraints.refused), 'cut is', 'cuts are')} refused.")
    for name in FUNCTIONS:
        if (function := getattr(constraints, name)) is not None:
            what = {"allows_rule": "rules", "allows_path": "paths", "allows_tree": "trees"}[name]
            said.append(f"Only {what} are allowed that pass a program, {function_name(function)}.")
    return said


def inference_in_words(model: Any) -> str:
    """Describe how the posterior was computed."""
    return model.in_words or f"The posterior was computed by {type(model).__name__}."
