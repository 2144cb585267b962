"""How benchmarks print: one table each, wide enough to be read in a log."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows under a title; floats with four significant digits."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row))
    console = Console(width=160, highlight=False)
    console.print()
    console.print(table)
