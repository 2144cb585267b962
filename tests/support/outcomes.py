"""What a bundle looks like after its actions: as if every split and merge had cut its bytes evenly."""

from collections.abc import Sequence
from dataclasses import replace

from balancer.policies.view import Action, ActionKind, BundleView
from tests.support.bundle_views import Tablets, bundle_of


def after(view: BundleView, actions: Sequence[Action]) -> BundleView:
    """The same bundle with these actions done. Tablets are renumbered; loads are divided like the bytes."""
    replaced = {action.tablets[0]: action for action in actions if action.kind is not ActionKind.MOVE}
    gone = {tablet for action in replaced.values() for tablet in action.tablets}
    moved = {action.tablets[0]: action.target for action in actions if action.kind is ActionKind.MOVE}
    tables = {}
    for table in view.tables:
        rows = range(table.first, table.last)
        made = [entry for row in rows for entry in _entries(view, row, replaced, gone, moved)]
        sizes, nodes, loads, leaves = zip(*made, strict=True)
        tables[table.name] = Tablets(sizes, leaves if table.hash else None, nodes, loads, key_types=table.key_types)
    return replace(bundle_of(tables, view.nodes), now=view.now)


def _entries(
    view: BundleView, row: int, replaced: dict[int, Action], gone: set[int], moved: dict[int, str]
) -> list[tuple[float, int, float, object]]:
    tablets = view.tablets
    tablet, node = int(tablets.ids[row]), int(tablets.node[row])
    load = float(tablets.write_rate[row] + tablets.read_rate[row])
    if tablet in replaced:
        action = replaced[tablet]
        rows = range(row, row + len(action.tablets))
        assert tuple(int(tablets.ids[at]) for at in rows) == action.tablets, "an action's tablets are contiguous"
        total = sum(float(tablets.write_rate[at] + tablets.read_rate[at]) for at in rows)
        parts = [part.leaf for part in action.parts] or [None] * action.count
        assert len(parts) == action.count
        return [(action.size / action.count, node, total / action.count, leaf) for leaf in parts]
    if tablet in gone:
        return []
    if tablet in moved:
        node = [known.id for known in view.nodes].index(moved[tablet])
    return [(float(tablets.sizes[row]), node, load, tablets.leaf(row))]
