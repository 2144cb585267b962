"""Assembles a snapshot from pages that a backend has read. Pure; called only by the backends' loaders."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from balancer.directory.page_index import IdIndex
from balancer.directory.page_map import PageMap
from balancer.directory.pages import Page
from balancer.directory.snapshot import Snapshot, TableIndex


def with_pages(snapshot: Snapshot, pages: Mapping[int, Page], next_page: int) -> Snapshot:
    """The snapshot with these pages as all its tablets."""
    index = index_of(pages)
    ids = IdIndex.of({number: page.ids for number, page in pages.items()})
    return replace(snapshot, pages=PageMap(pages), index=index, ids=ids, next_page=next_page)


def index_of(pages: Mapping[int, Page]) -> dict[int, TableIndex]:
    """The pages of each table in key order."""
    tables: dict[int, list[int]] = defaultdict(list)
    for number, page in pages.items():
        tables[page.table].append(number)
    for numbers in tables.values():
        numbers.sort(key=lambda number: pages[number].start)
    return {
        table: TableIndex(tuple(numbers), [pages[number].start for number in numbers])
        for table, numbers in tables.items()
    }
