"""Everything that can go wrong, each kind with its own exit code.

    LineageError
    ├─ UsageError           2   wrong use: arguments, an output that exists, a pickle not allowed
    ├─ ParityError          3   the check ran and the answer is no
    ├─ SourceError          4   the source cannot be obtained: network, offline, not_found
    ├─ AccessError          5   gated, private, bad token
    ├─ ArchitectureError    6   an architecture, or an option in its config, that no spec describes
    ├─ FileDamaged          7   cut, LFS pointer, bad header, checksum
    ├─ ResourceError        8   not enough disk, memory or device
    └─ TensorMismatch       9   tensors do not fit the model; or the reference did not load truly

Exit code 1 is a fault of ours (any other exception), 130 an interrupt.
"""

from collections.abc import Iterable
from typing import Any


class LineageError(Exception):
    """A refusal that the user can act on.

    message: one line; names the file, key or tensor. facts: further lines, one a finding. hint: what to do.
    context: the same as data, for ``--json``. code: the machine-readable kind, one of the class's codes.
    """

    exit_code = 1
    codes: tuple[str, ...] = ("internal",)

    def __init__(
        self,
        message: str,
        *,
        facts: Iterable[str] = (),
        hint: str | None = None,
        code: str | None = None,
        context: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.facts = tuple(facts)
        self.hint = hint
        self.code = code or self.codes[0]
        self.context = context or {}
        assert self.code in self.codes, f"{type(self).__name__} has no code {self.code!r}"

    def to_dict(self) -> dict[str, Any]:
        """The error as the ``--json`` output shows it."""
        return {
            "code": self.code,
            "exit_code": self.exit_code,
            "message": self.message,
            "facts": list(self.facts),
            "hint": self.hint,
            "context": self.context,
        }


class UsageError(LineageError):
    exit_code = 2
    codes = ("usage",)


class ParityError(LineageError):
    exit_code = 3
    codes = ("parity",)


class SourceError(LineageError):
    exit_code = 4
    codes = ("not_found", "network", "offline")


class AccessError(LineageError):
    exit_code = 5
    codes = ("gated", "auth")


class ArchitectureError(LineageError):
    exit_code = 6
    codes = ("architecture",)


class FileDamaged(LineageError):
    exit_code = 7
    codes = ("file", "checksum")


class ResourceError(LineageError):
    exit_code = 8
    codes = ("resources",)


class TensorMismatch(LineageError):
    exit_code = 9
    codes = ("tensors", "reference")
