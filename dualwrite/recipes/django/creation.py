"""Test databases, which can be dropped or copied only while no pool has connections to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualwrite.recipes.django.pools import close_pools

if TYPE_CHECKING:
    from django.db.backends.base.creation import BaseDatabaseCreation

    class _Creation(BaseDatabaseCreation):
        """What the stubs of Django lack."""

        def _clone_test_db(self, *arguments: Any, **keywords: Any) -> None: ...
        def _destroy_test_db(self, *arguments: Any, **keywords: Any) -> None: ...
else:
    _Creation = object


class ClosesPools(_Creation):
    """A mixin for the `DatabaseCreation` of each ENGINE with dual writes; it comes first among the bases."""

    def _clone_test_db(self, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._clone_test_db(*arguments, **keywords)

    def _destroy_test_db(self, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._destroy_test_db(*arguments, **keywords)
