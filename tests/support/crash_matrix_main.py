"""The crash matrix as a table: `make crash-matrix`, or with words that cells must contain to be run.

`python -m tests.support.crash_matrix_main [-j N] [--seed N] [WORD ...]`; N cells run side by side, each on servers of
its own. Exit code 1 if a cell failed.
"""

import argparse
import itertools
import queue
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.crash_cells import POINTS, VICTIMS, Cell, absence, cells, every_cell
from tests.support.crash_matrix import Outcome, Victims, run_cell, victims
from tests.support.servers import fast_place, kept
from tests.support.tables import show_table


@dataclass(frozen=True)
class Result:
    """A cell that was run."""

    outcome: Outcome
    seconds: float

    @property
    def word(self) -> str:
        return f"{self.seconds:.1f}" if not self.outcome.faults else "FAILED"


class Board:
    """Hands out cells and takes results, from several threads."""

    def __init__(self, wanted: Sequence[Cell], seed: int) -> None:
        self.results: dict[Cell, Result] = {}
        self._queue: queue.SimpleQueue[tuple[int, Cell]] = queue.SimpleQueue()
        self._total = len(wanted)
        self._seed = seed
        self._lock = threading.Lock()
        for numbered in enumerate(wanted):
            self._queue.put(numbered)

    def work(self, folder: Path, servers: Victims) -> None:
        """Runs cells until there are none left."""
        while True:
            try:
                number, cell = self._queue.get_nowait()
            except queue.Empty:
                return
            place = folder / f"cell-{number}"
            place.mkdir()
            began = time.monotonic()
            self._report(cell, Result(_outcome(cell, place, servers, self._seed), time.monotonic() - began))

    def _report(self, cell: Cell, result: Result) -> None:
        with self._lock:
            self.results[cell] = result
            word = "FAILED" if result.outcome.faults else "ok"
            facts = f"{result.outcome.state}, {result.outcome.operations} operations"
            print(f"{len(self.results)}/{self._total} {result.seconds:5.1f} s {word:6} {cell}: {facts}", flush=True)
            for fault in result.outcome.faults:
                print(f"    {fault}", flush=True)


def _outcome(cell: Cell, place: Path, servers: Victims, seed: int) -> Outcome:
    try:
        return run_cell(cell, place, servers, seed)
    except Exception as error:  # a broken cell is a result like any other, and the others continue
        traceback.print_exc()
        return Outcome((repr(error),), 0, "broken")


def main() -> int:
    options = _options()
    wanted = [cell for cell in cells() if all(word in str(cell) for word in options.words)]
    if not wanted:
        print(f"no cell contains {' and '.join(options.words)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    board = Board(wanted, options.seed)
    print(f"{len(wanted)} cells, {options.jobs} at a time, --seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="crash-matrix-", dir=fast_place()) as made, ExitStack() as stack:
        folder = Path(made)
        folder.chmod(0o755)
        stack.enter_context(kept(folder))
        each = [stack.enter_context(victims(folder / f"servers-{job}")) for job in range(options.jobs)]
        # Daemon threads: after Ctrl-C nobody waits for the running cells.
        threads = [threading.Thread(target=board.work, args=(folder, servers), daemon=True) for servers in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return show(board.results, time.monotonic() - began, options.seed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash-matrix", description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=1, help="cells that run side by side")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("words", nargs="*", help="only cells whose name contains all of these")
    return parser.parse_args()


def show(results: dict[Cell, Result], seconds: float, seed: int) -> int:
    """A table per kind: states down, victims across, seconds of each point. Returns the exit code."""
    absent = sorted({reason for cell in every_cell() if (reason := absence(cell))})
    for kind, every in itertools.groupby(every_cell(), key=lambda cell: cell.kind):
        rows = _rows(every, results)
        if rows:
            show_table(f"{kind}: seconds at {', '.join(POINTS)}", ["killed in", *VICTIMS], rows)
    print("\n- : there is no such cell; . : it was not asked for")
    for reason in absent:
        print(f"    - {reason}")
    failed = [cell for cell, result in results.items() if result.outcome.faults]
    for cell in failed:
        print(f"\nFAILED {cell}")
        for fault in results[cell].outcome.faults:
            print(f"    {fault}")
        print(f"    alone: make crash-matrix WORDS=\"--seed {seed} '{cell}'\"")
    spent = sum(result.seconds for result in results.values())
    operations = sum(result.outcome.operations for result in results.values())
    least = min((result.outcome.operations for result in results.values()), default=0)
    print(
        f"\n{len(results)} cells, {len(failed)} failed, {operations:,} operations on the migrated tablets,"
        f" at least {least:,} in a cell;"
        f" {spent:,.0f} s of cells in {seconds:,.0f} s"
    )
    return 1 if failed else 0


def _rows(every: Iterable[Cell], results: dict[Cell, Result]) -> list[list[str]]:
    """One row per state; a state that was not run at all has none."""
    words: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    ran = set()
    for cell in every:
        if cell in results:
            ran.add(cell.state)
        word = results[cell].word if cell in results else "-" if absence(cell) else "."
        words[cell.state][cell.victim].append(word)
    return [[state, *(_joined(row[victim]) for victim in VICTIMS)] for state, row in words.items() if state in ran]


def _joined(words: list[str]) -> str:
    return words[0] if len(set(words)) == 1 and words[0] in "-." else " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
