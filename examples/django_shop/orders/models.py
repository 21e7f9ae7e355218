"""What the shop sells, and what was ordered."""

from django.db import models


class Item(models.Model):
    """Something for sale."""

    name = models.CharField(max_length=40, primary_key=True)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    """One item for one customer, who chose the number, so that a repeated request orders nothing twice."""

    number = models.BigIntegerField(primary_key=True)
    item = models.ForeignKey(Item, on_delete=models.PROTECT)
