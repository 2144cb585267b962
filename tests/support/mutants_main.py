"""`make mutants`: every mutant, with verification and without, and the end-to-end test that caught it.

`python -m tests.support.mutants_main [-j N] [NAME ...]`. Each runs in a process of its own, against its likely tests
first and then the others, until one fails that unmutated code passes. Exit code 1 if a mutant survived.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.mutants import EQUIVALENT, MUTANTS, NO_VERIFICATION, VARIABLE, Mutant

ROOT = Path(__file__).parents[2]
BROKEN = "MutantBroken"
OTHERS = (
    "tests/migration/test_directed_moves.py",
    "tests/migration/test_directed_reshards.py",
    "tests/migration/test_directed_holes.py",
    "tests/migration/test_argument.py",
    "tests/workloads/test_moves_under_load.py",
    "tests/workloads/test_leaf_writers.py",
)
"""Asked if none of the likely ones has noticed."""


@dataclass(frozen=True)
class Catch:
    """What became of one run of a mutant."""

    test: str = ""
    why: str = ""
    seconds: float = 0.0
    broken: bool = False

    @property
    def words(self) -> str:
        if self.broken:
            return f"BROKEN: {self.why}"
        return self.test or "SURVIVED"


def main() -> int:
    options = _options()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if not chosen:
        print(f"no mutant is called {' or '.join(options.names)}", file=sys.stderr)
        return 2
    runs = [(mutant, verified) for mutant in chosen for verified in (True, False) if verified or _combinable(mutant)]
    with ThreadPoolExecutor(options.jobs) as pool:
        catches = dict(zip(runs, pool.map(lambda run: hunt(*run), runs), strict=True))
    return show(chosen, catches)


def hunt(mutant: Mutant, verified: bool) -> Catch:
    """The first test that fails with this mutant."""
    began = time.monotonic()
    names = mutant.name if verified else f"{mutant.name},{NO_VERIFICATION.name}"
    # Without verification, the tests of verification fail whatever else is missing.
    left_out = () if verified else NO_VERIFICATION.likely
    for tests in (mutant.likely, OTHERS):
        catch = _run(tests, names, left_out)
        while catch.test and not passes_unmutated(catch.test):
            left_out = (*left_out, catch.test)
            catch = _run(tests, names, left_out)
        if catch.test or catch.broken:
            break
    found = Catch(catch.test, catch.why, time.monotonic() - began, catch.broken)
    print(f"{found.seconds:6.1f} s  {names}: {found.words}", flush=True)
    return found


@cache
def passes_unmutated(test: str) -> bool:
    """A test that fails anyway catches nothing."""
    output = _pytest((test,), "")
    passes = "FAILED" not in output and "ERROR" not in output
    if not passes:
        print(f"          fails on unmutated code, so what it catches says nothing: {test}", flush=True)
    return passes


def _run(tests: tuple[str, ...], names: str, left_out: tuple[str, ...]) -> Catch:
    output = _pytest(tests, names, "--exitfirst", *(f"--deselect={test}" for test in left_out))
    if BROKEN in output:
        return Catch(why=next(line for line in output.splitlines() if BROKEN in line)[:200], broken=True)
    caught = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    if caught is None:
        nothing = not re.search(r"\d+ (passed|deselected)", output)
        return Catch(why=output[-300:], broken=True) if nothing else Catch()
    why = re.search(r"^E\s+(.+)", output, re.MULTILINE)
    return Catch(caught.group(1), why.group(1)[:100] if why else "")


def _pytest(tests: tuple[str, ...], names: str, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=120", *options, *tests]
    environment = {**os.environ, VARIABLE: names, "SAMPLE_SEED": "all"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _combinable(mutant: Mutant) -> bool:
    return mutant is not NO_VERIFICATION and not mutant.of_verification


def show(chosen: list[Mutant], catches: dict[tuple[Mutant, bool], Catch]) -> int:
    """The table. Returns the exit code."""
    print("\nmutants: what each leaves out, and what noticed, with verification on and off")
    for mutant in chosen:
        print(f"\n{mutant.name}: {mutant.step}")
        for verified in (True, False):
            catch = catches.get((mutant, verified))
            if catch is not None:
                print(f"    {'on ' if verified else 'off'} {catch.words}\n        {catch.why}")
    print("\nequivalent, and why:")
    for what, why in EQUIVALENT.items():
        print(f"    {what}: {why}")
    survived = [key for key, catch in catches.items() if not catch.test]
    print(f"\n{len(catches)} runs, {len(catches) - len(survived)} caught, {len(survived)} not")
    return 1 if survived else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=2, help="mutants that run side by side")
    parser.add_argument("names", nargs="*", help="only these mutants")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
