"""The few exceptions that carry a message meant for a person.

Foreign exceptions are wrapped into one of these once, at the border where they occur.
"""


class RigcanaryError(Exception):
    """The work failed; the message names the thing and the next step (exit code 1)."""

    exit_code = 1


class ConfigError(RigcanaryError):
    """Wrong usage or configuration; the message names the setting (exit code 2)."""

    exit_code = 2


class UnusableMessage(RigcanaryError):
    """A message that goes to the dead letters, with the reason that is filed there.

    ``reason`` is one of :data:`contract.deadletter.REASONS`; ``detail`` is for a person.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
