"""The exact evidence of BCART-PCFG in plain NumPy: the peer that the benchmarks time beside ours.

A subproblem is a bitset of rows. Subproblems are enumerated level by level from the set of all
rows; `numpy.unique` on hashes of the bitsets tells which sets are new. They are then scored from
the smallest up by `numpy.logaddexp.reduceat` (Sullivan et al. 2023, equation 13, under the prior
phi^(1 - leaves) over partitions). It shares no code with `bdtppl`.
"""

import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

__all__ = ["Recursion", "numpy_recursion"]


class Recursion(NamedTuple):
    """What the recursion found, and how long its two parts took."""

    log_evidence: float
    num_subproblems: int
    num_rules: int
    num_partitions: int
    enumeration_seconds: float
    scoring_seconds: float


def numpy_recursion(
    codes: np.ndarray, y: np.ndarray, *, log_phi: float = 2.0, concentration: float = 1.0
) -> Recursion:
    """Compute the log evidence of class labels under the leaf penalty.

    Parameters
    ----------
    codes
        int [n, d]; ordered codes of the features.
    y
        int [n]; class indices.
    log_phi
        Cost of a split in nats.
    concentration
        Dirichlet concentration of every class.
    """
    start = time.perf_counter()
    members, parent, left, right = _enumerate(codes)
    num_rules = len(parent)
    # Rules of one parent that make the same pair of sets are one partition.
    pair = parent * len(members) + np.minimum(left, right)
    _, first = np.unique(pair, return_index=True)
    parent, left, right = parent[first], left[first], right[first]
    enumerated = time.perf_counter()

    size = np.bitwise_count(members).sum(axis=1, dtype=np.int64)
    order = np.argsort(size[parent], kind="stable")  # smaller parents first, each in one run
    parent, left, right = parent[order], left[order], right[order]
    leaf_scores = _leaf_scores(members, y, concentration)
    log_partition, log_normaliser = (
        _score(scores, size, parent, left, right, log_phi)
        for scores in (leaf_scores, np.zeros_like(leaf_scores))
    )
    return Recursion(
        log_evidence=float(log_partition - log_normaliser),
        num_subproblems=len(members),
        num_rules=num_rules,
        num_partitions=len(parent),
        enumeration_seconds=enumerated - start,
        scoring_seconds=time.perf_counter() - enumerated,
    )


def _enumerate(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find all subproblems, uint64 [N, words], the root first; and every rule's three sets."""
    cuts = [[_bitset(column <= code) for code in np.unique(column)[:-1]] for column in codes.T]
    all_cuts = np.array([cut for cuts_of_feature in cuts for cut in cuts_of_feature])
    frontier = _bitset(np.ones(len(codes), bool))[None]
    members, known, ids = [frontier], _hash(frontier), np.zeros(1, np.int64)
    parents, lefts, rights = [], [], []
    first_id = 0
    while len(frontier):
        parent, cut, left_hash, right_hash = _expand(frontier, cuts)
        hashes, first, inverse = np.unique(
            np.concatenate([left_hash, right_hash]), return_index=True, return_inverse=True
        )
        place = np.searchsorted(known, hashes)
        is_new = known[np.minimum(place, len(known) - 1)] != hashes
        is_right, rule = np.divmod(first[is_new], max(1, len(parent)))
        side = all_cuts[cut[rule]] ^ np.where(is_right, ~np.uint64(0), np.uint64(0))[:, None]
        next_id = len(ids)
        known = np.insert(known, place[is_new], hashes[is_new])
        ids = np.insert(ids, place[is_new], next_id + np.arange(len(rule)))
        left, right = np.split(ids[np.searchsorted(known, hashes)][inverse], 2)
        parents.append(first_id + parent)
        lefts.append(left)
        rights.append(right)
        first_id, frontier = next_id, frontier[parent[rule]] & side
        members.append(frontier)
    return tuple(np.concatenate(parts) for parts in (members, parents, lefts, rights))


def _expand(nodes: np.ndarray, cuts: list[list[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Rules of some subproblems: parent's position, number of the cut, both children's hashes."""
    rules = []
    number = 0
    for cuts_of_feature in cuts:
        below = np.zeros_like(nodes)
        for cut in cuts_of_feature:
            left = nodes & cut
            # A rule for every gap: rows have this code, and rows are left above it.
            parent = np.flatnonzero((left != below).any(axis=1) & (left != nodes).any(axis=1))
            children = _hash(left[parent]), _hash(nodes[parent] & ~cut)
            rules.append((parent, np.full(len(parent), number), *children))
            below, number = left, number + 1
    return tuple(np.concatenate(parts) for parts in zip(*rules, strict=True))


def _bitset(rows: np.ndarray) -> np.ndarray:
    """Pack bool [n] into uint64 words."""
    return np.packbits(np.pad(rows, (0, -len(rows) % 64)), bitorder="little").view(np.uint64)


def _hash(bitsets: np.ndarray) -> np.ndarray:
    """Mix the words of each bitset into 64 bits."""
    mixed = np.zeros(len(bitsets), np.uint64)
    for word in bitsets.T:
        mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _leaf_scores(members: np.ndarray, y: np.ndarray, concentration: float) -> np.ndarray:
    """Log marginal likelihood of the labels in each subproblem, float64 [N]."""
    counts = np.stack(
        [np.bitwise_count(members & _bitset(y == c)).sum(axis=1) for c in range(y.max() + 1)],
        axis=1,
    )
    prior, num_classes = concentration, counts.shape[1]
    return (
        (gammaln(counts + prior) - gammaln(prior)).sum(axis=1)
        - gammaln(counts.sum(axis=1) + num_classes * prior)
        + gammaln(num_classes * prior)
    )


def _score(leaf_scores, size, parent, left, right, log_phi: float) -> float:
    """Log of the sum over trees; productions in order of their parent's size."""
    log_q = leaf_scores.copy()
    bounds = np.searchsorted(size[parent], np.arange(1, size[0] + 2))
    for start, stop in pairwise(bounds):
        if start == stop:
            continue
        terms = log_q[left[start:stop]] + log_q[right[start:stop]] - log_phi
        runs = np.flatnonzero(np.diff(parent[start:stop], prepend=-1))
        nodes = parent[start + runs]
        log_q[nodes] = np.logaddexp(log_q[nodes], np.logaddexp.reduceat(terms, runs))
    return log_q[0]
