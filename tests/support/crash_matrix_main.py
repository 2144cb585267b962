"""The whole crash matrix, as a table: `make crash-matrix`, or with words that cells must contain to be run."""

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.support.crash_matrix import VICTIMS, Cell, Outcome, cells, run_cell, victims
from tests.support.servers import kept
from tests.support.tables import show_table


def main() -> int:
    words = sys.argv[1:]
    wanted = [cell for cell in cells() if all(word in str(cell) for word in words)]
    results: dict[Cell, str] = {}
    with tempfile.TemporaryDirectory(prefix="crash-matrix-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        with kept(folder), victims(folder / "servers") as servers:
            for number, cell in enumerate(wanted):
                place = folder / f"cell-{number}"
                place.mkdir()
                began = time.monotonic()
                try:
                    outcome = run_cell(cell, place, servers, number)
                except Exception as error:  # a cell that breaks is a result like any other
                    outcome = Outcome((repr(error),), 0, 0.0, "broken")
                results[cell] = "ok" if not outcome.faults else "FAULT"
                took = time.monotonic() - began
                print(f"{number + 1}/{len(wanted)} {took:5.1f} s {results[cell]:5} {cell}: {outcome.state}", flush=True)
                for fault in outcome.faults:
                    print(f"    {fault}", flush=True)
    show(results)
    return 1 if "FAULT" in results.values() else 0


def show(results: dict[Cell, str]) -> None:
    """One table per kind and mode: points down, victims across."""
    tracks: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for cell, word in results.items():
        tracks[str(cell.track) + f" ({cell.operation})"][cell.point][cell.victim] = word
    for track, points in tracks.items():
        rows = [[point, *(row.get(victim, "-") for victim in VICTIMS)] for point, row in points.items()]
        show_table(track, ["killed at", *VICTIMS], rows)


if __name__ == "__main__":
    sys.exit(main())
