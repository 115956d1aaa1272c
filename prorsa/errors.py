"""Prorsa's errors: one tree, each message with its cause and the remedy.

ProrsaError
├── InputError        bad input of a person or a program: command line exits with 2
│   ├── ConfigError   a scenario, profile or configuration file
│   ├── EventError    an event that does not fit the schema
│   └── JournalError  a journal that cannot be read
├── RefusedError      a well-formed request that the state of the run forbids: exits with 3
├── UnavailableError  nobody answers: exits with 4
│   └── WorkerError   an SGLang worker does not answer, or answers something unknown
├── CellError         a cell of a batch failed, or the process that ran it died
└── InvariantError    a defect in Prorsa itself: please report it
"""


class ProrsaError(Exception):
    """Base of every error that Prorsa raises on purpose.

    ``exit_code`` is what the command line ends with when this error reaches it.
    """

    exit_code = 1


class InputError(ProrsaError):
    """Something given to Prorsa is wrong; the message names it and says what would be right."""

    exit_code = 2


class ConfigError(InputError):
    """A scenario, profile or configuration value is wrong."""


class EventError(InputError):
    """An event does not fit the schema; the message names the event type and the field."""


class JournalError(InputError):
    """A journal is missing, damaged or of another version."""


class RefusedError(ProrsaError):
    """The request is well formed but the state of the run forbids it."""

    exit_code = 3


class UnavailableError(ProrsaError):
    """No hub or controller answers."""

    exit_code = 4


class WorkerError(UnavailableError):
    """A worker does not answer, refuses, or answers something that Prorsa does not know.

    ``status`` is the HTTP status that it answered with, or None if it did not answer.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class CellError(ProrsaError):
    """One cell of a batch of runs failed or its process died; the message names the cell."""


class InvariantError(ProrsaError):
    """An internal invariant does not hold: a defect in Prorsa."""
