"""Each view is one block on the shard of its user."""

import json

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from balancer.client.django import shard

from .models import Order


@csrf_exempt
def orders(request: HttpRequest, user_id: int) -> JsonResponse:
    """GET: the user's orders. POST: another one."""
    if request.method == "POST":
        words = json.loads(request.body)
        with shard("orders", user_id) as place:
            made = Order.objects.create(
                id=place.router.ids("orders").next(),
                user_id=user_id,
                amount=words["amount"],
                note=words.get("note", ""),
            )
        return JsonResponse({"id": made.id, "node": place.location.node}, status=201)
    with shard("orders", user_id, read_only=True):
        found = list(Order.objects.filter(user_id=user_id).order_by("id").values("id", "amount", "note"))
    return JsonResponse({"orders": found})


@csrf_exempt
def order(request: HttpRequest, user_id: int, order_id: int) -> JsonResponse:
    """PATCH: another note."""
    words = json.loads(request.body)
    with shard("orders", user_id):
        found = Order.objects.select_for_update().get(user_id=user_id, id=order_id)
        found.note = words["note"]
        found.save(update_fields=["note"])
    return JsonResponse({"id": order_id, "note": found.note})
