"""Which tablets to split because they are too hot, and which to merge again once they have cooled.

The planner calls `plan_heat` once per plan and bundle; the poller calls `hot_tablets` after each poll to count for
how many polls in a row a tablet has been hot (`TabletHistory.hot_polls`, including the current poll). `heat_judge`
judges from key samples what a split would look like; the thresholds are those of `scope`. Heat has a switch and a
schedule of its own, so a group's `enable_reshard` does not affect it; a table's `enable_auto_reshard` does.

Where the parts of a hot tablet should go: each to the node that is coolest with it, as long as its own has too much.

`heat` asks once for each tablet it splits. What the same plan has already assigned counts, and so does what is in
flight, so that two hot tablets do not send all their parts to one cool node.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from balancer.policies.budgets import rows_of
from balancer.policies.keyspace.keys import HIGHEST
from balancer.policies.options import BundleOptions, HeatOptions
from balancer.policies.reasons import bytes_text, rate_text, share_text
from balancer.policies.resize.by_layout import sibling_row
from balancer.policies.resize.heat_judge import Facts, HeatWord, Verdict, judge
from balancer.policies.resize.scope import Cooling, Proposals, Scope, blocked_tablets
from balancer.policies.resize.sizes import table_bounds
from balancer.policies.view import ActionKind, BundleView, Floats, Part, Rejection, TabletHistory, TableView


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


CODES = {
    HeatWord.SPLIT: "heat-split",
    HeatWord.HOT_KEY: "heat-key",
    HeatWord.FRONT: "heat-front",
    HeatWord.SCAN: "heat-scan",
    HeatWord.TOO_FEW: "heat-samples",
}
"""Actions and rejections of heat are recognised by the word before the hyphen: heat has a schedule of its own."""

PART = 0.75
"""The most of a heat threshold that each part of a split should carry: the error of the samples must not make it hot
again."""

TABLE_OFF = ("table-off", "enable_auto_reshard of the table is false")


def hot_tablets(view: BundleView, options: HeatOptions) -> dict[int, str]:
    """Tablet → which trigger it is over, with the figures. A burst is hot too: the caller counts whether it lasts."""
    if not options.enable:
        return {}
    return {int(view.tablets.ids[row]): text for row, text in _hot_rows(Cooling(view, options)).items()}


def plan_heat(view: BundleView, options: BundleOptions) -> Proposals:
    """Splits of hot tablets and merges of cooled ones, in a whole bundle."""
    if not options.heat.enable:
        return Proposals((), ())
    blocked, cooling = blocked_tablets(view), Cooling(view, options.heat)
    hot, split = _hot_rows(cooling), _split_rows(view)
    scopes = []
    hot_rows, targets = sorted(hot), HeatTargets(cooling, options)
    scanned = sorted(set(np.flatnonzero(cooling.scanned_now).tolist()) - hot.keys())
    for table in view.tables:
        scope = Scope(view, options, table, blocked, cooling)
        for row in _within(hot_rows, table):
            _plan_hot(scope, row, hot[row], targets)
        for row in _within(scanned, table):
            _explain_scan(scope, row)
        for row in _within(split, table):
            _plan_cold(scope, row, split)
        scopes.append(scope)
    actions = tuple(action for scope in scopes for action in scope.actions)
    return Proposals(actions, tuple(rejection for scope in scopes for rejection in scope.rejections))


def _hot_rows(cooling: Cooling) -> dict[int, str]:
    """Row → trigger. Rows are compared in columns; only the hot ones are put into words."""
    return {row: _rows_text(cooling, row) for row in np.flatnonzero(cooling.hot_now).tolist()}


def _rows_text(cooling: Cooling, row: int) -> str:
    rate, absolute = float(cooling.rates[row]), cooling.options.max_rows_per_second
    if absolute is not None and rate > absolute:
        return f"{rate_text(rate)}, the limit is {rate_text(absolute)}"
    load = float(cooling.node_loads[cooling.view.tablets.node[row]])
    share, limit = share_text(rate / load), share_text(cooling.options.max_node_share)
    return f"{rate_text(rate)}, {share} of its node's load, the limit is {limit}"


def _split_rows(view: BundleView) -> list[int]:
    """The rows of tablets that a split for heat has made, ascending."""
    made = [tablet for tablet, history in view.history.items() if history.split_for_heat_at is not None]
    return list(np.flatnonzero(np.isin(view.tablets.ids, made)).tolist()) if made else []


def _within(rows: list[int], table: TableView) -> list[int]:
    """Those of ascending rows that belong to a table."""
    return rows[bisect_left(rows, table.first) : bisect_left(rows, table.last)]


def _plan_hot(scope: Scope, row: int, trigger: str, targets: HeatTargets) -> None:
    """Proposes what the verdict on a hot tablet says, or says why nothing is done."""
    alone, why = range(row, row + 1), f"tablet {scope.id(row)} has {trigger}"
    found = _kept_back(scope, row)
    if found is not None:
        scope.reject(alone, ActionKind.SPLIT, found[0], f"{why}, but {found[1]}")
        return
    facts = _facts(scope, row)
    verdict = judge(facts, scope.view.samples.get(facts.tablet), scope.options.heat)
    code, reason = CODES[verdict.word], f"{why}; {verdict.word}: {verdict.reason}"
    least, divides = scope.options.heat.min_confidence, bool(verdict.cuts or verdict.parts)
    if divides and verdict.evidence.confidence < least:
        text = f"{reason}; but a split needs a confidence of {share_text(least)} (min_confidence)"
        scope.reject(alone, ActionKind.SPLIT, "heat-confidence", text)
    elif _is_growing_end(scope, row, verdict) and _split_lately(scope, row):
        text = f"{reason}; the growing end has a tablet of its own already{_no_help(scope, row)}"
        scope.reject(alone, ActionKind.SPLIT, CODES[HeatWord.FRONT], text)
    elif not divides:
        scope.reject(alone, ActionKind.SPLIT, code, reason)
    elif verdict.front is not None and facts.was_front and not _coolest(scope, row):
        # Its load goes where its newest keys go: a cut that does not send these elsewhere helps nobody, and a merge
        # follows.
        text = f"{reason}; but no node is cooler than its own{_no_help(scope, row)}"
        scope.reject(alone, ActionKind.SPLIT, CODES[HeatWord.FRONT], text)
    else:
        parts = _parts(scope, row, facts, verdict, targets)
        scope.reshard(alone, len(parts), code, f"{reason}{_goes(parts)}", parts)


def _goes(parts: tuple[Part, ...]) -> str:
    """Where parts are meant to go, for people."""
    counts = Counter(part.node for part in parts if part.node)
    return f"; parts go to {', '.join(f'{node} ({counts[node]})' for node in sorted(counts))}" if counts else ""


def _no_help(scope: Scope, row: int) -> str:
    """Says that no placement helps if one tablet is more than any node's share, and what would help."""
    loads, weights = scope.cooling.node_loads, [node.weight for node in scope.view.nodes]
    rate, most = float(scope.cooling.rates[row]), float(loads.sum()) * max(weights) / max(sum(weights), 1e-300)
    if rate <= most * (1 + scope.options.placement.start_threshold):
        return ""
    much = f"with {rate_text(rate)} it is {rate / most:.1f} times a node's share wherever it lies"
    return f"; {much}: no placement helps, but a key that spreads new rows would, such as one with a hash as its prefix"


def _explain_scan(scope: Scope, row: int) -> None:
    """Says why a heavily read tablet is not hot."""
    rates = scope.view.tablets.scan_rate
    assert rates is not None
    scans = f"tablet {scope.id(row)} has {rate_text(float(rates[row]))} of long sequential scans"
    text = f"{scans}, as dumps, new indexes and reports make them: they ask for no key, and no split makes them cheaper"
    scope.reject(range(row, row + 1), ActionKind.SPLIT, "heat-long-scan", text)


def _kept_back(scope: Scope, row: int) -> tuple[str, str] | None:
    """Code and reason why a hot tablet is not even judged."""
    if scope.table.whole:
        return "whole-table", f"{scope.table.name} is a whole table, which is never split"
    if not scope.table_options.enable_auto_reshard:
        return TABLE_OFF
    obstacle = scope.obstacle(row)
    polls, needed = _history(scope, row).hot_polls, scope.options.heat.polls_to_confirm
    if obstacle is None and polls < needed:
        return "heat-unconfirmed", f"for {polls} polls in a row only, {needed} are needed"
    return obstacle


def _history(scope: Scope, row: int) -> TabletHistory:
    return scope.view.history.get(scope.id(row)) or TabletHistory()


def _is_growing_end(scope: Scope, row: int, verdict: Verdict) -> bool:
    """Whether cutting it again would only cut off what has stopped growing.

    The tablet that a front was given holds nothing but recent keys, so its writes look evenly spread: at the edge of a
    range a cut in the middle of mostly writes is taken for the same front.
    """
    if verdict.word is HeatWord.FRONT:
        return True
    if verdict.word is not HeatWord.SPLIT or scope.table.hash or row not in (scope.table.first, scope.table.last - 1):
        return False
    samples = scope.view.samples.get(scope.id(row))
    return samples is not None and (not samples.writes or sum(samples.writes) * 2 > len(samples.writes))


def _split_lately(scope: Scope, row: int) -> bool:
    split_at = _history(scope, row).split_for_heat_at
    return split_at is not None and scope.view.now - split_at < scope.options.heat.min_split_age


def _facts(scope: Scope, row: int) -> Facts:
    table, tablets = scope.table, scope.view.tablets
    wanted = min(0.5, PART * scope.cooling.even_threshold / max(float(scope.cooling.rates[row]), 1e-300))
    if table.hash:
        return Facts(scope.id(row), table.key_types, leaf=tablets.leaf(row), wanted=wanted)
    upper = tablets.lowers[row + 1] if row + 1 < table.last else HIGHEST
    was_front = row in (table.first, table.last - 1) and _history(scope, row).split_for_heat_at is not None
    return Facts(scope.id(row), table.key_types, tablets.lowers[row], upper, wanted=wanted, was_front=was_front)


def _parts(scope: Scope, row: int, facts: Facts, verdict: Verdict, targets: HeatTargets) -> tuple[Part, ...]:
    """The tablets that a verdict asks for, each with its node; the growing end is meant for the coolest one."""
    if verdict.parts:
        nodes = targets.give_out(scope, row, verdict.shares)
        return tuple(Part(leaf=leaf, node=node) for leaf, node in zip(verdict.parts, nodes, strict=True))
    lowers = [facts.lower, *verdict.cuts]
    if verdict.front is None:
        nodes = targets.give_out(scope, row, verdict.shares)
    else:
        nodes = [""] * len(lowers)
        nodes[verdict.front] = _coolest(scope, row)
    return tuple(Part(lower, node=node) for lower, node in zip(lowers, nodes, strict=True))


def _coolest(scope: Scope, row: int) -> str:
    """The node with the least load for its weight; empty if that is the current one or may not be chosen.

    Also if it would do clearly more with the growing end than the current one does now: then the end, or others instead
    of it, would soon be carried back.
    """
    loads, nodes = scope.cooling.node_loads, scope.view.nodes
    able = [at for at, node in enumerate(nodes) if scope.may_receive(node) and node.weight > 0]
    best = min(able, key=lambda at: (loads[at] / nodes[at].weight, at), default=None)
    if best is None or not scope.moves_freely or nodes[best] is scope.node(row):
        return ""
    home, rate = int(scope.view.tablets.node[row]), float(scope.cooling.rates[row])
    most = loads[home] / max(nodes[home].weight, 1e-300) * (1 + scope.options.placement.stop_threshold)
    return nodes[best].id if (loads[best] + rate) / nodes[best].weight <= most else ""


def _plan_cold(scope: Scope, row: int, split: list[int]) -> None:
    """Merges two neighbours that heat had split, if both have cooled and fit into one tablet on one node."""
    other = sibling_row(scope, row) if scope.table.hash else row + 1
    if other != row + 1 or other not in _within(split, scope.table) or scope.used & {row, other}:
        return
    if scope.table_options.every is not None:
        return  # a tablet that ends with its period expires with it; a merged one would wait for the later
    rows, size = range(row, row + 2), scope.total(range(row, row + 2))
    why = f"tablets {scope.id(row)} and {scope.id(other)} were split for heat: when cool, 2 become 1"
    found = _cold_obstacle(scope, rows, size)
    if found is not None:
        # Not `reject`: the second of the two may still be merged with the one after it.
        reason = f"{why} of {bytes_text(size)}, but {found[1]}"
        scope.rejections.append(Rejection(ActionKind.MERGE, scope.ids(rows), found[0], reason))
        return
    leaf = scope.view.tablets.leaf(row).parent() if scope.table.hash else None
    part = Part(leaf=leaf) if leaf is not None else Part(scope.view.tablets.lowers[row])
    scope.reshard(rows, 1, "heat-merge", f"{why} of {bytes_text(size)}", (part,))


def _cold_obstacle(scope: Scope, rows: range, size: int) -> tuple[str, str] | None:
    """Code and reason why two cooled tablets stay as they are. Moving one just to tidy up is not worth its bytes."""
    if not scope.table_options.enable_auto_reshard:
        return TABLE_OFF
    bounds = table_bounds(scope.view, scope.options, scope.table)
    if size > bounds.desired:
        # Up to the most that a tablet may have, it would soon be split again.
        return "merged-too-large", f"{bytes_text(bounds.desired)} is the desired size"
    if scope.count + scope.added <= bounds.min_count:
        return "min-tablet-count", f"min_tablet_count is {bounds.min_count}"
    if len(set(scope.node_indexes(rows))) > 1:
        return "apart", "they are on different nodes"
    warm = scope.cooling.too_warm(rows)
    if warm is not None:
        return "too-warm", warm
    return next((found for row in rows if (found := scope.obstacle(row)) is not None), None)
