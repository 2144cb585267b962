"""Where the parts of a hot tablet should go: each to the node that is coolest with it, as long as its own has too much.

`heat` asks once for each tablet it splits. What the same plan has already assigned counts, and so does what is in
flight, so that two hot tablets do not send all their parts to one cool node.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from balancer.policies.bundle_view import Floats
from balancer.policies.cooling import Cooling
from balancer.policies.options import BundleOptions
from balancer.policies.promises import rows_of
from balancer.policies.sizes_scope import Scope


class HeatTargets:
    """What each node would do and hold, as one plan assigns parts."""

    def __init__(self, cooling: Cooling, options: BundleOptions) -> None:
        self.view, self.options, self.cooling = cooling.view, options, cooling
        self.weights = np.array([node.weight for node in self.view.nodes], dtype=np.float64)

    @cached_property
    def loads(self) -> Floats:
        """Rows per second of each node, with what is in flight."""
        found, rates = self.cooling.node_loads.copy(), self.cooling.rates
        for row, source, target in self._flights:
            found[source] -= rates[row]
            found[target] += rates[row]
        return found

    @cached_property
    def disk(self) -> Floats:
        """Bytes that each node's disk can still take."""
        held = np.bincount(self.view.tablets.node, weights=self.view.tablets.sizes, minlength=len(self.view.nodes))
        share = self.options.placement.close_at_disk_share
        room = np.full(len(self.view.nodes), np.inf)
        for at, node in enumerate(self.view.nodes):
            if node.disk_capacity:
                room[at] = node.disk_capacity * share - (held[at] if node.disk_used is None else node.disk_used)
        return self._arriving(room, self.view.tablets.sizes)

    @cached_property
    def memory(self) -> Floats:
        """Bytes of in-memory tables that each node can still take."""
        held = np.bincount(self.view.tablets.node, weights=self.view.tablets.memory, minlength=len(self.view.nodes))
        share = self.options.balancer.safe_used_tablet_static_ratio
        room = [np.inf if node.memory is None else node.memory * share for node in self.view.nodes]
        return self._arriving(np.array(room, dtype=np.float64) - held, self.view.tablets.memory)

    def _arriving(self, room: Floats, sizes: Floats) -> Floats:
        for row, _, target in self._flights:
            room[target] -= sizes[row]
        return room

    @cached_property
    def _flights(self) -> list[tuple[int, int, int]]:
        """What is in flight: row, and from which node to which."""
        places = {node.id: at for at, node in enumerate(self.view.nodes)}
        rows = rows_of(self.view, [tablet for flight in self.view.in_flight for tablet in flight.tablets])
        return [
            (rows[tablet], places[flight.source], places[flight.target])
            for flight in self.view.in_flight
            for tablet in flight.tablets
            if tablet in rows and flight.source != flight.target and {flight.source, flight.target} <= places.keys()
        ]

    def _carry(self, row: int, rate: float, source: int, target: int, share: float) -> None:
        self.loads[source] -= rate
        self.loads[target] += rate
        self.disk[target] -= float(self.view.tablets.sizes[row]) * share
        self.memory[target] -= float(self.view.tablets.memory[row]) * share

    def give_out(self, scope: Scope, row: int, shares: Sequence[float]) -> list[str]:
        """The node of each part, empty if it stays; `shares` are the parts of the tablet's load."""
        nodes = [""] * len(shares)
        if not scope.moves_freely:
            return nodes
        home, rate, piece = int(self.view.tablets.node[row]), float(scope.cooling.rates[row]), 1.0 / len(shares)
        able = [at for at, node in enumerate(self.view.nodes) if scope.may_receive(node) and node.weight > 0]
        due = self._due(able, home)
        # Heaviest first: then the fewest are moved.
        for part in sorted(range(len(shares)), key=lambda part: (-shares[part], part)):
            if self.loads[home] <= due:
                break
            target = self._coolest(able, home, row, rate * shares[part], piece)
            if target != home:
                self._carry(row, rate * shares[part], home, target, piece)
                nodes[part] = self.view.nodes[target].id
        return nodes

    def _due(self, able: list[int], home: int) -> float:
        """What the tablet's node may do before parts have to leave it."""
        places = sorted({*able, home})
        total, weight = float(self.loads[places].sum()), float(self.weights[places].sum())
        share = float(self.weights[home]) / weight if weight else 0.0
        return total * share * (1 + self.options.placement.stop_threshold)

    def _coolest(self, able: list[int], home: int, row: int, rate: float, piece: float) -> int:
        """The node that does least for its weight with the part; its own if that is no worse, or none has room."""
        columns = self.view.tablets
        size, memory = float(columns.sizes[row]) * piece, float(columns.memory[row]) * piece
        roomy = [at for at in able if at != home and size <= self.disk[at] and memory <= self.memory[at]]
        best = min(roomy, key=lambda at: ((self.loads[at] + rate) / self.weights[at], at), default=home)
        stays = self.loads[home] / self.weights[home] if self.weights[home] > 0 else np.inf
        return best if best == home or (self.loads[best] + rate) / self.weights[best] < stays else home
