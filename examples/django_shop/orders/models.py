"""The items of the shop, and its orders."""

from django.db import models


class Item(models.Model):
    """An article for sale."""

    name = models.CharField(max_length=40, primary_key=True)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    """One item for one customer, who chooses the number, so that a repeated request orders nothing twice."""

    number = models.BigIntegerField(primary_key=True)
    item = models.ForeignKey(Item, on_delete=models.PROTECT)
