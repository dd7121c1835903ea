"""The posterior over structures against enumeration; Monte Carlo errors are what they say."""

import json

import enumeration as reference
import numpy as np
import pytest
from every_estimator import FAST, FITS, X, fitted
from tiers import slow_but

from bdtppl import ExactTreeClassifier
from bdtppl.inference.summaries.co_membership import hard_co_membership
from bdtppl.inference.summaries.proportions import share_errors
from bdtppl.models.priors import DepthDecay
from bdtppl.structures import _evidence_errors

RNG = np.random.default_rng(3)
CODES = np.stack([RNG.permutation(7) for _ in range(2)], axis=1)
LABELS = (CODES[:, 0] > 2).astype(int)


@pytest.fixture(scope="module")
def enumerated() -> list[tuple[reference.Leaf | reference.Split, float]]:
    problem = reference.Problem(CODES, max_depth=2)
    leaf = reference.DirichletCategorical(LABELS, [1.0, 1.0])
    scored = reference.trees(problem, reference.DepthDecay(0.9, 1.0), leaf)
    return list(reference.tree_probabilities(scored).items())


@pytest.fixture(scope="module")
def exact():
    model = ExactTreeClassifier(
        prior=DepthDecay(0.9, 1.0), max_depth=2, bins=None, chains=4, draws=500, random_state=0
    )
    return model.fit(CODES.astype(float), LABELS)


def leaves(tree) -> list[list[int]]:
    if isinstance(tree, reference.Leaf):
        return [sorted(tree.rows)]
    return leaves(tree.left) + leaves(tree.right)


def together(tree) -> np.ndarray:
    matrix = np.zeros((len(LABELS), len(LABELS)))
    for rows in leaves(tree):
        matrix[np.ix_(rows, rows)] = 1
    return matrix


def test_the_exact_posterior_is_that_of_enumeration(exact, enumerated):
    found = exact.structures("tree")
    probabilities = np.sort([p for _, p in enumerated])[::-1]
    np.testing.assert_allclose(found.probability, probabilities[: len(found.probability)])
    assert found.credible_set(0.9) == int((np.cumsum(probabilities) < 0.9).sum()) + 1
    assert found.entropy == pytest.approx(-(probabilities * np.log(probabilities)).sum())
    uses = [{split.rule.feature for split in reference.tree_splits(tree)} for tree, _ in enumerated]
    for feature, share in enumerate(found.inclusion):
        wanted = sum(p for (_, p), used in zip(enumerated, uses, strict=True) if feature in used)
        assert share == pytest.approx(wanted)
    assert not found.error.any()
    assert not found.inclusion_error.any()


def test_partitions_add_up_the_trees_of_enumeration(exact, enumerated):
    """All trees are listed until they have nine tenths; 1 in 10 of what is left may be missing."""
    number = len(exact.structures("tree").probability)
    wanted: dict[frozenset, float] = {}
    for tree, p in sorted(enumerated, key=lambda each: -each[1])[:number]:
        key = frozenset(map(frozenset, leaves(tree)))
        wanted[key] = wanted.get(key, 0) + p
    found = exact.structures()
    assert len(found.probability) == len(wanted) < number
    np.testing.assert_allclose(found.probability, sorted(wanted.values(), reverse=True))


def test_co_membership_is_that_of_enumeration(exact, enumerated):
    wanted = sum(p * together(tree) for tree, p in enumerated)
    found = exact.structures()
    np.testing.assert_allclose(found.co_membership, wanted, atol=1e-9)
    listed = found.ranked.trees
    distances = [
        ((hard_co_membership(listed[i].reshape(1), np.ones(1), CODES) - wanted) ** 2).mean()
        for i in range(listed.batch_shape[0])
    ]
    rank, distance = found._nearest
    assert distance == pytest.approx(min(distances))
    assert distances[rank] == pytest.approx(min(distances))
    assert found.consensus.num_leaves == listed[rank].num_leaves


def z_scores(model, enumerated) -> np.ndarray:
    """How many of its errors each share of the draws is off."""
    posterior = model.posterior_
    wanted = sum(p * together(tree) for tree, p in enumerated)
    share = hard_co_membership(posterior.ranked.trees, posterior.ranked.probability, CODES)
    apart = np.triu_indices(len(LABELS), 1)
    error = np.sqrt(wanted * (1 - wanted) / posterior.weights.size)
    return ((share - wanted) / error)[apart]


def test_draws_estimate_co_membership(exact, enumerated):
    """2,000 independent draws, 21 pairs: the greatest of |z| exceeds 4.9 in less than 1 of 1e4."""
    assert np.abs(z_scores(exact, enumerated)).max() < 4.9


def test_check_of_draws_sees_other_weights(exact, enumerated):
    flattened = [(tree, p**0.8) for tree, p in enumerated]
    total = sum(p for _, p in flattened)
    assert np.abs(z_scores(exact, [(tree, p / total) for tree, p in flattened])).max() > 4.9


def test_errors_of_chains_are_those_of_repetitions():
    """A chain of two states that stays with probability .9: the variance is 9 times larger.

    The mean of 400 estimated errors is within an eighth of the truth; its own error is 1 %, and the
    bias of batches of 50 some 5 %. Taken for independent, the draws seem three times as good.
    """
    rng = np.random.default_rng(0)
    stays = rng.random((400, 2500)) < 0.9
    state = (np.cumsum(~stays, axis=1) + rng.integers(0, 2, (400, 1))) % 2
    weights = np.full((1, 2500), 1 / 2500)
    exact = np.sqrt(0.25 * 9 / 2500)
    found = [share_errors(s[None, :, None], weights, "chains")[0] for s in state]
    naive = [share_errors(s[None, :, None], weights, "independent")[0] for s in state]
    assert np.mean(found) == pytest.approx(exact, rel=0.12)
    assert np.mean(naive) == pytest.approx(exact / 3, rel=0.12)


def test_errors_of_runs_and_of_weighted_draws_are_those_of_repetitions():
    """Hold the mean of 2,000 squared errors to the variance of the shares, within 15 %."""
    rng = np.random.default_rng(1)
    size = (2000, 10, 40)
    member = rng.random(size) < 0.3
    weights = rng.gamma(2.0, size=size)
    weights /= weights.sum(axis=(1, 2), keepdims=True)
    shares = (weights * member).sum(axis=(1, 2))
    for kind in ("independent", "runs"):
        errors = [
            share_errors(m[..., None], w, kind)[0] for m, w in zip(member, weights, strict=True)
        ]
        assert np.mean(np.square(errors)) == pytest.approx(shares.var(), rel=0.15)


def test_errors_of_topologies_follow_from_those_of_evidence():
    """By the delta method; here against 200,000 repetitions, whose own error is below 1 %."""
    log_z, errors = np.log([0.6, 0.3, 0.1]), np.array([0.02, 0.05, 0.01])
    noisy = np.exp(log_z + np.random.default_rng(0).normal(0, errors, (200_000, 3)))
    shares = noisy / noisy.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        _evidence_errors(np.exp(log_z), errors), shares.std(axis=0), rtol=0.03
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(FAST, FITS, few=7))
def test_every_estimator_sums_its_structures_up(name):
    found = fitted(name).structures()
    summary = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert summary["structures"] == len(found.probability)
    assert (np.diff(found.probability) <= 1e-12).all()
    assert found.probability.sum() <= 1 + 1e-9
    assert found.inclusion[1] == found.inclusion.max()
    assert found.co_membership.shape == (len(X), len(X))
    assert (found.co_membership <= 1 + 1e-9).all()
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    is_found = name.startswith(("Greedy", "MAP"))
    assert ("credible set" in text) != is_found
    assert ("entropy" in text) != is_found
    assert ("probability" in text) != is_found
    assert ("weight among the trees found" in text) == is_found
    if is_found:
        assert found.credible_set(0.5) is None
        assert summary["entropy"] is None
    assert found._repr_html_().startswith("<pre")
    is_soft = found.ranked is None
    assert is_soft == (name.startswith(("DCC", "RJHMC")))
    if is_soft:
        with pytest.raises(AttributeError, match="most probable topology"):
            _ = found.consensus
    else:
        np.testing.assert_allclose(np.diag(found.co_membership), 1)
        assert "x1 <" in found.consensus_rules()
    assert bool(found.diagnostics) == name.startswith(("Metropolis", "RJHMC"))
    if not name.startswith("DCC"):  # which may have taken other estimates of evidence
        assert (found.pareto_k is not None) == name.startswith("GFlowNet")


def test_levels_are_probabilities(exact):
    found = exact.structures()
    for level in (0, 1, "most"):
        with pytest.raises(ValueError, match="level must be in"):
            found.credible_set(level)
    assert found.credible_set(0.01) == 1
