"""Each setting that is a quantity says in its own line what happens when it is larger and when it is smaller."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
MODULES = (
    "balancer/settings/migration.py",
    "balancer/settings/files.py",
    "policies/options.py",
    "policies/check_options.py",
)
QUANTITIES = {"int", "float", "Seconds", "Bytes", "Duration", "Size"}
PAIRS = (("Larger", "smaller"), ("Longer", "shorter"), ("More", "fewer"), ("Higher", "lower"))


def quantities(module: str) -> Iterator[tuple[str, str]]:
    """`Class.field` and the text below it."""
    for one in ast.parse((TOP / module).read_text()).body:
        if isinstance(one, ast.ClassDef):
            for field, after in zip(one.body, [*one.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_quantity(field):
                    yield f"{one.name}.{field.target.id}", text_of(after)


def is_quantity(field: ast.AnnAssign) -> bool:
    return any(isinstance(part, ast.Name) and part.id in QUANTITIES for part in ast.walk(field.annotation))


def text_of(after: ast.stmt | None) -> str:
    is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return " ".join(str(after.value.value).split()) if is_text else ""  # type: ignore[union-attr]


@pytest.mark.parametrize("module", MODULES)
def test_every_quantity_says_what_more_and_less_of_it_do(module: str) -> None:
    found = dict(quantities(module))
    assert found
    silent = [name for name, text in found.items() if not any(a in text and b in text for a, b in PAIRS)]
    assert silent == []
