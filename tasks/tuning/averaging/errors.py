"""Errors of averaging.

AveragingError              `code` is a short fixed word; codes: docs/spec/averaging.md
└── BadUpdate               an update, state or fact of a peer is refused
"""

from ...errors import TaskError


class AveragingError(TaskError):
    """Averaging cannot start or continue."""


class BadUpdate(AveragingError):
    """An update, a state or a fact of a peer breaks a rule. The code says which."""
