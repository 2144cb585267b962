"""What is wrong with the files, said so that it can be mended: file, key, what is wrong, what is allowed."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from balancer.errors import UserError


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to mend."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.message}" if self.key else f"{self.file}: {self.message}"


class ConfigurationError(UserError):
    """All that is wrong in all files, at once."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


def translate(file: str, shape: type[BaseModel], given: Mapping[str, Any], error: ValidationError) -> Iterator[Mistake]:
    """Pydantic's errors as sentences. Values are never repeated unless our own check chose to: they may be secret."""
    for detail in error.errors(include_url=False, include_context=True):
        location = _keys(detail["loc"], given)
        if detail["type"] == "extra_forbidden":  # what is too much is a key, whatever its name is
            location = (*_keys(detail["loc"][:-1], given), str(detail["loc"][-1]))
        yield Mistake(file, ".".join(location), _sentence(shape, location, dict(detail)))


def _keys(location: tuple[int | str, ...], given: Any) -> tuple[str, ...]:
    """The keys on the way to what is wrong. Pydantic names members of unions there too, which are no keys of the file
    unless it has one of that name at that place."""
    found = []
    for part in location:
        there = isinstance(given, Mapping) and part in given
        if not there and isinstance(part, str) and ("[" in part or part in ("int", "float", "str", "bool", "none")):
            continue
        found.append(str(part))
        given = given[part] if there else None
    return tuple(found)


def _sentence(shape: type[BaseModel], location: tuple[str, ...], detail: Mapping[str, Any]) -> str:
    kind, context = str(detail["type"]), detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            sentence = _unknown(location[-1], names_at(shape, location[:-1]))
        case "missing":
            sentence = "is required"
        case "value_error":
            sentence = str(context["error"])
        case "enum" | "literal_error":
            sentence = f"must be {context['expected']}"
        case "string_pattern_mismatch":
            sentence = f"must match {context['pattern']}"
        case "too_short":
            sentence = "must not be empty"
        case _:
            sentence = str(detail["msg"]).replace("Input should be", "must be").split(", unable")[0]
    return sentence


def _unknown(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; allowed here: {', '.join(known)}"


def names_at(shape: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    """The keys that a file may have at this place."""
    at: type[BaseModel] | None = shape
    names_next = False  # inside a table of sections, the next part is a name of the user's
    for part in location:
        if at is None:
            return []
        if names_next:
            names_next = False
            continue
        field = at.model_fields.get(part)
        if field is None:
            return []
        at, names_next = _section_of(field)
    return [] if at is None else list(at.model_fields)


def _section_of(field: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The section that a field holds, and whether it holds many of them by name."""
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel) and not issubclass(argument, Enum):
            return argument, True
    return None, False
