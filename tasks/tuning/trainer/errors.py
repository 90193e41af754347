"""Errors of fine-tunings. The codes are in docs/spec/trainer.md."""

from ...errors import TaskError


class TuningError(TaskError):
    """A fine-tuning cannot begin or continue. `code` is a short fixed word."""


class BadGradients(TuningError):
    """A chain returned gradients that are not finite, have the wrong shapes, or are too large."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "bad-gradients",
            f"the gradients of a step were refused: {why}",
            hint="the step is repeated, and nothing of it was applied",
        )


class Diverged(TuningError):
    """Every attempt to compute a step gave gradients that were refused."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(
            "bad-gradients",
            f"step {step} failed repeatedly: {why}",
            hint="a lower `--rate` may help; `shoal finetune resume ID` tries again from the last "
            "checkpoint",
        )


class Refused(TuningError):
    """Every chain refused a step, for a reason that time does not cure."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(
            "chain-refused",
            f"the nodes that serve the model refuse its steps (`{code}`): {why}",
            hint="if one of these nodes has another version of shoal, update it; then "
            "`shoal finetune resume ID` goes on from the last checkpoint",
        )


class Damaged(TuningError):
    """A file of a fine-tuning is damaged."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(
            "damaged",
            f"`{path}` cannot be used: {why}",
            hint="start the fine-tuning again; `shoal finetune rm ID` removes this one",
        )
