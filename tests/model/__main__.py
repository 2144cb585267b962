"""`make model`: every search and every omission, as a table; `WORDS=lags` runs a part. Exit code 1: something is wrong.

`python -m tests.model [-v] [WORD …]`: with -v, each story is told.
"""

import sys

from tests.model.explorer import Explored, Search
from tests.model.moves import MoveModel
from tests.model.mutants import BOUNDS, OMISSIONS, UNNEEDED


def main(arguments: list[str]) -> int:
    verbose = "-v" in arguments
    words = [word for word in arguments if word != "-v"]
    failed = 0
    print(f"{'':58} {'states':>9} {'seconds':>8}  what was found")
    for bounds in BOUNDS:
        mode = "replicated" if bounds.replicated else "read-only"
        name = f"{mode}: {bounds.name}"
        if wanted(name, words):
            seen = Search(MoveModel(writers=bounds.writers, replicated=bounds.replicated, budget=bounds.budget)).run()
            show(name, seen, verbose)
            failed += seen.caught
    for omission in OMISSIONS:
        name = f"without {omission.name}" + ("" if omission.replicated else " (read-only)")
        if wanted(name, words):
            model = MoveModel(mutants=omission.mutants, replicated=omission.replicated, budget=omission.budget)
            seen = Search(model).run()
            show(f"{name}", seen, verbose)
            print(f"    {omission.step}")
            failed += not seen.caught and omission.name not in UNNEEDED
    for name, why in UNNEEDED.items():
        print(f"{name}: no counterexample; {why}")
    print(f"{failed} wrong")
    return min(failed, 1)


def wanted(name: str, words: list[str]) -> bool:
    return not words or any(word in name for word in words)


def show(name: str, seen: Explored, verbose: bool) -> None:
    print(f"{name:58} {seen.states:>9} {seen.seconds:>8.1f}  {seen.words()}", flush=True)
    for event in seen.story if verbose else ():
        print(f"        {event}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
