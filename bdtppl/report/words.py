"""Models in words: priors, leaves, constraints and ways of getting at a posterior, as sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bdtppl.estimators.hard import describe_model
from bdtppl.models.constraints import Constraints
from bdtppl.models.leaf_count_priors import LeafCount, Pinball
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import (
    DepthDecay,
    DescriptionLength,
    GreedyPartition,
    LeafPenalty,
    Program,
)
from bdtppl.models.pytrees import Number
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

__all__ = [
    "constraints_in_words",
    "counted",
    "inference_in_words",
    "leaf_in_words",
    "listed",
    "number",
    "prior_in_words",
    "soft_model_in_words",
]

_SHOWN = 8


def number(value: Number) -> str:
    """Write a number with four digits.

    Examples
    --------
    >>> number(2.0), number(1 / 3), number(123456.7)
    ('2', '0.3333', '1.235e+05')
    """
    return f"{float(value):.4g}"


def counted(count: int, one: str, many: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> counted(1, "leaf", "leaves"), counted(1200, "leaf", "leaves")
    ('1 leaf', '1,200 leaves')
    """
    return f"{count:,} {one if count == 1 else many}"


def listed(names: Sequence[Any], most: int = _SHOWN) -> str:
    """Join names as a sentence does, and count those that are too many.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed("abcd", 2)
    ('a, b and c', 'a, b and 2 more')
    """
    names = [str(name) for name in names]
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def prior_in_words(prior: Any) -> list[str]:
    """Say in sentences how probable a prior finds trees."""
    match prior:
        case LeafPenalty():
            factor = number(np.exp(prior.log_phi))
            said = [
                f"Before the data are seen a tree is {factor} times less probable for each split "
                f"it has more; apart from that all trees are equally probable. Rules that part "
                f"the rows alike count as one."
            ]
        case DescriptionLength():
            said = [
                f"Before the data are seen a tree loses {number(prior.beta)} nats for each split, "
                f"about what it takes to write the split down. Apart from that all trees are "
                f"equally probable."
            ]
        case DepthDecay():
            shares = [number(prior.alpha * (1 + depth) ** -prior.beta) for depth in range(3)]
            said = [_chances(shares), _rule_in_words(prior)]
        case GreedyPartition():
            shares = [number(prior.p ** (1 + depth)) for depth in range(3)]
            feature = "A split looks at any column with the same probability"
            said = [_chances(shares), f"{feature}, and {_cut_in_words(prior)}."]
        case Program():
            name = getattr(prior.split_probability, "__name__", "a function")
            said = [
                f"A node splits with a probability that a program gives, {name}.",
                _rule_in_words(prior),
            ]
        case LeafCount():
            said = [
                f"The number of leaves has a Poisson law of rate {number(prior.rate)}, between 1 "
                f"and {prior.max_leaves}; all trees of one number of leaves are equally probable."
            ]
        case Pinball():
            said = [
                f"The number of leaves is one more than a Poisson variable of rate "
                f"{number(prior.rate)}, at most {prior.max_leaves}. Leaves fall down the tree and "
                f"part at every split by a beta-binomial law with parameter "
                f"{number(prior.balance)}."
            ]
        case _:
            said = [f"The prior is {describe_model(prior)}."]
    if getattr(prior, "rules", "gaps") == "cuts":
        said.append("Rules count by cut points, whether or not rows lie between them.")
    return said


def _chances(shares: Sequence[str]) -> str:
    return (
        f"Before the data are seen the root splits with probability {shares[0]}, a node below it "
        f"with probability {shares[1]}, one below that with {shares[2]}, and so on."
    )


def _rule_in_words(prior: Any) -> str:
    if prior.over == "rules":
        return "All rules that a node can split by are equally probable, or as weights say."
    weights = prior.feature_weights
    if callable(weights):
        chosen = "with a probability that a program gives"
    elif weights is None or len({_weight(each) for each in weights}) <= 1:
        chosen = "with the same probability"
    else:
        chosen = "in proportion to given weights"
    return f"A split looks at each column that it can use {chosen}, and {_cut_in_words(prior)}."


def _weight(pair: Any) -> float:
    return float(pair[1] if isinstance(pair, tuple) else pair)


def _cut_in_words(prior: Any) -> str:
    if callable(prior.cut_weights):
        return "cuts it where a program says"
    if prior.cut_weights == "gap":
        return "cuts it anywhere in the node's range with the same density"
    return "cuts it at each possible place with the same probability"


def leaf_in_words(leaf: Any, classes: Sequence[Any] | None) -> str:
    """Say what is assumed of the targets in a leaf."""
    match leaf:
        case DirichletCategorical():
            return _dirichlet(leaf.concentration, classes)
        case NormalInverseGamma():
            spread = leaf.scale / (leaf.shape - 1) if leaf.shape > 1 else np.nan
            variance = (
                f"a prior mean of {number(spread)} (a standard deviation of "
                f"{number(np.sqrt(spread))})"
                if np.isfinite(spread)
                else "a prior of infinite mean"
            )
            return (
                f"Targets in a leaf are normal with a mean and a variance of the leaf's own. The "
                f"mean is expected near {number(leaf.mean)}, which counts as much as "
                f"{_rows(leaf.pseudo_count)}; the variance has an inverse gamma prior of "
                f"shape {number(leaf.shape)} and scale {number(leaf.scale)}, {variance}. Both are "
                f"integrated out, so that predictions have Student-t laws."
            )
    return f"The leaf family is {describe_model(leaf)}."


def _rows(count: Number) -> str:
    return f"{number(count)} row{'' if count == 1 else 's'}"


def _dirichlet(concentration: Any, classes: Sequence[Any] | None) -> str:
    values = np.ravel(concentration)
    if np.ptp(values) == 0:
        prior = f"concentration {number(values[0])} for each class"
        rows = f"{_rows(values[0])} of each class"
    else:
        names = range(len(values)) if classes is None else classes
        pairs = [f"{name} {number(v)}" for name, v in zip(names, values, strict=True)]
        prior, rows = f"concentrations {listed(pairs)}", "so many rows of each class"
    return (
        f"Each leaf has class probabilities of its own, with a Dirichlet prior of {prior}: as if "
        f"{rows} had been seen there before. They are integrated out."
    )


def soft_model_in_words(model: Any, sharpness: float, classes: Sequence[Any] | None) -> list[str]:
    """Say what is assumed of a soft tree."""
    said = [
        f"Trees are soft: at a split a row goes to both sides, with probabilities that change from "
        f"one side to the other over a distance of about {number(sharpness)}, each column being "
        f"scaled to [0, 1]."
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
                f"{_dirichlet(model.concentration, classes)} Rows count in leaves by their "
                f"probabilities there (the compound likelihood, which is no law of labels: its "
                f"evidence compares topologies and no other models)."
            )
        case SoftClassification():
            said.append(
                _dirichlet(model.concentration, classes).replace(" They are integrated out.", "")
            )
    return said


def constraints_in_words(constraints: Constraints) -> list[str]:
    """Say what trees may not do."""
    said = []
    if constraints.min_leaf > 1:
        said.append(f"A leaf has at least {constraints.min_leaf} rows.")
    if constraints.max_depth is not None:
        levels = counted(constraints.max_depth, "level", "levels")
        said.append(f"A tree has at most {levels} of splits.")
    if constraints.features is not None:
        said.append(f"Only {listed(constraints.features)} may be split on.")
    for first, then in constraints.before:
        said.append(f"Splits on {then} stand only below a split on {first}.")
    for depth, features in constraints.features_at_depth:
        said.append(f"At depth {depth} only {listed(features)} may be split on.")
    if constraints.keep_together:
        count = len(constraints.keep_together)
        said.append(f"{count} box{'es' if count > 1 else ''} of rows may not be cut.")
    for feature, direction in constraints.monotone:
        way = "fall" if direction > 0 else "rise"
        said.append(f"Predictions must not {way} along {feature}.")
    return said


_INFERENCES = {
    "ExactTree": (
        "The posterior is exact: sums over all trees of the grammar of subproblems (Sullivan et "
        "al. 2023). Nothing in the evidence, the probabilities and the predictions is estimated."
    ),
    "GreedyModalTree": (
        "The tree was grown from the root down, each node by its most probable partition (greedy "
        "modal tree, Nuti et al. 2021). It is a good tree, not a posterior: how sure one can be of "
        "its splits is not known."
    ),
    "MetropolisTree": (
        "Trees were drawn by Markov chains (Metropolis-Hastings) whose law is the posterior in the "
        "long run."
    ),
    "ParticleTree": (
        "Trees were grown from the root by particle filters, which give weighted draws and an "
        "unbiased estimate of the evidence (Lakshminarayanan et al. 2013)."
    ),
    "DCCTree": (
        "Soft trees were sampled within each topology by Hamiltonian Monte Carlo, and topologies "
        "weighed by their estimated evidence (DCC-Tree, Cochrane et al. 2024)."
    ),
    "RJHMCTree": (
        "Soft trees were drawn by Markov chains that jump between topologies and move within each "
        "by Hamiltonian Monte Carlo (RJHMC-Tree, Cochrane et al. 2023)."
    ),
    "GFlowNetTree": (
        "Trees were drawn by a policy trained to draw from the posterior (generative flow network, "
        "DT-GFN 2025), and weighed by importance weights."
    ),
}


def inference_in_words(model: Any) -> str:
    """Say how the posterior was got."""
    name = type(model).__name__.removesuffix("Classifier").removesuffix("Regressor")
    return _INFERENCES.get(name, f"The posterior was got by {name}.")
