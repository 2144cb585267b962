"""The orders as `orders.sql` makes them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("user_id", models.BigIntegerField()),
                ("amount", models.IntegerField()),
            ],
            options={"db_table": "orders"},
        ),
    )
