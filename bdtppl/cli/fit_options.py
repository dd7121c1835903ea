"""Options of ``bdtppl fit``, generated from the parameters of the estimators.

An option represents the parameter of its name in all inferences that have it. The parameter's
declaration sets its type, range, choices, help and default.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand

from bdtppl.estimators import all_inferences
from bdtppl.estimators.parameters import first_sentence
from bdtppl.models.settings import Declared, declared_fields, kinds_of

ARGUMENTS = "bdtppl.arguments"  # options of the command itself, in the context's notes
HARD_TREES, SOFT_TREES = "Model: hard trees", "Model: soft trees"
_COMMON = ("bins", "max_depth", "min_leaf", "prior", "prior_file", "seed")
_OF_HARD_TREES = ("prior", "prior_file", "leaf")  # options that the command writes in its own way


class FitOption(NamedTuple):
    """One option.

    Attributes
    ----------
    kind
        Type of the value; all choices if inferences differ in them.
    kind_of
        Type of the value by inference.
    said_of
        Declaration of the parameter by inference.
    default_of
        Default by inference.
    tasks
        Tasks whose estimators have the parameter.
    """

    kind: Any
    kind_of: dict[str, Any]
    said_of: dict[str, Declared]
    default_of: dict[str, Any]
    tasks: set[str]

    @property
    def said(self) -> Declared:
        """Return the declaration of the parameter in the first inference that has it."""
        return next(iter(self.said_of.values()))

    @property
    def panel(self) -> str:
        """Return the heading of the group of options."""
        inferences = set(self.default_of)
        kind_of = {name: _kind_of_trees(classes) for name, classes in all_inferences().items()}
        if inferences == set(kind_of):
            return "Model"
        single = {name for name in inferences if kind_of[name] != "sums"}
        for kind, heading in (("hard", HARD_TREES), ("soft", SOFT_TREES)):
            if single == {name for name in kind_of if kind_of[name] == kind}:
                return heading
        return f"Inference: {', '.join(self.default_of)}"

    def parameter(self, name: str) -> inspect.Parameter:
        """Make the option a function argument that typer reads."""
        has_least = self.kind is int and self.said.least > -math.inf
        option = typer.Option(
            help=_help(self.said),
            min=int(self.said.least) if has_least else None,
            show_default=_defaults(self.default_of) or False,
            rich_help_panel=self.panel,
        )
        annotation = Annotated[self.kind | None, option]
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=None, annotation=annotation)


class FitCommand(TyperCommand):
    """A command whose help lists the common options, or with ``--model NAME`` those of a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; hide options from help that were not requested."""
        ctx.meta[ARGUMENTS] = list(args)
        options, model = fit_options(), _model_in(args)
        parameter: Any
        for parameter in self.params:
            name = parameter.name
            if model is None:
                is_shown = name in _COMMON or not (name in options or name in _OF_HARD_TREES)
            elif name in options:
                option = options[name]
                is_shown = model in option.default_of
                if is_shown:
                    parameter.help = _help(option.said_of[model])
                    parameter.show_default = _defaults({model: option.default_of[model]}) or False
                    own = option.kind_of[model]
                    if own != option.kind:  # whose choices cover all models
                        parameter.metavar = f"<{'|'.join(map(str, get_args(own)))}>"
            else:
                is_shown = name not in _OF_HARD_TREES or is_hard(model)
            parameter.hidden = not is_shown
        if model is None:
            self.epilog = "All options of one model: bdtppl fit --model NAME --help."
        return super().parse_args(ctx, args)


def _model_in(args: list[str]) -> str | None:
    """Return the model named among the arguments, if there is one."""
    for place, argument in enumerate(args):
        option, _, value = argument.partition("=")
        if option == "--model":
            name = value or next(iter(args[place + 1 :]), "")
            return name if name in all_inferences() else None
    return None


def _kind_of_trees(classes: Mapping[str, Any]) -> str:
    return next(iter(classes.values())).trees_are


def is_hard(inference: str) -> bool:
    """Return whether an inference is over single hard trees."""
    return _kind_of_trees(all_inferences()[inference]) == "hard"


def fit_options() -> dict[str, FitOption]:
    """Collect the options of all inferences."""
    options: dict[str, FitOption] = {}
    for inference, estimators in all_inferences().items():
        for task, cls in estimators.items():
            for field, said in declared_fields(cls):
                kind = _option_type(field, said)
                if kind is None:
                    continue
                option = options.setdefault(field.name, FitOption(kind, {}, {}, {}, set()))
                if get_origin(kind) is Literal and kind != option.kind:  # each has its own choices
                    option = options[field.name] = option._replace(kind=Literal[option.kind, kind])
                option.kind_of.setdefault(inference, kind)
                option.said_of.setdefault(inference, said)
                option.default_of[inference] = field.default
                option.tasks.add(task)
    return options


def _option_type(field: dataclasses.Field, said: Declared) -> Any:
    """Return the type of a parameter's option; None if it has none."""
    if said.option is not None:
        return said.option or None
    kinds = [kind for kind in kinds_of(field.type) if kind is not type(None)]
    return kinds[0]


def _help(said: Declared) -> str:
    """Write the first sentence of a declaration, with brackets escaped."""
    return first_sentence(said.help).replace("[", "\\[")


def _defaults(default_of: Mapping[str, Any]) -> str:
    """List the defaults, the most frequent first."""
    shown: dict[str, list[str]] = {}
    for inference, default in default_of.items():
        text = "none" if default is None else str(default)
        shown.setdefault(text, []).append(inference)
    first, *others = sorted(shown, key=lambda text: -len(shown[text]))
    if not others:
        return "" if first == "none" else first
    return "; ".join([first, *(f"{text} for {', '.join(shown[text])}" for text in others)])


def prior_defaults() -> str:
    """List which prior is the default of which inference, written as the option."""
    from bdtppl.cli.specification import kebab_case

    def written(prior: Any) -> str:
        """Write a prior by name, with the numbers that differ from its class's defaults."""
        numbers = [
            f"{field.name}={value:g}"
            for field in dataclasses.fields(prior)
            if isinstance(value := getattr(prior, field.name), float) and value != field.default
        ]
        return ":".join([kebab_case(type(prior).__name__), *filter(None, [",".join(numbers)])])

    priors = {
        name: written(next(iter(classes.values())).default_prior)
        for name, classes in all_inferences().items()
        if is_hard(name)
    }
    return _defaults(priors)


def with_options(command: Callable, options: Mapping[str, FitOption]) -> Callable:
    """Add these options to a function with keywords ``**given``, as arguments that typer sees."""
    own = inspect.signature(command)
    fixed = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    *first, seed = [p.replace(kind=p.KEYWORD_ONLY) for p in fixed]
    order = ["Model", HARD_TREES, SOFT_TREES]
    places = {name: options[name].panel for name in options}
    names = sorted(options, key=lambda n: [*order, places[n]].index(places[n]))
    parameters = [*first, *(options[name].parameter(name) for name in names), seed]
    names_of_models = Literal[tuple(all_inferences())]  # pyright: ignore[reportInvalidTypeForm]
    parameters = [
        p.replace(annotation=Annotated[names_of_models, *p.annotation.__metadata__])
        if p.name == "model"
        else p
        for p in parameters
    ]

    def fit(**arguments: Any) -> None:
        command(**arguments)

    fit.__doc__ = command.__doc__
    fit.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    fit.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return fit


def own_settings(
    inference: str, given: Mapping[str, Any], inferences_with: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Return the given options, and reject those of other inferences.

    Raises
    ------
    ValueError
        If an option belongs to other inferences.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    for name in settings:
        kinds = list(inferences_with[name])
        if inference not in kinds:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is for --model {' or '.join(kinds)}, not {inference}.")
    return settings


def takes_auto_bins(inference: str) -> bool:
    """Return whether the estimators of an inference can choose the number of buckets."""
    return any("auto" in get_args(kind) for kind in kinds_of(_field("bins", inference).type))


def default_of(name: str, inference: str) -> Any:
    """Return the default of a parameter of an inference."""
    return _field(name, inference).default


def _field(name: str, inference: str) -> dataclasses.Field:
    cls = next(iter(all_inferences()[inference].values()))
    return next(field for field, _ in declared_fields(cls) if field.name == name)
