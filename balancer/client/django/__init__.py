"""Django's ORM on the node that owns a key.

    DATABASES = {
        "default": {…},                                   # an ordinary database: accounts, sessions, django_migrations
        "shards": {"ENGINE": "balancer.client.django", "NAME": "zk://zk1:2181/shop", "USER": "shop"},
    }
    DATABASE_ROUTERS = ["balancer.client.django.ShardRouter"]
    INSTALLED_APPS = [..., "balancer.client.django"]

    class Order(models.Model):
        shard_table = "orders"                            # the table in the bundle's file

    with shard("orders", user_id):
        Order.objects.create(user_id=user_id, …)

`shard` is the outermost `atomic` of its database: one transaction on the key's owner, with the proof of ownership. It
waits while the tablet is switched. Without an open `shard` every query of a sharded model is refused at once. Schema
changes are made on all nodes by `balancer ddl`: `manage.py shard_ddl` writes what a migration wants.
"""

from balancer.client.django.shards import ShardBlock, ShardRouter, run, shard

__all__ = ["ShardBlock", "ShardRouter", "run", "shard"]
