"""Makes the commands of this package known to Django."""

from django.apps import AppConfig


class BalancerConfig(AppConfig):
    """In INSTALLED_APPS as `balancer.client.django`."""

    name = "balancer.client.django"
    label = "balancer_shards"
    verbose_name = "Shards"
