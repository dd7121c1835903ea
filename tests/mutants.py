"""Mutants: small mistakes made on purpose in the source, each of which some test must notice.

A mutation replaces one text of one file in a copy of the checkout. The fast tests of the files that
are named for it run there until one fails; if none does, the slow ones. The test that failed must
pass again without the mutation. A mutant that no test notices is a gap between the tests.

Run it by ``make mutants``; names of mutants restrict it. ``--check`` only compares the list with
the source: each text to replace must be in its file exactly once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 900  # seconds that one run of tests may take
MOVED = ("models", "inference")  # folders at the top that are packages inside of bdtppl


class Mutant(NamedTuple):
    """A mistake: one text of a file that is replaced, and test files without ``test_`` and ``.py``.

    The test files are separated by spaces, the quickest or likeliest to notice first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


# fmt: off
MUTANTS = [Mutant(*each) for each in [
    ("inside-left-twice", "inference/pcfg/passes.py",
     "take(log_q, block.left) + take(log_q, block.right)",
     "take(log_q, block.left) + take(log_q, block.left)", "exact_posterior marginal"),
    ("outside-overwrites", "inference/pcfg/passes.py",
     "visits.at[block.right].add", "visits.at[block.right].set",
     "exact_posterior exact_predictive marginal"),
    ("overflow-without-stop", "inference/pcfg/passes.py",
     "jnp.maximum(old, largest)", "largest", "exact_corners"),
    ("draw-number-twice", "inference/pcfg/sampling.py",
     "random_numbers(number, 0)", "random_numbers(number)", "exact_sampling"),
    ("search-bound", "inference/pcfg/search/bounds.py",
     "if num_cells > 2 else 0.0", "if num_cells > 1 else 0.0", "search"),
    ("chart-column-is-feature", "inference/pcfg/grammar.py",
     "column = self.design.column[self.feature]", "column = self.feature", "sets"),
    ("boxes-column-is-feature", "inference/boxes/kernels.py",
     "if g + 1 < d and group.column[g + 1] == group.column[g]:", "if g + 1 < 0:", "sets boxes"),
    ("packed-column-is-feature", "models/hard/packed_model.py",
     '"by_column": np.eye(design.num_columns)[design.column[feature]]',
     '"by_column": np.eye(design.num_features)[feature]', "sets"),
    ("bart-set-without-missing", "inference/additive/tables.py",
     "sides.append(left | (bin <= last[rule, None]))", "sides.append(bin <= last[rule, None])",
     "additive"),
    ("bart-linear-degrees", "inference/additive/linear.py",
     "0.5 * (num_columns + 1)", "0.5 * (num_columns + 3)", "additive"),
    ("bart-leaf-scale-degrees", "inference/additive/leaf_scale.py",
     "chisquare(1 + num_leaves)", "chisquare(1 + 2 * num_leaves)", "additive"),
    ("bart-linear-precision", "inference/additive/linear.py",
     "weighted = (factor * precision)[:, None]", "weighted = precision[:, None]", "additive"),
    ("scale-mean-of-log", "models/data/target_scale.py",
     "mean + 0.5 * np.square(deviation)", "mean", "target_scale"),
    ("scale-jacobian", "inference/additive/posterior.py",
     "stat + gained for", "stat for", "target_scale"),
    ("scale-crps-slope", "inference/predictive/scaled.py",
     "np.exp(-self.scale.log_slope", "np.exp(self.scale.log_slope", "target_scale"),
    ("scale-drawn", "inference/additive/posterior.py",
     "self.scale.inverse(sums", "np.asarray(sums", "target_scale"),
    ("scale-any-gain", "bdtppl/estimators/scale_choice.py",
     "max(ERRORS_BETTER * error, LEAST_GAIN * weight.sum())", "0", "target_scale"),
    ("boxes-off-by-one", "inference/boxes/kernels.py",
     "if high - low >= 2 and", "if high - low >= 3 and", "boxes"),
    ("greedy-running-sum", "inference/greedy_modal/cuts.py",
     "running[level.start[1:-1] - 1]", "running[level.start[1:-1]]", "greedy_modal"),
    ("ratio-clipped", "inference/metropolis/kernel.py",
     "power * (new.log_likelihood - state.log_likelihood)",
     "jnp.minimum(power * (new.log_likelihood - state.log_likelihood), 0.0)", "redraw metropolis"),
    ("acceptance-key-twice", "inference/metropolis/kernel.py",
     "jax.vmap(jax.random.uniform)(keys[:, 1])", "jax.vmap(jax.random.uniform)(keys[:, 0])",
     "regrow"),
    ("moves-no-way-back", "inference/metropolis/moves.py",
     " + jnp.log(count / jnp.maximum(ways_back, 1))", "", "metropolis"),
    ("redraw-reverse", "inference/metropolis/redraw.py",
     "log_weight(old, below(old[:, 0]))", "log_weight(old, sides)", "redraw"),
    ("regrow-inverted", "inference/metropolis/regrow.py",
     "jnp.log(proof.num_points) - jnp.log(num_points)",
     "jnp.log(num_points) - jnp.log(proof.num_points)", "regrow"),
    ("restructure-no-way-back", "inference/metropolis/restructure.py",
     "0.0) - jnp.log(back)", "0.0)", "restructure"),
    ("exchange-power", "inference/metropolis/tempering.py",
     "-jnp.diff(powers)[None]", "-powers[None, 1:]", "tempering"),
    ("chains-one-key", "inference/metropolis/sample.py",
     "keys = jax.random.split(key_walk, self.chains)",
     "keys = jax.random.split(key_walk, 1)[jnp.zeros(self.chains, int)]",
     "metropolis_estimators metropolis"),
    ("exchange-key-twice", "inference/metropolis/tempering.py",
     "keys[:, 1:].ravel(), keys[:, 0]", "keys[:, 1:].ravel(), keys[:, 1]", "tempering"),
    ("boxes-factor-2", "inference/boxes/kernels.py",
     "2 * prior.stop_below", "prior.stop_below", "boxes"),
    ("particle-numbers-twice", "inference/particle/filter.py",
     "is_wanted.any() & by_layer", "is_wanted.any() & ~by_layer", "particle"),
    ("flow-epsilon-weight", "inference/gflownet/grammar_draws.py",
     "log_probability += total(log_chance", "log_probability += total(log_policy(weighed)",
     "grammar_flow"),
    ("rjhmc-one-try-more", "inference/rjhmc.py",
     "np.append(log_likelihoods[1:],", "np.append(log_likelihoods,", "rjhmc"),
    ("nuts-draw-weight", "inference/nuts/trajectory.py",
     "< -loss - log_weight", "< -loss - old.subtree_log_weight", "trajectory"),
    ("bart-noise-factor-2", "inference/additive/kernels.py",
     "np.exp(prior.log_split[level] + 2 * prior.log_stop[level + 1])",
     "np.exp(prior.log_split[level] + prior.log_stop[level + 1])", "additive"),
    ("bart-level", "inference/additive/tree_gibbs.py",
     "2 * self.total", "self.total", "tree_gibbs"),
    ("particle-no-proposal", "inference/particle/filter.py",
     "+ log_weight + gain - log_probability", "+ log_weight + gain", "particle"),
    ("flow-parents", "inference/gflownet/backward.py",
     "(step < until[:, None])", "(step <= until[:, None])", "gflownet"),
    ("flow-loss-no-stop", "inference/gflownet/trajectories.py",
     "(log_z - made.log_weights) ** 2", "(log_z - made.log_potentials[:, -1]) ** 2", "gflownet"),
    ("flow-last-level", "inference/gflownet/grammar.py",
     "depth + 1 == problem.max_depth", "depth == problem.max_depth", "grammar_flow"),
    ("dcc-no-prior", "inference/dcc/combine.py",
     "np.float64) + log_prior)", "np.float64))", "dcc"),
    ("dcc-utility", "inference/dcc/utility.py",
     "+ log_variance) / 2", "+ log_variance)", "dcc_utility"),
    ("dcc-error", "inference/dcc/combine.py",
     "axis=(0, 2, 3)", "axis=(0, 1, 3)", "dcc"),
    ("rjhmc-no-way-back", "inference/rjhmc.py",
     "log_ratio += np.log(self.ways(new).get(old, 0.0)) - np.log(ways[new])",
     "log_ratio += 0.0 * np.log(self.ways(new).get(old, 0.0))", "rjhmc"),
    ("soft-no-jacobian", "inference/soft/density.py",
     "law.log_prob(value).sum() + to.log_abs_det_jacobian(coordinates, value).sum()",
     "law.log_prob(value).sum()", "soft_density nuts"),
    ("soft-no-normaliser", "models/soft/tree.py",
     "(gammaln(counts + alpha[None]) - gammaln(alpha)[None])", "gammaln(counts + alpha[None])",
     "soft_tree soft_density"),
    ("nuts-number-twice", "inference/nuts/trajectory.py",
     "uniform[2] < 0.5", "uniform[1] < 0.5", "trajectory nuts nuts_calibration"),
    ("nuts-chains-one-seed", "inference/nuts/lanes.py",
     "lanes.seed[free] = self.seeds[chosen]", "lanes.seed[free] = self.seeds[0]", "nuts"),
    ("importance-share", "inference/evidence/importance.py",
     "math.prod(mean.shape[:2])", "mean.shape[1]", "importance"),
    ("smc-increment", "inference/evidence/tempered.py",
     "log_weight = (higher - power) * log_ratio", "log_weight = higher * log_ratio", "tempered"),
    ("bart-monotone-missing", "inference/additive/complete_trees.py",
     " or (missing and other_missing):", ":", "additive"),
    ("bart-monotone-slice", "inference/additive/monotone.py",
     "2 * generator.standard_exponential()", "generator.standard_exponential()", "additive"),
    ("bart-monotone-linear", "inference/additive/linear.py",
     "drawn[j] * deviation**-2) / total", "drawn[j]) / total", "additive"),
    ("bart-offset-in-units", "inference/additive/posterior.py",
     "offset_factor=self.prior.offset_factor * unit", "offset_factor=self.prior.offset_factor",
     "bart"),
    ("bart-leaf-draw", "inference/additive/kernels.py",
     "normal[v] / np.sqrt(total)", "normal[v] / total", "additive bart"),
    ("bart-node-factor-2", "inference/additive/kernels.py",
     "prior.log_split[level] + 2 * below", "prior.log_split[level] + below", "additive"),
    ("bart-block-chance", "inference/additive/kernels.py",
     "        stop *= chance.sum()\n", "", "additive"),
    ("bart-sigma-rows", "inference/additive/kernel.py",
     "chisquare(degrees + weights.sum())", "chisquare(degrees + len(rows.weights))",
     "additive bart"),
    ("bart-noise-half", "inference/additive/kernels.py",
     "(prior.rate + squares[v]) / chi", "(prior.rate + squares[v]) / (2 * chi)", "bart additive"),
    ("bart-chains-one-seed", "inference/additive/sample.py",
     "Philox(key=[seed, chain]", "Philox(key=[seed, 0]", "additive bart parallel"),
    ("causal-precision", "inference/additive/causal.py",
     "precision=precision * factor**2", "precision=precision * np.abs(factor)", "causal"),
    ("causal-code-mean", "inference/additive/causal.py",
     "mean = precision[own] @ (tau[own] * left[own]) / total",
     "mean = precision[own] @ left[own] / total", "causal"),
    ("survival-interval", "bdtppl/estimators/survival.py",
     "np.where(is_last & ~event[row], share, 1.0)", "np.where(is_last, share, 1.0)", "survival"),
    ("effects-not-centred", "inference/additive/effects.py",
     "(1 / number if number > 1 else 0)", "0", "sum_effects"),
    ("effects-overlap-less", "inference/additive/effects.py",
     "below[own, high + 1] - below[own, low]", "below[own, high] - below[own, low]",
     "sum_effects"),
    ("lookup-slope-where-missing", "bdtppl/export/sum_tables.py",
     "np.where(np.isnan(states), 0.0, x)", "np.nan_to_num(x)", "sum_export"),
    ("bart-other-likelihood", "inference/additive/any_likelihood.py",
     "slope - 0.5 * precision", "slope - precision", "tree_gibbs"),
    ("normal-half", "models/leaves.py",
     "(xp.log(self.pseudo_count) - xp.log(pseudo_count)) / 2",
     "(xp.log(self.pseudo_count) - xp.log(pseudo_count))", "leaves"),
    ("dirichlet-table", "models/leaves.py",
     "total = -log_rising_factorial(concentration.sum(), counts)",
     "total = -log_rising_factorial(len(concentration), counts)", "leaves exact_posterior"),
    ("poisson-exposure", "models/leaves.py",
     "            + statistics[..., 1] * xp.log(self.exposure)\n", "", "poisson_gamma"),
    ("poisson-rate", "models/leaves.py",
     "self.rate + self.exposure * statistics[..., 0]", "self.rate + statistics[..., 0]",
     "poisson_gamma"),
    ("prior-depth", "models/priors.py",
     "self.beta * xp.log1p(depth)", "self.beta * xp.log1p(depth + 1)",
     "tree_prior exact_posterior"),
    ("prior-pinball", "models/leaf_count_priors.py",
     "num_leaves - 2.0", "num_leaves - 1.0", "leaf_count"),
    ("constraint-min-leaf", "models/hard/packed_model.py",
     "(total - num_left >= least)", "(total - num_left > least)", "metropolis exact_posterior"),
    ("cut-side", "models/data/design.py",
     'np.searchsorted(points, values, side="right")',
     'np.searchsorted(points, values, side="left")', "design"),
    ("missing-side", "models/data/splits.py",
     "xp.isnan(value), self.missing_left", "xp.isnan(value), ~self.missing_left",
     "hard_tree exact_predictive"),
    ("interval-level", "bdtppl/estimators/targets.py",
     "[(1 - level) / 2, (1 + level) / 2]", "[1 - level, level]", "estimators"),
    ("storage-order", "bdtppl/storage/encoding.py",
     'flat.reshape(value["shape"])', 'flat.reshape(value["shape"], order="F")', "storage"),
]]
# fmt: on


def found(mutant: Mutant) -> int:
    """Count the text to replace in the source."""
    file = ROOT / mutant.file
    return file.read_text(encoding="utf-8").count(mutant.old) if file.exists() else 0


def lay_out(copy: Path) -> None:
    """Copy the checkout, with the package as it is when installed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            target = copy / placed(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for folder in MOVED:  # for tests that read the source
        (copy / folder).symlink_to(copy / "bdtppl" / folder)


def placed(name: str) -> str:
    """Say where a file of the checkout lies in the copy."""
    return f"bdtppl/{name}" if name.startswith(tuple(f"{folder}/" for folder in MOVED)) else name


class Copy:
    """A copy of the checkout in which mutants are made and tested."""

    def __init__(self, folder: Path):
        self.folder, self.numba = folder / "copy", folder / "numba"
        lay_out(self.folder)
        self.environment = os.environ | {
            "PYTHONPATH": str(self.folder),  # comes before what an editable installation maps
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "d" / "jax"),
        }

    def python(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run Python in the copy."""
        command = [sys.executable, *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )

    def mutate(self, mutant: Mutant) -> None:
        """Make a mutation."""
        name = placed(mutant.file)
        file, text = self.folder / name, (ROOT / mutant.file).read_text(encoding="utf-8")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        # Code that numba has kept is compiled anew only where its own file has changed.
        kept = "mutated" if "numba" in text else "shared"
        shutil.rmtree(self.numba / "mutated", ignore_errors=True)
        self.environment["NUMBA_CACHE_DIR"] = str(self.numba / kept)
        module = name.removesuffix(".py").replace("/", ".")
        find = f"import importlib.util; print(importlib.util.find_spec({module!r}).origin)"
        origin = self.python("-c", find).stdout.strip()
        if origin != str(file):
            raise RuntimeError(f"{module} would be imported from {origin}, not from {file}")

    def restore(self, mutant: Mutant) -> None:
        """Take a mutation back."""
        shutil.copy2(ROOT / mutant.file, self.folder / placed(mutant.file))
        self.environment["NUMBA_CACHE_DIR"] = str(self.numba / "shared")

    def first_failure(self, tests: list[str], marked: str) -> str | None:
        """Run tests until one fails, and return it; None if all pass."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", marked]
        ran = self.python("-m", "pytest", *options, *tests)
        if ran.returncode in (0, 5):  # all passed, or there are none
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", ran.stdout, re.MULTILINE)
        if ran.returncode != 1 or failed is None:
            raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-2000:]}")
        return failed[1]

    def outcome(self, mutant: Mutant) -> tuple[bool, str]:
        """Say whether a mutant is noticed, and by which suite and test."""
        tests = [f"tests/test_{name}.py" for name in mutant.tests.split()]
        self.mutate(mutant)
        try:
            suite, test = "fast", self.first_failure(tests, "not slow")
            if test is None:
                suite, test = "slow", self.first_failure(tests, "slow")
        finally:
            self.restore(mutant)
        if test is None:
            return False, "NOT NOTICED"
        if self.first_failure([test], ""):
            return False, f"{suite}  {test} FAILS WITHOUT THE MUTATION"
        return True, f"{suite}  {test}"


def main() -> None:
    """Make the mutants, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help="mutants to make; default all")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--check", action="store_true", help="only find the texts to replace")
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := sorted(set(given.names) - set(known)):
        parser.error(f"there is no mutant {unknown[0]!r}; see --list")
    chosen = [known[name] for name in given.names or known]
    if given.list:
        for mutant in chosen:
            print(f"{mutant.name:28} {mutant.file}\n  - {mutant.old!r}\n  + {mutant.new!r}")
        return
    wrong = {mutant: number for mutant in chosen if (number := found(mutant)) != 1}
    for mutant, number in wrong.items():
        print(f"{mutant.name}: {mutant.file} has {mutant.old!r} {number} times, not once")
    if wrong or given.check:
        sys.exit(bool(wrong))
    missed, start = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bdtppl-mutants-") as made:
        copy = Copy(Path(made).resolve())
        for mutant in chosen:
            begun = time.monotonic()
            try:
                is_noticed, said = copy.outcome(mutant)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                is_noticed, said = False, str(error)
            missed += not is_noticed
            print(f"{mutant.name:28} {time.monotonic() - begun:5.0f} s  {said}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(chosen) - missed} of {len(chosen)} noticed in {minutes:.0f} minutes")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
