"""A note on every order."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("shop", "0001_initial"),)
    operations = (migrations.AddField("order", "note", models.TextField(default="")),)
