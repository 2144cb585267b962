"""Django's admin for sharded models: it shows one key at a time, and says on every page where that is.

    @admin.register(Order)
    class OrderAdmin(ShardAdmin):
        shard_key = "user_id"

Without a key the list asks for one. Everything that a page shows or changes happens in one `shard` block.
"""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html

from balancer.client.django.shards import ShardBlock, shard
from balancer.directory.locate import parse_key
from balancer.errors import UserError

ASKED = "_shard"
"""The parameter of a URL that chooses the key; several columns are separated by commas."""


class ShardAdmin(admin.ModelAdmin):
    """A `ModelAdmin` in which every page belongs to one shard."""

    shard_key: str = ""
    """The model's field with the key: rows of other keys in the same tablet are not listed."""

    def get_queryset(self, request: HttpRequest) -> Any:
        found = super().get_queryset(request)
        opened: ShardBlock | None = getattr(request, "shard", None)
        return found.filter(**{self.shard_key: opened.key}) if opened and self.shard_key else found

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return self._within(
            request, lambda words: admin.ModelAdmin.changelist_view(self, request, words), extra_context
        )

    def changeform_view(
        self, request: HttpRequest, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        def view(words: Any) -> Any:
            return admin.ModelAdmin.changeform_view(self, request, object_id, form_url, words)

        return self._within(request, view, extra_context)

    def delete_view(self, request: HttpRequest, object_id: Any, extra_context: Any = None) -> Any:
        def view(words: Any) -> Any:
            return admin.ModelAdmin.delete_view(self, request, object_id, words)

        return self._within(request, view, extra_context)

    def history_view(self, request: HttpRequest, object_id: Any, extra_context: Any = None) -> Any:
        def view(words: Any) -> Any:
            return admin.ModelAdmin.history_view(self, request, object_id, words)

        return self._within(request, view, extra_context)

    def _within(self, request: HttpRequest, view: Callable[[Any], Any], context: Any) -> Any:
        table: str = self.model.shard_table
        remembered = f"shard of {table}"
        words = request.GET.copy()
        asked = words.pop(ASKED, [None])[-1]
        request.GET = words
        text = asked if asked is not None else request.session.get(remembered)
        if text is None:
            return self._question(table, "")
        try:
            block = shard(table)
            values = parse_key(block.router.snapshot.table(table), [part.strip() for part in text.split(",")])
            block = shard(table, values if len(values) != 1 else values[0])
            with block as opened:
                request.session[remembered] = text
                request.shard = opened
                response = view({**(context or {}), "subtitle": where(opened)})
                if hasattr(response, "render"):
                    response.render()  # templates read the rest of querysets
                return response
        except UserError as error:
            if asked is None:
                request.session.pop(remembered, None)
            messages.error(request, str(error))
            return self._question(table, str(error))

    def _question(self, table: str, error: str) -> HttpResponse:
        page = format_html(
            "<!doctype html><title>{0}</title><p>{1}</p><form>Rows of table {0} are looked at by key: "
            '<input name="{2}" autofocus> <button>Show</button></form>',
            table,
            error,
            ASKED,
        )
        return HttpResponse(page, status=400 if error else 200)


def where(opened: ShardBlock) -> str:
    """What every page says."""
    found = opened.location
    return f"table {opened.table}, key {opened.key!r}: node {found.node}, tablet {found.tablet}, epoch {found.epoch}"
