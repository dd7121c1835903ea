"""Readable summaries of a fit, within 80 columns."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bdtppl.models.wording import counted, listed, number
from bdtppl.rendering import as_html, as_text

_PAGE_WIDTH = 80  # characters
_BAR = 24
_MOST_FEATURES = 12
_LEAST_SHOWN = 5e-4  # least number that is not printed as 0
_MOST_LINES = 40  # lines
_GLANCE_RULES = 8  # lines
_GLANCE_TOPOLOGIES = 3
_FEWEST_CHAINS = 2  # chains that can be compared
_FEWEST_A_CHAIN = 4  # draws of a chain, for R-hat and effective sample sizes


class Summary(dict):
    """Summary of a fit of JSON types alone, which prints readably, also in notebooks.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]] * 9, [0, 0, 1, 1] * 9
    >>> summary = ExactTreeClassifier().fit(X, y).summary()
    >>> summary["map_leaves"], str(summary).splitlines()[5]
    (2, '  log evidence     -7.757')
    """

    def __or__(self, other: Any) -> "Summary":
        return Summary({**self, **other})

    def __str__(self) -> str:
        return as_text(summary_view(self), _PAGE_WIDTH)

    def _repr_html_(self) -> str:
        return as_html(summary_view(self), _PAGE_WIDTH)


def summarised(method: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Summary]:
    """Make a method ``summary`` return a `Summary`."""

    @wraps(method)
    def printed(self: Any) -> Summary:
        summary = Summary(method(self))
        weight = (self.design_ if hasattr(self, "design_") else self.posterior_).pseudo_weight
        return summary if weight is None else summary | {"pseudo_weight": weight}

    return printed


def summary_view(summary: Mapping[str, Any]) -> RenderableType:
    """Lay out the ``summary()`` of a fitted estimator for a terminal.

    Parameters
    ----------
    summary
        The summary.

    Returns
    -------
    rich.console.RenderableType
        Object that `rich.print` or a console prints.

    Examples
    --------
    >>> from rich.console import Console
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]] * 9, [0, 0, 1, 1] * 9
    >>> view = summary_view(ExactTreeClassifier().fit(X, y).summary())
    >>> Console(width=80, highlight=False).print(view)
      prior            LeafPenalty(log_phi=0.76656)
      leaf family      DirichletCategorical(concentration=[1, 1])
      rows             36, with 1 feature
      sums over        10 sets of rows and 10 ways to split them
      cut points       between any two values
      log evidence     -7.757
      expected leaves  2.31
      entropy          1.08, as of 2.95 equally likely trees
    <BLANKLINE>
    Most probable tree  probability 0.718, 2 leaves
      x0 < 1.5: 0 (0.95, 18 rows)
      x0 >= 1.5: 1 (0.95, 18 rows)
    <BLANKLINE>
    Split inclusion  probability that a tree splits on the feature (before data)
      x0  1.000 (0.76)  ████████████████████████
    """
    if "topologies" in summary:
        return _soft_view(summary)
    if "sum" in summary:
        return _sum_view(summary)
    if "entropy" in summary:
        best = f"probability {summary['map_probability']:.3g}"
    elif "map_gap" in summary:
        best = f"log joint {summary['map_log_joint']:.3f}, {gap_in_words(summary['map_gap'])}"
    elif summary["map_log_joint"] is None:
        best = f"most frequent draw, share {summary['map_probability']:.3g}"
    else:
        best = f"of those found, log joint {summary['map_log_joint']:.3f}"
    written = None
    if "split_inclusion" in summary:
        shares = summary["split_inclusion"]
        heading = "Split inclusion", "probability that a tree splits on the feature"
        if "prior_inclusion" in summary:
            before = summary["prior_inclusion"]
            written = {name: f"{share:.3f} ({before[name]:.2f})" for name, share in shares.items()}
            heading = heading[0], f"{heading[1]} (before data)"
    else:
        shares = summary["feature_importance"]
        heading = "Feature importance", "share in the gain of the tree's splits"
    return Group(
        facts_view(_hard_facts(summary)),
        _heading(
            "Most probable tree", f"{best}, {counted(summary['map_leaves'], 'leaf', 'leaves')}"
        ),
        _indented(_indented_rules(summary["map_rules"])),
        _heading(*heading),
        _indented(_shares_view(shares, summary["no_cut"], written)),
    )


def glance_view(known: Mapping[str, Any]) -> RenderableType:
    """Lay out the first lines of a summary, and of the rules if it has them.

    Parameters
    ----------
    known
        Entries known of a ``summary()``: the model in words at least.

    Examples
    --------
    >>> from rich.console import Console
    >>> known = {"prior": "LeafPenalty()", "leaf": "PoissonGamma()", "rows": 9, "features": 1}
    >>> known["map_rules"] = "always: 2"
    >>> Console(width=80, highlight=False).print(glance_view(known))
      prior            LeafPenalty()
      leaf family      PoissonGamma()
      rows             9, with 1 feature
    <BLANKLINE>
    Most probable tree
      always: 2
    """
    if "topologies" in known:
        few = _indented(_topologies_view(known["topologies"][:_GLANCE_TOPOLOGIES]))
        return Group(facts_view(_soft_facts(known)), _heading("Topologies"), few)
    if "sum" in known:
        return facts_view(_sum_facts(known))
    parts = [facts_view(_hard_facts(known))]
    if "map_rules" in known:
        parts.append(_heading("Most probable tree"))
        parts.append(_indented(_indented_rules(known["map_rules"], _GLANCE_RULES)))
    return Group(*parts)


def gap_in_words(gap: float) -> str:
    """Describe by how much another tree may be better than the best one found."""
    return f"none is better by more than {gap:.3g}" if gap else "which none exceeds"


def interval_in_words(interval: Sequence[float]) -> str:
    """Write the ends of an interval."""
    low, high = interval
    return f"{low:.2f} and {high:.2f}"


def evidence_in_words(summary: Mapping[str, Any], error_is: str) -> str:
    """Describe what a summary contains on the log evidence; may be empty.

    Parameters
    ----------
    summary
        The summary.
    error_is
        Format of the standard error.
    """
    low, high = summary.get("log_evidence_bounds", (0.0, 0.0))
    if low < high:
        return f"between {interval_in_words((low, high))}"
    if summary.get("log_evidence") is not None:
        error = summary.get("log_evidence_se")
        more = error_is.format(error) if error else ""
        if summary.get("runs") == 1:
            more = ", of unknown error: there is one run"
        return f"{summary['log_evidence']:.3f}{more}"
    if "log_evidence_lower_bound" in summary:
        bound = summary["log_evidence_lower_bound"]
        return "unknown" if bound is None else f"at least {bound:.3f}"
    return ""


def _hard_facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """List the facts of a summary of hard trees that exist."""
    facts = {"prior": summary["prior"], "leaf family": summary["leaf"]}
    if summary.get("constraints") is not None:
        facts["constraints"] = summary["constraints"]
    facts["rows"] = _rows_and_features(summary)
    if "subproblems" in summary:
        facts["sums over"] = (
            f"{counted(summary['subproblems'], 'set of rows', 'sets of rows')} and "
            f"{_counted(summary['productions'], 'way')} to split them"
        )
    if "boxes" in summary:
        facts["boxes"] = f"{summary['boxes']:,}, for all trees of few levels"
    if "bins" in summary:
        facts["cut points"] = _cut_points(summary)
    if summary.get("choice"):
        facts["choice"] = summary["choice"]
    if "chains" in summary:
        facts["draws"] = (
            f"{summary['draws']:,} in each of {_counted(summary['chains'], 'chain')}, "
            f"{_counted(summary['distinct_trees'], 'distinct tree')}"
        )
        facts["agreement"] = _chains_in_words(summary)
        if why := why_no_r_hat(summary["chains"], summary["draws"]):
            facts["agreement"] += f"\nnot assessable: {why}"
    if "expansions" in summary:
        facts["search"] = f"{counted(summary['expansions'], 'set of rows', 'sets of rows')} split"
    if "particles" in summary:
        facts["particles"] = (
            f"{_counted(summary['runs'], 'run')} of {summary['particles']:,}, effectively "
            f"{summary['effective_size']:,.0f}"
        )
    if "lower_bound" in summary:
        facts["training"] = (
            f"{_counted(summary['steps'], 'step')} ({summary['method']}); effective sample size "
            f"{summary['effective_size']:,.0f}"
        )
        facts["log partition"] = (
            f"{summary['log_partition']:.3f}, learned {summary['learned_log_partition']:.3f}, "
            f"lower bound {summary['lower_bound']:.3f}"
        )
    if "total_variation" in summary:
        facts["draws"] = (
            f"up to {summary['total_variation']:.2g} in total variation from the posterior"
        )
    if evidence := evidence_in_words(summary, " +- {:.3f}"):
        facts["log evidence"] = evidence
    if "expected_leaves" in summary:
        facts["expected leaves"] = f"{summary['expected_leaves']:.2f}"
    if "entropy" in summary:
        facts["entropy"] = f"{summary['entropy']:.2f}, as of {size_in_words(summary['entropy'])}"
    if "trees" in summary:
        facts["trees found"] = f"{summary['trees']:,}"
    return facts


def _rows_and_features(summary: Mapping[str, Any]) -> str:
    """Describe numbers of rows and features, and whether weights give a pseudo-likelihood."""
    said = f"{summary['rows']:,}, with {_counted(summary['features'], 'feature')}"
    if "pseudo_weight" in summary:
        total = number(summary["pseudo_weight"])
        said += f";\nof a pseudo-likelihood: weights are not counts and sum to {total}"
    return said


def descent_in_words(summary: Mapping[str, Any]) -> str:
    """State from how many chains all descend after relocations; empty if none moved."""
    if "ancestors" not in summary:  # from an older file
        return ""
    chains, ancestors = len(summary["ancestors"]), len(set(summary["ancestors"]))
    if ancestors == chains:
        return ""
    return f"{chains} chains that descend from {ancestors}: stuck ones moved to others' states"


def _sum_view(summary: Mapping[str, Any]) -> RenderableType:
    """Lay out the summary of sums of trees."""
    shares, ends = summary["feature_importance"], summary["feature_importance_interval"]
    written = {
        name: f"{share:.3f} ({ends[name][0]:.3f} to {ends[name][1]:.3f})"
        for name, share in shares.items()
    }
    return Group(
        facts_view(_sum_facts(summary)),
        _heading("Feature importance", "share of the splits (90 % interval)"),
        _indented(_shares_view(shares, written=written)),
    )


def _sum_facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """List the facts of a summary of sums of trees."""
    facts = {
        "sum of": summary["sum"],
        "rows": _rows_and_features(summary),
        "cut points": f"at most {summary['bins'] - 1} a feature",
        "draws": f"{summary['draws']:,} in each of {_counted(summary['chains'], 'chain')}",
        "agreement": _chains_in_words(summary),
    }
    if "average_effect" in summary:
        effect = map(number, (summary["average_effect"], *summary["average_effect_interval"]))
        facts["average effect"] = "{} (95 % interval {} to {})".format(*effect)
    if "sigma" in summary:
        low, high = summary["sigma_interval"]
        sigma, low, high = map(number, (summary["sigma"], low, high))
        facts["noise"] = f"standard deviation {sigma} ({low} to {high})"
    if (scale := summary.get("target_scale", "identity")) != "identity":
        facts["target scale"] = f"{scale}, that of the sum and the noise"
    facts["leaves"] = f"{summary['expected_leaves']:.2f} a tree"
    return facts


def _chains_in_words(summary: Mapping[str, Any]) -> str:
    """Describe how well chains agree."""
    r_hat, ess = summary["largest_r_hat"], summary["least_ess"]
    return (
        f"R-hat {'unknown' if r_hat is None else f'at most {r_hat:.2f}'}, "
        f"effective draws {'unknown' if ess is None else f'at least {ess:.0f}'}"
    )


def _soft_view(summary: Mapping[str, Any]) -> RenderableType:
    """Lay out the summary of soft trees."""
    return Group(
        facts_view(_soft_facts(summary)),
        _heading("Topologies", f"{summary['topologies_found']:,} found; 1 a split, 0 a leaf"),
        _indented(_topologies_view(summary["topologies"])),
        _heading("Input weights", "mean direction of the splits"),
        _indented(_shares_view(summary["input_weights"])),
    )


def _soft_facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Name the facts of a summary of soft trees."""
    facts = {
        "tree": summary["tree"],
        "topology prior": summary["topology_prior"],
        "rows": _rows_and_features(summary),
        "sharpness": f"{summary['sharpness']:g}, on inputs scaled to [0, 1]",
    }
    if "iterations" in summary:
        facts["walk"] = (
            f"{_counted(summary['iterations'], 'iteration')}; sampled "
            f"{summary['topologies_found']:,} of {summary['topologies_proposed']:,} topologies "
            f"that it met, of prior probability {summary['prior_mass']:.2g}"
        )
    if "largest_r_hat" in summary:
        facts["agreement"] = _chains_in_words(summary)
        if descent := descent_in_words(summary):
            facts["agreement"] += f"\n{descent}"
    if summary["log_evidence"] is not None:
        error = summary["log_evidence_se"]
        facts["log evidence"] = f"{summary['log_evidence']:.3f} +- {error:.3f}"
    facts["expected leaves"] = f"{summary['expected_leaves']:.2f}"
    return facts


def _topologies_view(topologies: Sequence[Mapping[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(style="blue", no_wrap=True)
    table.add_column(justify="right", style="dim")
    for each in topologies[:_MOST_FEATURES]:
        evidence = ""
        if each["log_evidence"] is not None:
            evidence = f"log Z {each['log_evidence']:.2f} +- {each['log_evidence_se']:.2f}"
            if "method" in each:
                evidence += f" ({each['method']})"
        if each.get("r_hat") is not None:
            evidence += f", R-hat {each['r_hat']:.2f}"
        share = each["probability"]
        table.add_row(each["code"], f"{share:.3f}", _bar(share), evidence)
    if len(topologies) > _MOST_FEATURES:
        table.add_row(Text(f"{len(topologies) - _MOST_FEATURES} more", style="dim"))
    return table


def facts_view(facts: Mapping[str, str]) -> RenderableType:
    """Lay out named facts, one below the other."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=15)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    return _indented(table)


def quantity_in_words(name: str) -> str:
    """Name a quantity followed along chains (`bdtppl.inference.summaries.followed`).

    Examples
    --------
    >>> quantity_in_words("num_leaves"), quantity_in_words("prediction_9")
    ('number of leaves', 'prediction of row 9')
    """
    if name.startswith("prediction_"):
        return f"prediction of row {name.removeprefix('prediction_')}"
    return {"num_leaves": "number of leaves", "sigma": "noise"}.get(name, name.replace("_", " "))


def why_no_r_hat(chains: int, draws: int) -> str:
    """State why chains of so many draws have no R-hat; empty if they can have one.

    Examples
    --------
    >>> why_no_r_hat(1, 250), why_no_r_hat(2, 3), why_no_r_hat(4, 250)
    ('there is one chain', 'there are 3 draws a chain', '')
    """
    few = _counted(draws, "draw")
    if chains < _FEWEST_CHAINS:
        return "there is one chain" + (f" of {few}" if draws < _FEWEST_A_CHAIN else "")
    if draws < _FEWEST_A_CHAIN:
        return f"there {'is' if draws == 1 else 'are'} {few} a chain"
    return ""


def structures_view(summary: Mapping[str, Any], consensus: str) -> RenderableType:
    """Lay out a `bdtppl.structures.Structures` for a terminal.

    Parameters
    ----------
    summary
        Its ``summary()``.
    consensus
        Rules of the consensus tree; empty if there is none.
    """
    number = summary["credible_set_90"]
    one = summary["structures_are"]
    several = {"topology": "topologies"}.get(one, f"{one}s")
    if summary["draws_are"] != "found":
        facts = {
            "distinct": f"{counted(summary['structures'], one, several)} listed",
            "credible set": "more than these are needed for 90 %"
            if number is None
            else f"the first {'' if number == 1 else f'{number:,} '}hold{'s' * (number == 1)} 90 %",
            "entropy": "unknown"
            if summary["entropy"] is None
            else f"{summary['entropy']:.2f} ({summary['entropy_is']}), as of "
            f"{size_in_words(summary['entropy'])}",
        }
        best = f"Most probable {several}", "probability, with its Monte Carlo error if any"
        alike = "the tree whose partition of the rows is most like all trees'"
    else:
        facts = {"trees found": f"{summary['structures']:,}, by a search: they are not a posterior"}
        best = f"Best {several}", "weight among the trees found"
        alike = "the tree whose partition of the rows is most like all trees' found"
    if summary["diagnostics"]:
        facts["agreement"] = _agreement(summary["diagnostics"])
        if summary["why_no_r_hat"]:
            facts["agreement"] += f"\nnot assessable: {summary['why_no_r_hat']}"
    if summary["pareto_k"] is not None:
        facts["weights"] = f"Pareto k {summary['pareto_k']:.2f} (at most 0.7 is good)"
    trees = Table.grid(padding=(0, 2))
    for each in summary["most_probable"]:
        used = each["splits_on"]
        trees.add_row(
            _with_error(each),
            counted(each["leaves"], "leaf", "leaves"),
            Text(used if isinstance(used, str) else f"on {', '.join(used)}" if used else ""),
        )
    inclusion = summary["inclusion"]
    shares = {name: each["probability"] for name, each in inclusion.items()}
    written = {name: _with_error(each) for name, each in inclusion.items()}
    parts = [
        facts_view(facts),
        _heading(*best),
        _indented(trees),
        _heading("Features", summary["inclusion_is"]),
        _indented(_shares_view(shares, summary["no_cut"], written)),
    ]
    if consensus:
        parts.append(_heading("Consensus", alike))
        parts.append(_indented(_indented_rules(consensus)))
    return Group(*parts)


def _with_error(each: Mapping[str, Any]) -> str:
    error = each["error"]
    return f"{each['probability']:.3f}" + (f" +- {error:.3f}" if error else "")


def _agreement(diagnostics: Mapping[str, Mapping[str, float | None]]) -> str:
    """Describe how well chains agree on the quantity they agree on least."""
    said = []
    for which, text, worst in (
        ("r_hat", "R-hat at most {:.2f} ({})", max),
        ("ess", "effective draws at least {:.0f} ({})", min),
    ):
        known = {
            name: value for name, each in diagnostics.items() if (value := each[which]) is not None
        }
        if known:
            name = worst(known, key=lambda name: known[name])
            said.append(text.format(known[name], quantity_in_words(name)))
    return ", ".join(said) or "unknown"


def prior_view(drawn: Mapping[str, Any]) -> RenderableType:
    """Lay out the sizes of trees drawn from a prior (``bdtppl prior --json``) for a terminal."""
    facts = {"prior": drawn["prior"]}
    if drawn["constraints"] is not None:
        facts["constraints"] = drawn["constraints"]
    facts |= {
        "table": drawn["table"],
        "rows": f"{drawn['rows']:,}, with {_counted(len(drawn['features']), 'feature')}",
        "trees drawn": f"{drawn['draws']:,}",
        "expected leaves": f"{drawn['expected_leaves']:.2f}",
        "expected depth": f"{drawn['expected_depth']:.2f}",
    }
    shown = dict(list(drawn["leaves"].items())[:_MOST_FEATURES])
    sizes = Table.grid(padding=(0, 2))
    sizes.add_column(justify="right")
    sizes.add_column(justify="right")
    sizes.add_column(style="blue", no_wrap=True)
    for size, share in shown.items():
        sizes.add_row(size, f"{share:.3f}", _bar(share / max(shown.values())))
    if len(drawn["leaves"]) > len(shown):
        sizes.add_row("more", f"{1 - sum(shown.values()):.3f}")
    parts = [facts_view(facts), _heading("Leaves", "share of the trees"), _indented(sizes)]
    for place, rules in enumerate(drawn["trees"], 1):
        parts += [_heading(f"Tree {place}", "as drawn"), _indented(_indented_rules(rules))]
    return Group(*parts)


def _cut_points(summary: Mapping[str, Any]) -> str:
    if summary.get("grid") is not None:
        return f"{summary['grid']} evenly spaced ones a feature"
    if summary["bins"] is None:
        return "between any two values"
    kind = {"quantile": "quantile ", "uniform": "equal-width "}.get(summary.get("binning", ""), "")
    return f"between at most {summary['bins']} {kind}bins a feature"


def size_in_words(entropy: float) -> str:
    """Write an entropy as the number of equally likely trees with the same entropy.

    Examples
    --------
    >>> size_in_words(0.0)
    '1 equally likely trees'
    """
    size = math.exp(entropy)
    few_digits = 3 <= math.log10(max(size, 1)) < 6
    return f"{size:,.0f} equally likely trees" if few_digits else f"{size:.3g} equally likely trees"


def _indented_rules(rules: str, most: int = _MOST_LINES) -> Group:
    """Lay out rules; a continued line is indented to the start of its rule."""
    lines = rules.splitlines()
    written: list[RenderableType] = []
    for line in lines[:most]:
        rule = line.lstrip()
        written.append(Padding(Text(rule), (0, 0, 0, len(line) - len(rule)), expand=False))
    if len(lines) > most:
        written.append(Text(f"... and {len(lines) - most} more lines", style="dim"))
    return Group(*written)


def _shares_view(
    shares: Mapping[str, float],
    no_cut: Sequence[str] = (),
    written: Mapping[str, str] | None = None,
) -> RenderableType:
    """Lay out the largest shares and count the rest; name the features that no tree can use."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(style="blue", no_wrap=True)
    ranked = sorted((name for name in shares if name not in no_cut), key=lambda name: -shares[name])
    shown = ranked[:_MOST_FEATURES]
    if len(ranked) > _MOST_FEATURES:  # few features are all named, even unused ones
        shown = [name for name in shown if shares[name] >= _LEAST_SHOWN]
    for name in shown:
        share = shares[name]
        table.add_row(Text(name), written[name] if written else f"{share:.3f}", _bar(share))
    if rest := ranked[len(shown) :]:
        highest = f"at most {shares[rest[0]]:.3f}"
        table.add_row(Text(f"{len(rest)} more, {highest}", style="dim"))
    return Group(table, Text(f"no cut: {listed(no_cut)}")) if no_cut else table


def _bar(share: float) -> str:
    """Draw a share of a full bar, to an eighth of a character."""
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _heading(title: str, remark: str = "") -> Text:
    return Text.assemble("\n", (title, "bold"), f"  {remark}")


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2))


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
