"""The options for connecting to Kafka and to the database, shared by all commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.cli.command_config import settings_of_file
from dualwrite.cli.numbers import number_option
from dualwrite.config import AdminConfig, ProducerConfig, of_connections
from dualwrite.errors import ConfigError
from dualwrite.recipes.sqlalchemy.engines import prepare_nothing

DATABASE_VARIABLE: Final = "DUALWRITE_DATABASE_URL"
SERVERS_VARIABLE: Final = "DUALWRITE_BOOTSTRAP_SERVER"

Command = TypeVar("Command", bound=Callable[..., Any])


DEFAULT_TIMEOUT_MS: Final = 30_000
DEFAULT_REACH_MS: Final = 5_000
"""How long to wait for a first response: a user at a terminal wants to learn of a wrong address soon."""


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How to connect to the cluster. `reach_ms`: how long the first response, from any broker, may take."""

    settings: dict[str, Any]
    timeout_ms: int
    reach_ms: int
    publishing: dict[str, Any] = field(default_factory=dict)
    """The settings of a producer, for commands that publish the records of other writers."""

    @contextmanager
    def admin(self, *, reached: bool = True) -> Iterator[TransactionAdmin]:
        """Open an admin client; `reached`: wait until a broker has responded.

        Raises ConfigError for invalid settings, and the brokers' errors, or KafkaTimeoutError if none responds.
        """
        with TransactionAdmin(self.settings | {"default_api_timeout_ms": self.timeout_ms}) as admin:
            if reached:
                admin.describe_cluster(timeout_ms=self.reach_ms)
            yield admin

    def reach(self) -> None:
        """Raise as `admin` does if no broker responds."""
        with self.admin():
            pass


def kafka_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--bootstrap-server`, `--command-config` and `--timeout-ms`, which the command gets as `access`."""
    return _with_kafka(command, required=True)


def publishing_kafka_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options to a command whose producer the file may set as well."""
    return _with_kafka(command, required=True, publishes=True)


def store_kafka_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options to a command that needs Kafka only if `--database` is in a topic."""
    return _with_kafka(command, required=False)


def _with_kafka(command: Callable[..., None], *, required: bool, publishes: bool = False) -> Callable[..., None]:
    @functools.wraps(command)
    def with_access(
        *arguments: Any,
        bootstrap_server: str | None,
        command_config: str | None,
        timeout_ms: int | None,
        **options: Any,
    ) -> None:
        access = kafka_access(bootstrap_server, command_config, timeout_ms, publishes=publishes)
        command(*arguments, access=access, **options)

    for option in (
        number_option(
            "--timeout-ms",
            metavar="MS",
            least=1,
            help="How long one request to Kafka may take, including retries: by default "
            f"{DEFAULT_TIMEOUT_MS}, and {DEFAULT_REACH_MS} until a broker has responded.",
        ),
        click.option(
            "--command-config",
            metavar="FILE",
            help="Properties file with settings by Kafka's names: security.protocol, sasl.*, ssl.*, client.id"
            + (", and those of the producer: compression.type, partitioner..." if publishes else "..."),
        ),
        click.option(
            "--bootstrap-server",
            required=required,
            envvar=SERVERS_VARIABLE,
            show_envvar=True,
            metavar="HOST:PORT,...",
            help="Brokers to connect to first." if required else "Brokers to connect to first, for kafka:///topic.",
        ),
    ):
        with_access = option(with_access)
    return with_access


def database_option(*, required: bool) -> Callable[[Command], Command]:
    """Add `--database`, which the command opens with `database(url)`."""
    return click.option(
        "--database",
        "database_url",
        required=required,
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="The database with the state table, as an SQLAlchemy URL: postgresql+psycopg://user@host/name. "
        "If it has a password, use the environment variable instead of the command line.",
    )


def schema_option(command: Command) -> Command:
    """Add `--schema`."""
    return click.option(
        "--schema",
        metavar="NAME",
        help="The schema of the state table; by default, the one that an unqualified name resolves to.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, for programs.")(command)


def kafka_access(
    bootstrap_server: str | None, command_config: str | None, timeout_ms: int | None, *, publishes: bool = False
) -> KafkaAccess:
    """Return the settings, by names with underscores. `publishes`: those of a producer are allowed.

    Raises ConfigError.
    """
    settings = settings_of_file(command_config) if command_config is not None else {}
    if command_config is not None:
        _check(command_config, settings, publishes=publishes)
    named: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings.items()}
    named.pop("default_api_timeout_ms", None)  # --timeout-ms sets it
    connections = of_connections(named)
    return KafkaAccess(
        connections | ({} if bootstrap_server is None else {"bootstrap_servers": bootstrap_server}),
        publishing=_without(named, connections),
        timeout_ms=DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        reach_ms=DEFAULT_REACH_MS if timeout_ms is None else timeout_ms,
    )


def _check(path: str, settings: dict[str, str], *, publishes: bool) -> None:
    """Validate the settings, so that errors show the names in the file. Raises ConfigError."""
    connections = of_connections(settings) if publishes else settings
    servers = {"bootstrap.servers": "given.by.an.option:1"}
    try:
        AdminConfig.parse(connections | servers, {})
        ProducerConfig.parse({**_without(settings, connections), **servers}, {})
    except ConfigError as error:
        raise ConfigError(f"--command-config {path}: {error}") from None


def _without(settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in others}


@contextmanager
def database(url: str, *, may_be_created: bool = False) -> Iterator[sa.Engine]:
    """Open an engine that keeps no idle connections. Raises ConfigError.

    `may_be_created`: SQLite creates an empty file for a misspelt name, so only commands that create tables allow it.
    """
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and not may_be_created and not _is_file(parsed):
            raise ConfigError(f"--database: there is no file {parsed.database or ':memory:'}")
        engine = sa.create_engine(parsed, poolclass=sa.NullPool)
        prepare_nothing(engine)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--database needs the package {error.name}, which is not installed: pip install it "
            "(for Postgres: pip install 'dualwrite[postgres]')"
        ) from None
    try:
        yield engine
    finally:
        engine.dispose()


def _is_file(url: sa.URL) -> bool:
    name = url.database or ""
    return name.startswith("file:") or Path(name).is_file()
