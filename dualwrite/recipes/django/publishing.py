"""`@publish` on a model: each row that is saved or deleted sends a record with its transaction.

    @publish("orders")
    class Order(models.Model): ...

A save is refused outside of a transaction, before the row is written: Django would commit it by itself, and the record
would come too late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Field, Model
from django.db.models.signals import class_prepared, post_delete, post_save, pre_save
from django.utils.encoding import is_protected_type

from dualwrite.errors import ConfigError
from dualwrite.recipes.django.sending import connection_of, send

_ModelT = TypeVar("_ModelT", bound=Model)

Part = str | Callable[[Any], Any]
"""How to get a part of a record from a row: the name of an attribute or a method of the model, or a function."""

EVENTS: Final = ("create", "update", "delete")


def as_json(row: Model) -> str:
    """Return the columns of a row as a JSON object, each as Django's serializers write it."""
    return json.dumps({field.attname: _plain(field, row) for field in row._meta.concrete_fields}, cls=DjangoJSONEncoder)


def publish(
    topic: str, *, key: Part = "pk", value: Part = as_json, deleted: Part | None = None, on: Iterable[str] = EVENTS
) -> Callable[[type[_ModelT]], type[_ModelT]]:
    """Send a record to `topic` with each row of the model that Django creates, updates or deletes, or those of `on`.

    The record belongs to the transaction of the row, on the row's database. `key` and `value` are functions of the row,
    which is read again as the transaction has stored it, or name an attribute or a method; a named key is sent as text.
    The value of a deleted row is None, a tombstone, or what `deleted` gets from it. The decorator may be repeated.

    A save outside of a transaction raises IllegalStateError before the row is written, and one on a database that is
    not set up for dual writes ConfigError. Fixtures (`loaddata`) are not published, nor is anything for which Django
    sends no signal. Rows that are saved or deleted through a proxy or a child of the model are published.

    Raises ConfigError for an abstract model or a proxy, and for names that the model does not have.
    """

    def declare(model: type[_ModelT]) -> type[_ModelT]:
        publication = Publication(model, topic, key, value, deleted, frozenset(on))
        publication.assert_sound()
        published.append(publication)
        publication.listen_to(model)
        class_prepared.connect(publication.listen_to, weak=False)
        return model

    return declare


@dataclass(frozen=True, eq=False)
class Publication:
    """What `@publish` says of one model."""

    model: type[Model]
    topic: str
    key: Part
    value: Part
    deleted: Part | None
    on: frozenset[str]

    def assert_sound(self) -> None:
        """Raise ConfigError for what cannot be meant."""
        name, meta = self.model.__name__, self.model._meta
        if meta.abstract or meta.proxy:
            raise ConfigError(f"@publish is for models with a table of their own, not for {name}: decorate those")
        if not self.on or not self.on <= set(EVENTS):
            raise ConfigError(f"on= of @publish on {name} takes one or more of {EVENTS}, not {sorted(self.on)}")
        for part in (self.key, self.value, self.deleted):
            if isinstance(part, str) and not hasattr(self.model, part):
                raise ConfigError(f"@publish on {name} names {part!r}, which is no attribute of the model")

    def listen_to(self, sender: type[Model], **_: Any) -> None:
        """Connect to the signals of the model, of a proxy, or of a child, whose save writes a row of the model.

        A child's deletion sends the signals of the model, too.
        """
        if not issubclass(sender, self.model):
            return
        if self.on & {"create", "update"}:
            pre_save.connect(self._before_save, sender, weak=False)
            post_save.connect(self._after_save, sender, weak=False)
        if "delete" in self.on and sender._meta.concrete_model is self.model:
            post_delete.connect(self._after_delete, sender, weak=False)

    @staticmethod
    def _before_save(*, raw: bool, using: str, **_: Any) -> None:
        if not raw:
            connection_of(using).assert_in_transaction()

    def _after_save(self, *, instance: Model, created: bool, raw: bool, using: str, **_: Any) -> None:
        if not raw and ("create" if created else "update") in self.on:
            with connection_of(using).dooming():
                # F(), update_fields and defaults of the database leave other values on the instance
                pk = self._pk.value_from_object(instance)
                row = self.model._base_manager.using(using).get(pk=pk)
                send(self.topic, _part(row, self.value), self._key(row), using=using)

    def _after_delete(self, *, instance: Model, using: str, **_: Any) -> None:
        with connection_of(using).dooming():
            value = None if self.deleted is None else _part(instance, self.deleted)
            send(self.topic, value, self._key(instance), using=using)

    def _key(self, row: Model) -> Any:
        key = _part(row, self.key)
        is_text = callable(self.key) or key is None or isinstance(key, bytes)
        return key if is_text else str(key)

    @property
    def _pk(self) -> Field[Any, Any]:
        return self.model._meta.pk


published: Final[list[Publication]] = []
"""Of all models, for the checks."""


def _part(row: Model, part: Part) -> Any:
    if callable(part):
        return part(row)
    found = getattr(row, part)
    return found() if callable(found) else found


def _plain(field: Field[Any, Any], row: Model) -> Any:
    value = field.value_from_object(row)
    return value if is_protected_type(value) else field.value_to_string(row)
