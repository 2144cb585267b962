"""What the statements of a scenario do to the simulated bundle. `simulator` calls this when their time comes."""

from collections.abc import Mapping
from dataclasses import replace

from balancer.policies.bundle_view import NodeCondition, NodeView
from balancer.policies.hash_leaves import Leaf
from balancer.policies.simulator_content import Content, interval, make_content
from balancer.policies.simulator_scenario import (
    MOST_NODES,
    MOST_TABLETS,
    ScenarioError,
    Statement,
    parse_count,
    parse_load,
    parse_number,
    parse_size,
)
from balancer.policies.simulator_world import LOWEST_KEY, World, tablets_text

_CONDITIONS = {
    "drain": NodeCondition.DRAINING,
    "down": NodeCondition.DOWN,
    "close": NodeCondition.CLOSED,
    "undrain": NodeCondition.ACTIVE,
    "up": NodeCondition.ACTIVE,
    "open": NodeCondition.ACTIVE,
}


def apply_event(world: World, event: Statement, now: float, seed: int) -> list[str]:
    """Changes the world; returns lines for the story if something broke."""
    match event.verb:
        case "nodes":
            _add_nodes(world, event)
        case "table":
            _add_table(world, event, seed)
        case "grow":
            _content(world, event).growth = parse_size(_word(event, 1), event.line) / 60.0
        case "load":
            content = _content(world, event)
            content.writes = _number(event, "writes", content.writes)
            content.reads = _number(event, "reads", content.reads)
            content.load = parse_load(event.named.get("load", content.load), event.line)
        case _:
            return _change_node(world, event, now)
    return []


def _change_node(world: World, event: Statement, now: float) -> list[str]:
    name = _known(event, _word(event, 0), world.nodes)
    lines = []
    if event.verb in ("down", "fail"):
        broken = [flight for flight in world.flights if name in (flight.action.source, flight.action.target)]
        for flight in broken:
            world.fail(flight, now)
            lines.append(f"{flight.action.kind} {tablets_text(flight.action)} failed")
    if event.verb in _CONDITIONS:
        world.nodes[name] = replace(world.nodes[name], condition=_CONDITIONS[event.verb], closed_by_daemon=False)
    return lines


def _add_nodes(world: World, event: Statement) -> None:
    for name in _names(event):
        world.nodes[name] = NodeView(
            name,
            zone=event.named.get("zone", ""),
            weight=_number(event, "weight", 1.0),
            disk_capacity=_size(event, "disk"),
            memory=_size(event, "memory"),
        )
        world.other_bytes[name] = _size(event, "used") or 0.0
    if len(world.nodes) > MOST_NODES:
        raise ScenarioError(f"line {event.line}: a story has at most {MOST_NODES} nodes")


def _add_table(world: World, event: Statement, seed: int) -> None:
    name, layout, count = _shape(event)
    content = make_content(
        hashed=layout != "range",
        total=_size(event, "size") or 0.0,
        load=parse_load(event.named.get("load", "even"), event.line),
        data=event.named.get("data", "even"),
        seed=seed,
    )
    content.writes, content.reads = (_number(event, key, 0.0) for key in ("writes", "reads"))
    world.contents[name] = content
    if event.named.get("memory") == "yes":
        world.in_memory.add(name)
    nodes = event.named["on"].split(",") if "on" in event.named else list(world.nodes)
    if not nodes:
        raise ScenarioError(f"line {event.line}: there are no nodes yet: write a line like `nodes n1..n3` before it")
    for node in nodes:
        _known(event, node, world.nodes)
    if layout == "whole":
        world.whole.add(name)
    world.add_tablets(name, _lowers(content, count), nodes)


def _shape(event: Statement) -> tuple[str, str, int]:
    """Name, layout and tablets of a table."""
    if len(event.words) == 2 and event.words[1] == "whole":
        return event.words[0], "whole", 1
    if len(event.words) != 3 or event.words[1] not in ("hash", "range"):
        raise ScenarioError(f"line {event.line}: write `table NAME hash|range TABLETS …` or `table NAME whole …`")
    name, layout, count = event.words[0], event.words[1], parse_count(event.words[2], event.line, MOST_TABLETS)
    if not count or (layout == "hash" and count & (count - 1)):
        raise ScenarioError(f"line {event.line}: a range table has 1 tablet or more, a hash table 1, 2, 4, 8 …")
    return name, layout, count


def _lowers(content: Content, count: int) -> list[tuple[int, Leaf | None]]:
    if content.hash:
        return [(interval(leaf)[0], leaf) for leaf in (Leaf(count, at) for at in range(count))]
    cuts = content.cuts(0, int(content.keys[-1]) + 1, count)
    return [(key, None) for key in (LOWEST_KEY, *cuts)]


def _content(world: World, event: Statement) -> Content:
    return world.contents[_known(event, _word(event, 0), world.contents)]


def _word(event: Statement, at: int) -> str:
    if at >= len(event.words):
        raise ScenarioError(f"line {event.line}: {event.text!r} says too little")
    return event.words[at]


def _known(event: Statement, name: str, known: Mapping[str, object]) -> str:
    if name not in known:
        raise ScenarioError(f"line {event.line}: there is no {name!r}; there are {', '.join(known) or 'none'}")
    return name


def _size(event: Statement, key: str) -> float | None:
    return parse_size(event.named[key], event.line) if key in event.named else None


def _number(event: Statement, key: str, default: float) -> float:
    return parse_number(event.named[key], event.line) if key in event.named else default


def _names(event: Statement) -> list[str]:
    """`n1..n4`, or names one by one."""
    found: list[str] = []
    for word in event.words:
        first, dots, last = word.partition("..")
        stem = first.rstrip("0123456789")
        if not dots:
            found.append(word)
        elif not (first[len(stem) :].isdecimal() and last[len(stem) :].isdecimal()):
            raise ScenarioError(f"line {event.line}: {word!r} is not a series of nodes; write one like n1..n4")
        else:
            low, high = (parse_count(text[len(stem) :], event.line) for text in (first, last))
            found += [f"{stem}{number}" for number in range(low, min(high, low + MOST_NODES) + 1)]
    return found
