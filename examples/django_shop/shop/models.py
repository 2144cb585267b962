"""Orders, by user. In PostgreSQL the primary key is (user_id, id); ids are unique in the whole cluster."""

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """An order of a user."""

    shard_table: ClassVar[str] = "orders"

    id = models.BigIntegerField(primary_key=True)
    user_id = models.BigIntegerField()
    amount = models.IntegerField()
    note = models.TextField(default="")

    class Meta:
        db_table = "orders"

    def __str__(self) -> str:
        return f"order {self.id} of user {self.user_id}"
