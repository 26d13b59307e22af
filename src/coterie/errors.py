"""What a user can mend, said in one sentence."""


class CoterieError(ValueError):
    """What was wrong, where, and what is allowed."""


class SettingError(CoterieError):
    """One setting that cannot be meant. Whoever read it from a file can say its full name."""

    def __init__(self, setting: str, says: str):
        super().__init__(setting, says)  # as pickle gives them back, so that it can come from another process
        self.setting, self.says = setting, says

    def __str__(self) -> str:
        return f"{self.setting} {self.says}"


def require(holds: bool, setting: str, value: object, allowed: str) -> None:
    """Refuse a setting that cannot be meant."""
    if not holds:
        raise SettingError(setting, f"is {value!r}; allowed is {allowed}")


class Lost(Exception):
    """Another process of this run is gone. Nothing that the user set is wrong, so it is no CoterieError."""


class Interrupted(CoterieError):
    """Ctrl-C, with what to do next."""
