"""Orders in the admin: one user at a time, and every page says on which node that is."""

from django.contrib import admin

from balancer.client.django.shard_admin import ShardAdmin

from .models import Order


@admin.register(Order)
class OrderAdmin(ShardAdmin):
    shard_key = "user_id"
    list_display = ("id", "user_id", "amount", "note")
