"""What privacy a run can promise: ε of all messages that a client sends in the planned rounds.

The reader is anyone who sees every message. It is compared with a run in which one client, whoever it is, sends no
update (`neighbour="absent"`), or has any other data ("replaced"). Every client counts as present in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie.errors import CoterieError, SettingError
from coterie.protocol.privacy import Privacy
from coterie.protocol.stages import Stage

AS_PRINTED = "per message, as printed, not a guarantee above 1"
GRAIN = 1e-3  # how finely privacy loss is divided, relative to its spread
WORST = 500.0  # spread of the privacy loss beyond which ε, above 100 000, promises nothing
Noises = list[tuple[float, int]]  # Gaussian mechanisms: noise in units of sensitivity, how often


def epsilon(noises: Noises, delta: float) -> float:
    """An upper bound on ε of them all together, by the privacy loss distributions of dp-accounting."""
    noises = [(noise, times) for noise, times in noises if times and noise < math.inf]
    if not noises:
        return 0.0
    events, accountants = _dp_accounting()
    spread = math.sqrt(sum(times / noise**2 for noise, times in noises))
    if spread > WORST:
        return math.inf
    accountant = accountants.PLDAccountant(value_discretization_interval=GRAIN * max(spread, spread**2))
    for noise, times in noises:
        accountant.compose(events.GaussianDpEvent(noise), times)
    return float(accountant.get_epsilon(delta))


def _dp_accounting() -> tuple[Any, Any]:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError as problem:
        raise CoterieError(
            "privacy of mechanism 'client' is counted by dp-accounting, which is not installed; "
            "pip install 'coterie[privacy]' brings it"
        ) from problem
    return dp_accounting, dp_accounting.pld


def not_covered(stage: Stage) -> list[str]:
    """What a client sends in this stage with no noise that is counted."""
    algorithm, privacy = stage.algorithm, stage.privacy
    sent = [name for name, times in algorithm.times_sent(stage.rounds).items() if times]
    if privacy is None:
        return sent + _beside(stage)
    open = [name for name in sent if privacy.multiplier(algorithm.role(name)) is None]
    if sent and privacy.mechanism == "client" and privacy.multiplier("buffers") is None:
        open.append("buffers")
    return open


def _beside(stage: Stage) -> list[str]:
    """What a stage without privacy has clients send beside its algorithm: separation, and for selection."""
    separation = ["separation"] if stage.until == "separated" or stage.n_init > 1 else []
    return separation + (["selection"] if stage.participation.select != "uniform" else [])


def noised(stage: Stage, rounds: int | None = None) -> dict[str, tuple[float, int]]:
    """What is covered by noise, how much of it, and how often it is sent."""
    algorithm, privacy = stage.algorithm, stage.privacy
    if privacy is None:
        return {}
    sent = algorithm.times_sent(stage.rounds if rounds is None else rounds)
    known = {name: (privacy.multiplier(algorithm.role(name)), times) for name, times in sent.items() if times}
    return {
        n: (noise, times) for n, (noise, times) in known.items() if noise is not None and noise < math.inf
    }


def _all_noises(stages: Sequence[Stage]) -> Noises:
    return [one for stage in stages for one in noised(stage).values()]


def total(stages: Sequence[Stage]) -> float | None:
    """ε of the whole run; None where something is not covered."""
    if any(not_covered(stage) for stage in stages):
        return None
    every = _all_noises(stages)
    return epsilon(every, _delta(stages)) if every else 0.0


def _delta(stages: Sequence[Stage]) -> float:
    known = {p.delta for p in _counted(stages)}
    if len(known) > 1:
        raise SettingError(
            "delta", f"is {' and '.join(map(str, sorted(known)))} in one run; allowed is one for all stages"
        )
    return known.pop()


def _counted(stages: Sequence[Stage]) -> list[Privacy]:
    return [stage.privacy for stage in stages if stage.privacy and stage.privacy.mechanism == "client"]


# before the start


def check(stages: Sequence[Stage]) -> None:
    """Refuse a run that would spend more than its target, or that could not be counted."""
    counted = _counted(stages)
    if not counted:
        return
    _dp_accounting()
    delta = _delta(stages)
    if len({p.neighbour for p in counted}) > 1:
        raise SettingError("neighbour", "differs between stages of one run; allowed is one for all stages")
    targets = [p.target_epsilon for p in counted if p.target_epsilon is not None]
    if not targets:
        return
    target, spent = min(targets), total(stages)
    if spent is None:
        raise SettingError(
            "target_epsilon",
            f"is {target}, but there is {_no_total(stages)}; allowed is none with this algorithm and these settings",
        )
    if spent > target:
        raise SettingError(
            "target_epsilon",
            f"is {target}, but the planned rounds come to ε = {spent:.4g} at δ = {delta:g}; "
            f"{_would_fit(stages, target, delta)}",
        )


def _would_fit(stages: Sequence[Stage], target: float, delta: float) -> str:
    """In words: how many rounds, or how much noise."""
    every = _all_noises(stages)
    times = _least(lambda x: epsilon([(noise * x, n) for noise, n in every], delta) <= target)
    if len(stages) > 1:
        return f"allowed is noise {times:.3g} times as high, or fewer rounds"
    privacy = stages[0].privacy
    assert privacy is not None
    names = [name for name in ("noise", "importance_noise") if getattr(privacy, name)]
    wanted = " and ".join(f"{name} = {_up(times * getattr(privacy, name))}" for name in names)
    rounds = 0
    for bit in reversed(range(stages[0].rounds.bit_length())):  # the most that fit, bit by bit
        more = rounds + (1 << bit)
        rounds = more if epsilon(list(noised(stages[0], more).values()), delta) <= target else rounds
    shorter = f"at most {rounds} round{'s' * (rounds != 1)}, or " if rounds else ""
    return f"allowed is {shorter}{wanted}"


def _least(fits: Callable[[float], bool]) -> float:
    """The least factor that fits, to a thousandth."""
    low = high = 1.0
    while not fits(high):
        low, high = high, high * 2
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _up(value: float) -> float:
    """Rounded up to three digits: what is said must fit."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step) * step:.6g}")


# for the summary


def account(stages: Sequence[Stage]) -> dict[str, Any] | None:
    """What can be said of a run's privacy; None where none was asked for."""
    if not any(stage.privacy for stage in stages):
        return None
    spent = total(stages)
    counted = _counted(stages)
    each = [_stage(stage) for stage in stages]
    whole = _no_total(stages) if spent is None else f"total ε = {spent:.4g}"
    return {
        "epsilon": spent,
        "delta": _delta(stages) if counted else None,
        "neighbour": counted[0].neighbour if counted else None,
        "stages": each,
        "says": ", then ".join(_words(stage, one) for stage, one in zip(stages, each, strict=True))
        + f"; {whole}",
    }


def _stage(stage: Stage) -> dict[str, Any]:
    privacy, once = stage.privacy, noised(stage, 1)
    per_message, label = None, None
    if privacy is not None and privacy.mechanism == "paper":
        per_message, label = privacy.epsilon, AS_PRINTED
    elif privacy is not None and once:
        per_message, label = (
            epsilon(list(once.values()), privacy.delta),
            f"per message, of {' and '.join(once)}",
        )
    return {
        "mechanism": "none" if privacy is None else privacy.mechanism,
        "epsilon_per_message": per_message,
        "label": label,
        "messages": max(
            stage.algorithm.times_sent(stage.rounds).values(), default=0
        ),  # of one client, at most
        "not_covered": not_covered(stage),
    }


def _words(stage: Stage, one: dict[str, Any]) -> str:
    times = one["messages"]
    words = f"{one['mechanism']}, at most {times} message{'s' * (times != 1)} of a client"
    if one["epsilon_per_message"] is None or stage.privacy is None:
        return words
    return f"{words}, ε = {one['epsilon_per_message']:.4g} at δ = {stage.privacy.delta:g} ({one['label']})"


def _no_total(stages: Sequence[Stage]) -> str:
    names = sorted({name for stage in stages for name in not_covered(stage)})
    return f"no total ε: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not covered"
