"""`manage.py shard_ddl APP MIGRATION`: what a migration wants of the sharded tables, for `balancer ddl apply`.

    manage.py shard_ddl shop 0002 > change.sql
    balancer ddl apply shop change.sql --dry-run

`balancer ddl` tries every statement on every node first and then runs it on each. Nothing is executed here. Operations
on models that are not sharded are left to `manage.py migrate`, which leaves out the others.
"""

from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.db.migrations.loader import AmbiguityError, MigrationLoader

from balancer.client.django.shards import sharded, shards_alias


class Command(BaseCommand):
    help = "Prints the statements of a migration for the tables in the cluster, for `balancer ddl apply`."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("app_label")
        parser.add_argument("migration_name")

    def handle(self, *_: Any, app_label: str, migration_name: str, **__: Any) -> str:
        loader = MigrationLoader(None)
        if app_label not in loader.migrated_apps:
            raise CommandError(f"app {app_label} has no migrations")
        try:
            migration = loader.get_migration_by_prefix(app_label, migration_name)
        except AmbiguityError:
            raise CommandError(f"more than one migration of {app_label} begins with {migration_name}") from None
        except KeyError:
            raise CommandError(f"app {app_label} has no migration {migration_name}") from None
        state = loader.project_state((app_label, migration.name), at_end=False)
        connection = connections[shards_alias()]
        with connection.looking(), connection.schema_editor(collect_sql=True, atomic=False) as editor:
            for operation in migration.operations:
                before = state.clone()
                operation.state_forwards(app_label, state)
                if self._is_sharded(app_label, operation):
                    # Django asks its routers for this database, and ours says no to `migrate`
                    state.clear_delayed_apps_cache()
                    self._collect(operation, app_label, editor, before, state)
        lines = [line for line in editor.collected_sql if line.strip()]
        if not lines:
            raise CommandError(f"migration {migration.name} changes no sharded table")
        return "\n".join(lines)

    def _is_sharded(self, app_label: str, operation: Any) -> bool:
        name = getattr(operation, "model_name", None) or getattr(operation, "name", None)
        try:
            return name is not None and sharded(apps.get_model(app_label, name))
        except LookupError:
            return False

    def _collect(self, operation: Any, app_label: str, editor: Any, before: Any, after: Any) -> None:
        original = operation.allow_migrate_model
        operation.allow_migrate_model = lambda *_: True
        try:
            operation.database_forwards(app_label, editor, before, after)
        finally:
            operation.allow_migrate_model = original
