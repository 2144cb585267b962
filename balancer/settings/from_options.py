"""Pydantic models made from the frozen option classes, so that an option is declared in one place only.

`policies.options` declares name, type, default and meaning; the unit is in the type (`Bytes`, `Seconds`, a formula).
Here each such class gets a model that reads what people write in files and refuses what it does not know.
"""

import collections.abc
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic import Field as ModelField

from balancer.policies.finish_by import parse_finish_by
from balancer.schedules import Formula
from balancer.settings.units import parse_auto_count, parse_auto_size, parse_duration, parse_size


def check_formula(text: str) -> str:
    """The text itself, if it is empty or a formula over hours and minutes."""
    if text.strip():
        Formula(text)
    return text


_UNITS: dict[str, Any] = {
    "bytes": BeforeValidator(parse_size),
    "bytes or auto": BeforeValidator(parse_auto_size),
    "count or auto": BeforeValidator(parse_auto_count),
    "seconds": BeforeValidator(parse_duration),
    "finish by": AfterValidator(parse_finish_by),
    "formula": AfterValidator(check_formula),
}


@cache
def model_of(options: type) -> type[BaseModel]:
    """The model that reads a section of a file into this option class."""
    hints = get_type_hints(options, include_extras=True)
    members = {field.name: (_annotation(hints[field.name]), _default(field)) for field in fields(options)}
    made: type[BaseModel] = create_model(
        options.__name__,
        __config__=ConfigDict(extra="forbid", frozen=True),
        __doc__=options.__doc__,
        **members,  # type: ignore[call-overload]
    )
    return made


def build(options: type, section: BaseModel) -> Any:
    """The option class itself, from its model."""
    return options(**{field.name: _plain(getattr(section, field.name)) for field in fields(options)})


_MADE: dict[type[BaseModel], type] = {}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return build(_MADE[type(value)], value)
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value


def _annotation(hint: Any) -> Any:
    """The same type with what reads its unit; option classes become models."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        made = model_of(hint)
        _MADE[made] = hint
        return made
    if origin is Annotated:
        return Annotated[arguments[0], _UNITS[arguments[1]]]
    if origin in (Union, UnionType):
        return Union[tuple(_annotation(argument) for argument in arguments)]  # noqa: UP007 - built at run time
    if origin is collections.abc.Mapping:
        return dict[arguments[0], _annotation(arguments[1])]  # type: ignore[misc, valid-type]
    if origin is tuple and is_dataclass(arguments[0]):
        return tuple[_annotation(arguments[0]), ...]  # type: ignore[misc]
    return hint


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return ModelField(default_factory=field.default_factory)
    return ... if field.default is MISSING else field.default
