"""Why a step is not compiled now: the work ahead is too little for it."""

from __future__ import annotations

from coterie.errors import CoterieError


class TooLarge(CoterieError):
    """Compiling so many operations would take longer than it saves."""

    def __init__(self, operations: int):
        super().__init__(operations)  # as pickle gives it back
        self.operations = operations

    def __str__(self) -> str:
        return f"a step is {self.operations} operations, too many to compile for the work ahead"
