"""What can go wrong with a demo run that is not a divergence."""

from __future__ import annotations


class DemoError(Exception):
    """The run cannot go on; the message is for the person who started it."""


class InputError(DemoError):
    """The events cannot be read: no such file, not that format, a bad line, nothing in it."""


class PlanError(DemoError):
    """The kills that were asked for do not fit into the transactions that there are."""


class ServiceError(DemoError):
    """The broker or the database did not start, or went away."""


class WorkerFailedError(DemoError):
    """A worker ended by itself, hung, or outlived the place where it should have died."""


class RefusedError(DemoError):
    """Kafka, or the way to it, refuses what a worker asks for: the input or the broker is to blame, not the worker."""


class UnfinishedTransactionError(DemoError):
    """A transaction is still open after everything was written, so consumers are held up in front of it."""
