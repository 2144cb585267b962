"""The shop's addresses."""

from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("users/<int:user_id>/orders", views.orders),
    path("users/<int:user_id>/orders/<int:order_id>", views.order),
    path("admin/", admin.site.urls),
]
