"""What DCC-Tree leaves after the pilot of burn-in, and what that holds."""

import jax
import numpy as np

from bdtppl.inference.dcc import local
from bdtppl.inference.dcc.explore import TopologyWalk, log_topology_joint
from bdtppl.inference.run import run
from benchmarks.soft.sets import Runs, problem
from benchmarks.text_table import print_table

__all__ = ["print_dismissals"]


def print_dismissals(name: str, runs: Runs) -> None:
    """Burn in, and visit, topologies that were left after the pilot; print what they really hold.

    A dismissal is false where the topology holds the least share, or more, of the weight.
    """
    dcc, table = problem(name), []
    num_left = num_false = 0
    for seed in runs.seeds:
        state = run(TopologyWalk(dcc, runs.iterations), jax.random.key(seed))
        left = [each for each in state.explored.values() if each.is_left]
        rest = [
            log_topology_joint(each, dcc.prior)
            for each in state.explored.values()
            if not each.is_left
        ]
        for each in left:
            # The same keys give the same pilot, whose chains have been thrown away.
            begun = local.begin_topologies(dcc, state.rng_key, [each.topology], since=each.since)
            (burnt_in,) = local.burn_in(dcc, state.rng_key, begun)
            found = local.visit_topology(dcc, state.rng_key, burnt_in)
            own = max(log_topology_joint(each, dcc.prior), log_topology_joint(found, dcc.prior))
            share = float(np.exp(own - np.logaddexp.reduce([own, *rest])))
            num_left, num_false = num_left + 1, num_false + (share >= dcc.least_share)
            of_pilot, in_full = each.evidence.log_evidence, found.evidence.log_evidence
            code = each.topology.code
            table.append([code, str(seed), f"{of_pilot:.2f}", f"{in_full:.2f}", f"{share:.1e}"])
    headings = ["topology", "seed", "log evidence, pilot", "in full", "probability"]
    print_table(f"Left after the pilot on {name}, {runs.iterations} iterations", headings, table)
    print(f"{num_left} left, {num_false} of them should not have been ({dcc.least_share:g})\n")
