"""The fields of GenerationOptions as options of a command.

    def predict(model: str, *, generation: GenerationOptions): ...
    generation_options(predict)                # with --beam, --search, --max-new-tokens, …

Every field becomes one option with the field's name, type and description. A field that was not given stays unset, so
that the model's own config decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from dragoman.core.errors import UserError
from dragoman.core.generation import SCOPES, GenerationOptions, parse_simple, scope_of, simple_type

Result = TypeVar("Result")


def generation_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command an option for each field of GenerationOptions; it gets those set as `generation`."""
    names = list(GenerationOptions.model_fields)

    @wraps(command)
    def wrapper(**arguments: Any) -> Result:
        given = {name: arguments.pop(name) for name in names}
        return command(**arguments, generation=parse_options(given))

    signature = inspect.signature(command, eval_str=True, locals={"GenerationOptions": GenerationOptions})
    own = [parameter for name, parameter in signature.parameters.items() if name != "generation"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name in names
        for annotation, default in [option_type(name)]
    ]
    parameters = [*own, *added]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def option_type(name: str) -> tuple[Any, Any]:
    """Return the annotation that typer reads for a field, and the default that stands for "not set"."""
    info, kind, flag = GenerationOptions.model_fields[name], simple_type(name), name.replace("_", "-")
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=f"{info.description}{' Repeatable.' if kind == list[str] else ''}",
        rich_help_panel=SCOPES[scope_of(name)],
        show_default=False,
    )
    return (Annotated[kind, option], []) if kind == list[str] else (Annotated[kind | None, option], None)


def parse_options(given: dict[str, Any]) -> GenerationOptions:
    """Check the options of the command line (None: not set) as GenerationOptions; a UserError names the wrong one."""
    values = parse_simple(given)
    try:
        options = GenerationOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = first["msg"].replace("Input should be", "must be")
        raise UserError(f"--{name.replace('_', '-')}: {message}, found {first['input']!r}") from None
    for problem in options.problems():
        raise UserError(problem)
    return options
