"""Errors of a demo run, other than a divergence."""

from __future__ import annotations


class DemoError(Exception):
    """The run cannot continue; the message is for the user at the terminal."""


class InputError(DemoError):
    """The events cannot be read: no such file, an unknown format, a bad line, or no events."""


class PlanError(DemoError):
    """There are too few transactions for the requested kills."""


class ServiceError(DemoError):
    """The broker or the database did not start, or became unavailable."""


class WorkerFailedError(DemoError):
    """A worker ended by itself, hung, or outlived the point where it should have died."""


class RefusedError(DemoError):
    """Kafka or the connection to it refuses a worker's request, because of the input or the broker."""


class UnfinishedTransactionError(DemoError):
    """A transaction is still open after everything was written, so read_committed consumers wait for it."""
