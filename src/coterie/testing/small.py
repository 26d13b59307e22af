"""Small runs in float64 on the CPU: data, models, clients together and apart, and how two results are compared."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coterie.backends.loopback import loopback
from coterie.backends.simulation import simulate
from coterie.data.federation import Federation, Points
from coterie.data.synthetic import regressions
from coterie.engine.model import FunctionalModel, squared_error
from coterie.engine.rows import Build
from coterie.engine.training import Training
from coterie.prng import id_keys
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.result import Result
from coterie.protocol.stages import Stages
from coterie.protocol.traffic import Traffic

F64, CPU = torch.float64, torch.device("cpu")
TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=2)
MOMENTUM = Training(learning_rate=0.02, batch_size=10, epochs=1, momentum=0.5, keep_optimizer=True)


# regressions of ten inputs: clients, model, runs


def clients(mixture: str = "10:90", *, n: int = 12, sizes: tuple[int, int] = (15, 40)) -> Federation:
    return regressions(n, 2, mixture, sizes=sizes, separation=166.0, test_points=5, seed=7)


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def simulation(
    plan: Stages,
    data: Federation | None = None,
    *,
    model: Build = linear,
    seed: int = 3,
    chunk: int | None = None,
) -> Coordinator:
    data = clients() if data is None else data
    return simulate(model, data, plan, seed=seed, dtype=F64, chunk=chunk, device=CPU)


def finish(run: Coordinator) -> Coordinator:
    while not run.done:
        run.step()
    return run


def play(
    plan: Stages, data: Federation, chunk: int | None = None, seed: int = 3
) -> tuple[Coordinator, Result]:
    run = finish(simulation(plan, data, seed=seed, chunk=chunk))
    return run, run.finish()


def apart(build: Build, data: Federation, plan: Stages, seed: int = 0) -> tuple[Result, Traffic]:
    """The same over clients that are computed one by one, everything between them as bytes."""
    with nothing_left_out():
        run = finish(loopback(build, data, plan, seed=seed))
        return run.finish(), run.traffic


@contextmanager
def nothing_left_out() -> Iterator[None]:
    """Whoever receives a message checks it, and leaves out a bad one with a warning. Here that is a failure."""
    log, handler = logging.getLogger("coterie"), _LeftOut()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _LeftOut(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        assert "left out" not in said, said


# results


def parts(result: Result) -> list[Tensor]:
    return [result.centers, result.importance, result.personal.rows, result.personal.weights]


def same_bits(a: Result, b: Result) -> bool:
    return all(torch.equal(x, y) for x, y in zip(parts(a), parts(b), strict=True))


def close(a: Result, b: Result) -> None:
    for x, y in zip(parts(a), parts(b), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-8)


# numbers by hand


def one_number_cohort(*clients: tuple[list[float], list[float]], training: Training = TRAINING) -> Cohort:
    """Clients with points (x, y), each a list of numbers, for the model y = w·x and the squared error."""
    model = FunctionalModel(lambda: nn.Linear(1, 1, bias=False), squared_error, device=CPU, dtype=F64)
    points = [(torch.tensor(x, dtype=F64)[:, None], torch.tensor(y, dtype=F64)) for x, y in clients]
    keys = id_keys(map(str, range(len(clients))))
    return Cohort.whole(model, training, Points.of(points), keys, "regression", 0)
