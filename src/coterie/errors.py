"""One error for everything that a user can mend."""


class CoterieError(ValueError):
    """What was wrong, where, and what is allowed, in one sentence."""


def require(holds: bool, name: str, value: object, allowed: str) -> None:
    """Refuse a setting that cannot be meant."""
    if not holds:
        raise CoterieError(f"{name} is {value!r}; allowed is {allowed}")
