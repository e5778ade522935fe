"""The options of a search on a command line: each belongs to some searches, and is refused by the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dragoman.core.registry import Part
    from dragoman.inference.pipeline import Pipeline

SEARCH, LIMITS, RULES = "Search", "Lengths", "What a result must keep to"


def _option(help: str, panel: str = SEARCH) -> Any:
    return typer.Option(help=help, rich_help_panel=panel)


Name = Annotated[str | None, _option("beam, greedy, sample, diverse, exhaustive; default: the model's own.")]
LengthRule = Annotated[str | None, _option("How lengths compare: none, mean, power or gnmt (beam, diverse).")]
Alpha = Annotated[float | None, _option("The exponent of the length rules power and gnmt.")]
Coverage = Annotated[float | None, _option("Weight of the penalty for what of the source was not looked at (beam).")]
Ending = Annotated[str | None, _option("pool, or shrink: what ends takes its place in the beam with it (beam).")]
Stop = Annotated[str | None, _option("usual, or exact: until nothing alive can still score higher (beam).")]
Groups = Annotated[int | None, _option("Beams side by side (diverse).")]
Strength = Annotated[float | None, _option("How strongly groups avoid each other's tokens (diverse).")]
Temperature = Annotated[float | None, _option("Below 1 sharper, above 1 flatter (sample).")]
TopK = Annotated[int | None, _option("Draw from the k most probable tokens (sample).")]
TopP = Annotated[float | None, _option("Draw from the fewest tokens with this much probability (sample).")]
MinP = Annotated[float | None, _option("Draw from tokens with this share of the best one's probability (sample).")]
Typical = Annotated[float | None, _option("Draw from the most typical tokens with this much probability (sample).")]
Epsilon = Annotated[float | None, _option("Draw from tokens with at least this probability (sample).")]
Samples = Annotated[int | None, _option("Draws for each source (sample).")]
Seed = Annotated[int | None, _option("Of the draws; the same seed draws the same (sample).")]
Shortest = Annotated[int | None, _option("The fewest tokens of a result.", LIMITS)]
Longest = Annotated[int | None, _option("The most tokens of a result.", LIMITS)]
Prefix = Annotated[str, _option("What every result begins with.", RULES)]
Require = Annotated[list[str], _option("A phrase that every result holds; may be given several times.", RULES)]
Ordered = Annotated[bool, _option("The required phrases in the order given.", RULES)]
Forbid = Annotated[list[str], _option("A phrase that no result holds; may be given several times.", RULES)]
Choice = Annotated[list[str], _option("A text that a result may be; given several times, it is one of these.", RULES)]
Pattern = Annotated[str, _option("A regular expression that every result matches as a whole.", RULES)]
NoRepeat = Annotated[int | None, _option("No run of so many tokens twice in a result.", RULES)]
Repetition = Annotated[float | None, _option("log p of tokens said before, times this (1 or more).", RULES)]
Unknown = Annotated[bool | None, _option("Whether <unk> may be said.", RULES)]
ReplaceUnknown = Annotated[bool | None, _option("Write the source word looked at most in place of <unk>.", RULES)]
MBR = Annotated[str | None, _option("Choose by minimum Bayes risk under this metric, as chrf.")]
LanguageModel = Annotated[str | None, typer.Option("--lm", help="A language model to join in.", rich_help_panel=SEARCH)]
Weight = Annotated[float, typer.Option("--lm-weight", help="How much its log p counts.", rich_help_panel=SEARCH)]


def part(opened: Pipeline, name: str | None, beam: int | None, rule: str | None, given: dict[str, Any]) -> Part | None:
    """The search that some options describe: the model's own where its name is not given, None where nothing is.

    `given` are the options by name, None where not given; `alpha` belongs to the length rule.
    """
    from pydantic import ValidationError

    from dragoman.core.errors import UserError
    from dragoman.search import searches

    given = {key: value for key, value in given.items() if value is not None}
    if name is None and rule is None and not given:
        return None
    own = opened.config.generation.search
    name = name or own.name
    if name not in searches.names:
        raise UserError(f"--search: {searches.unknown(name)}")
    options = own.plain() if own.name == name else {"name": name}
    schema = searches.schema(name).model_fields
    if beam not in (None, 1) and "size" not in schema:
        raise UserError(f"--beam is not an option of the search '{name}': {_which(_having('size'))}")
    if beam is not None and "size" in schema:
        given["size"] = beam
    if "samples" in given and name == "sample":  # what a sampling search calls its size
        given["size"] = given.pop("samples")
    alpha = given.pop("alpha", None)
    if rule is not None or alpha is not None:
        before: Any = options.get("length", {})
        kept = before.get("name") if isinstance(before, dict) else before
        if rule is None and kept in (None, "none", "mean"):  # which have no exponent: they are powers, of 0 and 1
            kept = "power"
        given["length"] = {"name": rule or kept} | ({} if alpha is None else {"alpha": alpha})
    for key in given:
        if key not in schema:
            flag = {"length": "--length-rule"}.get(key, f"--{key.replace('_', '-')}")
            fitting = ["sample"] if key == "samples" else _having(key)
            raise UserError(f"{flag} is not an option of the search '{name}': {_which(fitting)}")
    try:
        return searches.parse(options | given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][-1] == "alpha" and first["type"] == "extra_forbidden":
            raise UserError(f"--alpha: the length rule {rule} has no exponent; power and gnmt have one") from None
        where = ".".join(str(place) for place in first["loc"] if place != "function-plain[parse()]")
        found = "" if first["type"] == "part" else f", found {first['input']!r}"
        text = first["msg"].replace("Input should be", "must be")
        raise UserError(f"the search '{name}': {where}: {text}{found}") from None


def _having(option: str) -> list[str]:
    from dragoman.search import searches

    return [name for name in searches.names if option in searches.schema(name).model_fields]


def _which(names: list[str]) -> str:
    return f"--search {' or '.join(names)} has it" if names else "no search has it"
