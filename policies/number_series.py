"""Whether two sequences can hand out the same number. Pure arithmetic."""

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class NumberSeries:
    """The numbers that a sequence may still hand out: from the next one on, in steps, up to its end."""

    next: int
    step: int
    least: int
    most: int
    cycles: bool = False

    def span(self) -> tuple[int, int]:
        """The lowest and the highest of them; empty if the first is above the second."""
        low, high = (self.next, self.most) if self.step > 0 else (self.least, self.next)
        return (self.least, self.most) if self.cycles else (low, high)


def common_number(one: NumberSeries, other: NumberSeries) -> int | None:
    """The lowest number that both may hand out; None: there is none."""
    low = max(one.span()[0], other.span()[0])
    high = min(one.span()[1], other.span()[1])
    a, b = abs(one.step), abs(other.step)
    shared = gcd(a, b)
    if low > high or (other.next - one.next) % shared:
        return None
    # x = one.next (mod a) and x = other.next (mod b): the Chinese remainder theorem.
    times = (other.next - one.next) // shared * pow(a // shared, -1, b // shared) if b > shared else 0
    together = a // shared * b
    first = (one.next + a * times) % together
    found = low + (first - low) % together
    return found if found <= high else None
