"""The tables of the shop."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Items and orders."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Item",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("stock", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.BigIntegerField(primary_key=True, serialize=False)),
                ("item", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="orders.item")),
            ],
        ),
    )
