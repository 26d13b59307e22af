"""The compiled step against the plain one: the same problems, the same rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from coterie import FedAvg, FedEM, Federation, FedProx, FedSPD, Participation, Stage, Training, run
from coterie.data.federation import Points
from coterie.engine import layers
from coterie.engine.compile import cuda_graph, known
from coterie.engine.compile import step as step_module
from coterie.engine.compile.cuda_graph import Recorded
from coterie.engine.compile.factored_gradients import leave_factors
from coterie.engine.compile.policy import Compile, Compiler
from coterie.engine.compile.step import CompiledStep
from coterie.engine.compile.too_large import TooLarge
from coterie.engine.layers import Prepared, StackedConv2d
from coterie.engine.model import LOSSES, FunctionalModel
from coterie.engine.probe import probe
from coterie.engine.problems import Problems
from coterie.engine.rows import Build
from coterie.engine.solver import chunk_size, solve
from coterie.models import build
from coterie.protocol.algorithm import Algorithm


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))


def with_norm_and_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5, 6)),
        nn.Conv2d(1, 4, 3, padding=1, bias=False),  # behind a norm a bias has no gradient but rounding errors
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(120, 3),
    )


SIZES = [7, 12, 1, 20, 5, 9, 13]  # ragged, one of a single point


def points(sizes: list[int] = SIZES) -> Points:
    g = torch.Generator().manual_seed(1)
    each = [
        (torch.randn(n, 30, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g))
        for n in sizes
    ]
    return Points.of(each)


def solved(
    build: Build,
    training: Training,
    compile: bool,
    slots: int = 3,
    sizes: list[int] = SIZES,
    **more: Tensor,
) -> list[Tensor]:
    """Rows, losses and what the optimizer kept, of one problem a client."""
    model = FunctionalModel(
        build, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"), chunk=slots
    )
    data = points(sizes)
    probe(model, data.x[:4], data.y[:4])
    n = len(data.sizes)
    start = torch.stack([model.initial(f"start {i}") for i in range(n)])
    problems = Problems(torch.arange(n), torch.zeros(n, dtype=torch.long), torch.arange(n) * 77, start)
    if "pull" in more:
        problems.anchor, problems.pull = start.flip(0), more["pull"]
    if "weight" in more:
        problems.weight = more["weight"][:, None]
    compiler = Compiler(model, compile, data.x, n, max(sizes))
    solution = solve(model, training, 0.1, data, problems, compiler)
    steps = [step for kind in compiler.steps.values() for step in kind.values()]
    assert bool(steps) == compile
    assert all(step.draws == (build is with_norm_and_dropout) for step in steps)  # else no keys are made
    return [solution.rows, solution.loss, *(solution.kept[name] for name in sorted(solution.kept))]


def check_equal(build: Build, training: Training, **more: Tensor) -> None:
    plain, compiled = solved(build, training, False, **more), solved(build, training, True, **more)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)


def test_plain_descent_with_ragged_clients() -> None:
    check_equal(dense, Training(batch_size=4, epochs=2))


class WithConstants(nn.Module):
    """Tensors that are neither parameters nor buffers, nor the same at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()
        self.scale = torch.linspace(0.5, 2, 30, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(x * self.scale)
        return out * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def test_a_model_with_constants() -> None:
    check_equal(WithConstants, Training(batch_size=4, epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 5, 128])
def test_several_steps_in_one_recording(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where they are recorded; here they are done again."""
    replayed: list[int] = []
    compile_step = CompiledStep._compile

    def do_again(
        work: Callable[[], None], device: torch.device, pool: Any
    ) -> tuple[Callable[[], None], None]:
        work()

        def again() -> None:
            replayed.append(1)
            work()

        return again, None

    monkeypatch.setattr("coterie.engine.compile.step.record", do_again)
    monkeypatch.setattr("coterie.engine.compile.step.BLOCK", block)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(CompiledStep, "_compile", lambda step: step._recorded(partial(compile_step(step), 1)))
    check_equal(dense, Training(batch_size=2, epochs=5))
    # in chunks of three, the longest first, problems take 50, 25 and 5 steps
    assert len(replayed) == {1: 80, 5: 32, 128: 11}[block]


@pytest.mark.slow
def test_clients_as_long_as_each_other_in_several_chunks() -> None:
    training, sizes = Training(learning_rate=0.1, batch_size=4, epochs=2), [9] * 7
    together = solved(dense, training, False, slots=7, sizes=sizes)
    for compile in (False, True):
        for a, b in zip(together, solved(dense, training, compile, sizes=sizes), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_more_steps_than_lie_in_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engine.compile.step.BLOCK", 3)
    check_equal(dense, Training(batch_size=4, epochs=2))


@pytest.mark.slow
def test_adam_with_norm_and_dropout() -> None:
    check_equal(with_norm_and_dropout, Training(optimizer="adam", batch_size=4, epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        Training(batch_size=4, epochs=None, steps=7),
        Training(batch_size=4, min_batch=3, epochs=2),
        Training(batch_size=None, epochs=3, momentum=0.9, nesterov=True, weight_decay=0.01),
        Training(optimizer="adamw", batch_size=4, epochs=2, weight_decay=0.1),
    ],
    ids=["steps", "no small batches", "momentum, all points", "adamw"],
)
@pytest.mark.parametrize("build", [dense, with_norm_and_dropout])
def test_every_optimizer(build: Build, training: Training) -> None:
    check_equal(build, training)


@pytest.mark.slow
def test_pull_and_weights() -> None:
    n = sum(SIZES)
    weight = torch.rand(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pull = torch.linspace(0, 1, len(SIZES), dtype=torch.float64)
    check_equal(dense, Training(batch_size=4, epochs=2), pull=pull, weight=weight)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [FedSPD(2, final_epochs=1), FedEM(2), FedProx(pull=0.3)], ids=["FedSPD", "FedEM", "FedProx"]
)
def test_whole_runs(algorithm: Algorithm) -> None:
    """Rounds in which other clients take part, points that change, several problems a client, a final phase."""
    data = Federation(tuple("abcdefg"), points(), n_outputs=3)
    training, some = Training(batch_size=4, epochs=2), Participation(fraction=0.6)

    def centers(compile: bool) -> Tensor:
        found = run(
            dense,
            data,
            [Stage(algorithm, 3, training, participation=some)],
            dtype=torch.float64,
            device="cpu",
            compile=compile,
        )
        return torch.cat([found._result.centers.flatten(), found._result.personal.rows.flatten()])

    torch.testing.assert_close(centers(True), centers(False), rtol=1e-8, atol=1e-10)


# what is decided before anything is compiled


def compiler(compile: Compile = "auto", chunk: int | None = None, clients: int = 100) -> Compiler:
    model = FunctionalModel(dense, LOSSES["classification"], device=torch.device("cpu"), chunk=chunk)
    return Compiler(model, compile, torch.zeros(1, 30), clients, longest=100)


def test_little_work_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def step(*_: object, slots: int, most_operations: int, **__: object) -> object:
        made.append(slots)
        assert 200 < most_operations <= 4000
        return SimpleNamespace(slots=slots, operations=200, recorded=False)

    monkeypatch.setattr("coterie.engine.compile.step.CompiledStep", step)
    training, y = Training(batch_size=10), torch.zeros(1, dtype=torch.long)
    one = compiler(chunk=100)
    assert one.step_for(training, one.store, y, [50] * 100, 1, False, rounds=10) is None
    assert one.step_for(training, one.store, y, [50] * 100, 1, False, rounds=100_000) is not None
    assert made == [100]
    assert one.step_for(training, one.store, y, [50] * 90, 1, False, rounds=90_000) is not None  # it is there
    assert made == [100]
    # a resumed run, which has no step yet, would not make one for this; nor does one that has a step take it
    assert one.step_for(training, one.store, y, [50] * 90, 1, False, rounds=1) is None
    assert compiler(compile=True).step_for(training, one.store, y, [50], 1, False, 1) is None  # of other data
    other = compiler(compile=True)
    assert other.step_for(training, other.store, y, [50], 1, False, 1) is not None
    off = compiler(compile=False)
    assert off.step_for(training, off.store, y, [50] * 100, 1, False, rounds=100_000) is None


Make = Callable[..., CompiledStep | None]


def on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, operations: int, more_rounds: int = 0
) -> tuple[Make, list[str]]:
    """What a policy on a GPU decides for so many rounds, and what it makes; nothing is computed there."""
    made: list[str] = []

    def step(*_: object, slots: int, most_operations: int, may_record: bool, **__: object) -> object:
        if operations > most_operations and not may_record:
            made.append("traced")
            raise TooLarge(operations)
        recorded = operations > most_operations
        made.append("recorded" if recorded else "compiled")
        return SimpleNamespace(slots=slots, operations=operations, recorded=recorded)

    monkeypatch.setattr("coterie.engine.compile.step.CompiledStep", step)
    one = compiler(chunk=100)
    one.model.device = torch.device("cuda")
    y = torch.zeros(1, dtype=torch.long)

    def decide(rounds: int | None, clients: int = 100) -> CompiledStep | None:
        return one.step_for(Training(batch_size=10), one.store, y, [50] * clients, 1, False, rounds)

    one.more_rounds = more_rounds
    return decide, made


def test_a_gpu_records_what_is_not_worth_compiling_and_compiles_it_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide, made = on_a_gpu(monkeypatch, operations=800)
    assert decide(rounds=1) is None  # 0.4 s of work
    assert decide(rounds=10) is decide(rounds=20)
    assert made == ["recorded"]
    assert decide(rounds=300) is not None  # 120 s, of which compiling may take half
    assert decide(rounds=10) is not None  # what is there is taken
    assert made == ["recorded", "compiled"]


def test_what_is_solved_once_is_not_compiled_for_the_rounds_of_other_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide, made = on_a_gpu(monkeypatch, operations=800, more_rounds=10_000)
    assert decide(rounds=None) is None
    assert made == []
    assert decide(rounds=1) is decide(rounds=None) is not None  # what is there is taken
    assert made == ["compiled"]


def test_memory_that_did_not_suffice_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step makes room for the compiled one; that has half as many slots, and so have all after it."""
    made: list[tuple[int, bool]] = []

    def step(*_: object, slots: int, most_operations: int, **__: object) -> object:
        recorded = most_operations < 800
        if not recorded and slots > 50:
            raise torch.cuda.OutOfMemoryError
        made.append((slots, recorded))
        return SimpleNamespace(slots=slots, operations=800, recorded=recorded)

    monkeypatch.setattr("coterie.engine.compile.step.CompiledStep", step)
    one = compiler(chunk=100)
    one.model.device = torch.device("cuda")
    y = torch.zeros(1, dtype=torch.long)

    def decide(rounds: int) -> CompiledStep | None:
        return one.step_for(Training(batch_size=10), one.store, y, [50] * 100, 1, False, rounds)

    decide(10)
    assert decide(300) is decide(300) is decide(400)
    assert made == [(100, True), (50, False)]


def test_a_step_that_is_too_large_is_traced_once_until_more_work_lies_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced: list[int] = []

    def step(*_: object, slots: int, most_operations: int, **__: object) -> object:
        traced.append(most_operations)
        if most_operations < 800:
            raise TooLarge(800)
        return SimpleNamespace(slots=slots, operations=800, recorded=False)

    monkeypatch.setattr("coterie.engine.compile.step.CompiledStep", step)
    one, y = compiler(chunk=100), torch.zeros(1, dtype=torch.long)
    second = 1 / one._plain_seconds(Training(batch_size=10), 10, [50] * 100)

    def decide(seconds: int) -> CompiledStep | None:
        return one.step_for(
            Training(batch_size=10), one.store, y, [50] * 100, 1, False, round(seconds * second)
        )

    assert [decide(100), decide(120)] == [None, None]  # worth 333 and 400 operations
    assert len(traced) == 1
    assert decide(400) is not None
    assert decide(120) is None  # on a CPU, as if nothing were there
    assert len(traced) == 2


def test_what_this_machine_compiled_is_known_by_all_that_inductor_goes_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def plus(number: float) -> fx.GraphModule:
        return make_fx(lambda x: x + number)(torch.zeros(3))

    def mark(graph: fx.GraphModule, x: Tensor) -> Path:
        return known.mark(graph, [x])

    first = mark(plus(1), torch.zeros(3))
    assert mark(plus(1), torch.ones(3)) == first
    others = [
        mark(plus(2), torch.zeros(3)),
        mark(plus(1), torch.zeros(4)),
        mark(plus(1), torch.zeros(3).double()),
    ]
    torch.use_deterministic_algorithms(True)
    others.append(mark(plus(1), torch.zeros(3)))
    torch.use_deterministic_algorithms(False)
    assert first not in others
    monkeypatch.setattr(known, "cache_dir", lambda: str(tmp_path / "cache"))
    known.put(mark(plus(1), torch.zeros(3)))
    assert mark(plus(1), torch.ones(3)).is_file()
    (tmp_path / "file").touch()
    monkeypatch.setattr(known, "cache_dir", lambda: str(tmp_path / "file"))  # cannot be a folder
    known.put(mark(plus(1), torch.zeros(3)))


def test_convolutions_are_weighed_by_what_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have few weights and many operations: uncompiled, 32 images take WeCFL's LeNet 8 ms on a busy core."""
    made = SimpleNamespace(slots=1, operations=1, recorded=False)
    monkeypatch.setattr(Compiler, "_made", lambda self, *_, **__: made)
    x, y = torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    model = FunctionalModel(
        build("lenet", (3, 32, 32), 10), LOSSES["classification"], device=torch.device("cpu")
    )
    probe(model, x, y, 10)
    assert model.convolution_flops == 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150)  # by output positions
    one = Compiler(model, "auto", x, 200, longest=300)
    training = Training(batch_size=32)
    seconds = one._plain_seconds(training, 32, [10] * 200)
    assert 5 < seconds < 20
    assert one.step_for(training, x, y, [10] * 200, 1, False, rounds=1) is None
    assert one.step_for(training, x, y, [10] * 200, 1, False, rounds=20) is not None


def test_dense_layers_are_weighed_by_what_they_move() -> None:
    """A step of an MLP with 128 images takes about 1.2 ms uncompiled on a core, far less than its FLOPs would say."""
    x = torch.randn(4, 784)
    model = FunctionalModel(
        build("mlp", (784,), 10, hidden=(200,)), LOSSES["classification"], device=torch.device("cpu")
    )
    probe(model, x, torch.zeros(4, dtype=torch.long), 10)
    assert model.convolution_flops == 0
    one = Compiler(model, "auto", x, 100, longest=300)
    assert 0.5 < one._plain_seconds(Training(batch_size=128), 128, [10] * 100) < 3


def test_on_a_device_without_figures_nothing_is_compiled() -> None:
    model = SimpleNamespace(device=torch.device("mps"), vectorised=True)
    one = Compiler(model, "auto", torch.zeros(1, 30), 100, longest=100)  # type: ignore[arg-type]
    assert (
        one.step_for(Training(batch_size=10), one.store, torch.zeros(1), [50], 1, False, rounds=9**9) is None
    )


def test_few_slots_where_a_client_is_long() -> None:
    one = compiler(chunk=100)
    one.model.device = torch.device("cuda")  # nothing is computed there
    kind = {"training": Training(batch_size=10), "batch": 10, "most": 100, "known": {}, "pulled": False}
    assert one._slots(steps=[10] * 100, **kind) == 100
    assert one._slots(steps=[100_000] + [10] * 99, **kind) < 10
    one.model.device = torch.device("cpu")
    assert [one._slots(steps=[9] * n, **kind) for n in (100, 75, 5)] == [100, 80, 5]


def test_without_a_compiler_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    one = compiler(compile=True)
    for _ in range(2):
        assert one.step_for(Training(), one.store, torch.zeros(1), [5], 1, False, 1) is None
    (said,) = caplog.records
    assert said.getMessage().endswith("there is no C++ compiler (g++ or clang++) on this machine")


def test_what_the_compiler_refuses_runs_uncompiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a long story")

    monkeypatch.setattr("coterie.engine.compile.step.make_fx", refuse)
    data = Federation(tuple("abcdefg"), points(), n_outputs=3)
    found = run(dense, data, FedAvg(), rounds=1, dtype=torch.float64, device="cpu", compile=True)
    assert found._result.centers.isfinite().all()
    assert "steps are not compiled: no such operator" in caplog.text
    assert "long story" not in caplog.text


def test_a_step_of_very_many_operations_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coterie.engine.compile.policy.OPERATIONS", 10)
    data = Federation(tuple("abcdefg"), points(), n_outputs=3)
    run(dense, data, FedAvg(), rounds=1, dtype=torch.float64, device="cpu", compile=True)
    assert "operations, too many to compile for the work ahead" in caplog.text


def test_too_little_memory_for_all_slots_takes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be finished is let go of before the next is tried."""
    tried: list[weakref.ref[object]] = []

    class Step:
        def __init__(self, *_: object, slots: int, **__: object):
            assert not any(one() for one in tried)
            tried.append(weakref.ref(self))
            self.slots, self.operations, self.recorded = slots, 1, False
            if slots > 30:
                raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr("coterie.engine.compile.step.CompiledStep", Step)
    one = compiler(compile=True, chunk=100)
    step = one.step_for(Training(batch_size=10), one.store, torch.zeros(1), [50] * 100, 1, False, 1)
    assert step is not None
    assert step.slots == 25


# what is known of points


@pytest.mark.parametrize("sizes", [[9] * 4, SIZES], ids=["alike", "ragged"])
@pytest.mark.parametrize(
    "training", [Training(batch_size=4, epochs=2), Training(batch_size=4, epochs=None, steps=5)]
)
@pytest.mark.parametrize("compile", [False, True])
def test_points_that_are_known_from_before_are_solved_as_new_ones(
    sizes: list[int], training: Training, compile: bool
) -> None:
    model = FunctionalModel(dense, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"))
    data, n = points(sizes), len(sizes)
    probe(model, data.x[:4], data.y[:4])
    compiler = Compiler(model, compile, data.x, n, max(sizes))
    start = model.initial("start").expand(n, -1)
    weight = (torch.arange(len(data.at)) % 3 + 1.0).double()[:, None]
    for seed, per_client, weights in (
        (7, 1, None),
        (8, 1, None),
        (8, 1, weight),
        (7, 1, None),
        (7, 2, None),
        (9, 2, None),
    ):
        problems = Problems(
            owner=torch.arange(n).repeat_interleave(per_client),
            column=torch.arange(per_client).repeat(n),
            key=torch.arange(n * per_client) * 77 + seed,
            start=start.repeat_interleave(per_client, 0),
            weight=weights,
            per_client=per_client,
            of_all=True,
        )
        known = solve(model, training, 0.1, data, problems, compiler)
        as_new = solve(model, training, 0.1, replace(data), problems, compiler)
        assert torch.equal(known.rows, as_new.rows)
        assert torch.equal(known.loss, as_new.loss)
    assert not replace(data)._known
    assert "plan" in data._known
    assert ("drawing" in data._known) == compile


def test_other_training_of_the_same_points_is_planned_anew() -> None:
    model = FunctionalModel(dense, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"))
    data, n = points([9] * 4), 4
    start = model.initial("start").expand(n, -1)
    problems = Problems(
        torch.arange(n), torch.zeros(n, dtype=torch.long), torch.arange(n), start, of_all=True
    )
    for epochs in (1, 3):
        steps = solve(model, Training(batch_size=3, epochs=epochs), 0.1, data, problems).kept["step"]
        assert steps.tolist() == [3 * epochs] * n


def test_other_problems_of_the_same_points_are_not_taken_for_those_before() -> None:
    model = FunctionalModel(dense, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"))
    data, start = points([3, 6, 9]), model.initial("start").expand(3, -1)
    column, key = torch.zeros(3, dtype=torch.long), torch.arange(3)
    for owner, of_all, steps in (([0, 1, 2], True, [1, 2, 3]), ([2, 1, 0], False, [3, 2, 1])):
        problems = Problems(torch.tensor(owner), column, key, start, of_all=of_all)
        assert solve(model, Training(batch_size=3), 0.1, data, problems).kept["step"].tolist() == steps


def test_no_problems_have_no_solutions() -> None:
    model = FunctionalModel(dense, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"))
    none = torch.zeros(0, dtype=torch.long)
    problems = Problems(none, none, none, model.initial("start").expand(0, -1))
    assert solve(model, Training(batch_size=3), 0.1, points(), problems).rows.shape == (
        0,
        model.rows.width,
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_recorded_work_is_done_anew_each_time() -> None:
    doubled = Recorded(lambda given: given * 2)
    for number in (1.0, 5.0, 7.0):
        assert doubled(torch.full((3,), number, device="cuda")).tolist() == [2 * number] * 3


def test_work_is_recorded_when_it_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first time it is not: who takes part in one round only is never recorded."""
    recordings: list[torch.device] = []

    def record(
        work: Callable[[], list[Tensor]], device: torch.device
    ) -> tuple[Callable[[], None], list[Tensor]]:
        recordings.append(device)
        made = work()
        return lambda: made.__setitem__(slice(None), work()), made

    monkeypatch.setattr(cuda_graph, "can_record", lambda device: True)
    monkeypatch.setattr(cuda_graph, "record", record)
    doubled = Recorded(lambda given: [given * 2])
    for number in (1.0, 5.0, 7.0):
        assert doubled(torch.full((3,), number))[0].tolist() == [2 * number] * 3
        assert len(recordings) == (number > 1)


# convolutions as products


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, (2, 3), (2, 1), (0, 2), (1, 2), bias=False)]
)
def test_stacked_convolution_is_a_convolution(layer: nn.Conv2d, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    windows = layers._Windows.apply
    monkeypatch.setattr(layers._Windows, "apply", lambda *given: (calls.append(given), windows(*given))[1])
    x = torch.randn(4, 2, 9, 8)
    prepared = Prepared(nn.Sequential(layer), on_gpu=True)
    stacked = prepared.module.train()
    assert isinstance(stacked[0], StackedConv2d)
    assert torch.equal(stacked(x), layer(x))
    with prepared.stacking():
        assert not calls
        torch.testing.assert_close(stacked(x), layer(x), rtol=1e-4, atol=1e-5)
        assert len(calls) == 1
        assert torch.equal(stacked.eval()(x), layer(x))
    assert torch.equal(stacked.train()(x), layer(x))
    assert len(calls) == 1


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, (2, 3), (2, 1), (0, 2), (1, 2), bias=False)]
)
def test_stacked_convolution_has_the_gradients_of_a_convolution(layer: nn.Conv2d) -> None:
    found, stacked = [], StackedConv2d(layer).train()
    stacked.stacks = True
    for kind in (layer, stacked):
        x = torch.randn(4, 2, 9, 8, generator=torch.Generator().manual_seed(3)).requires_grad_()
        out = kind(x)
        by = torch.linspace(-1, 1, out.numel()).view(out.shape)
        found.append(torch.autograd.grad((out * by).sum(), [x, layer.weight]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_convolutions_stack_counts_in_training() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(60, 2, bias=False)
    )
    model = FunctionalModel(lambda: module, LOSSES["classification"], device=torch.device("cpu"))
    model.prepared = Prepared(model.rows.template, True)
    model.module = model.prepared.module
    probe(model, torch.randn(4, 2, 4, 5), torch.tensor([0, 1, 1, 0]))
    assert model.activations == 40 + 60 + 60 + 2  # a point, and what each layer puts out
    assert model.training_activations - model.activations == 20 * 2 * 9  # each pixel's windows


def test_a_step_is_recorded_without_stacks_and_begins_at_the_first_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the buffers hold one batch at a time every trace, and every step, must begin at it."""
    monkeypatch.setattr(step_module, "BLOCK", 1)
    stacked: list[bool] = []
    graph = CompiledStep._graph

    def traced(self: CompiledStep) -> Any:
        stacked.append(self.model.module[1].stacks)  # type: ignore[index, union-attr]
        return graph(self)

    monkeypatch.setattr(CompiledStep, "_graph", traced)
    kind = LOSSES["classification"]
    model = FunctionalModel(with_norm_and_dropout, kind, dtype=torch.float64, device=torch.device("cpu"))
    model.prepared = Prepared(model.rows.template, on_gpu=True)
    model.module = model.prepared.module
    data = points([4, 4])
    step = CompiledStep(
        model,
        Training(batch_size=4),
        data.x,
        data.y,
        slots=2,
        batch=4,
        pulled=False,
        most_operations=0,
        may_record=True,
    )
    assert step.recorded
    assert stacked == [True, False]


def test_memory_of_plain_steps_has_no_stacks() -> None:
    """They are written in compiled steps alone."""
    model = FunctionalModel(dense, LOSSES["classification"], device=torch.device("cpu"))
    before = chunk_size(model, Training(), 10)
    model.training_activations *= 1000
    assert chunk_size(model, Training(), 10) == before
    model.activations *= 1000
    assert chunk_size(model, Training(), 10) < before


def test_a_convolution_that_makes_its_weights_is_left_alone() -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(1, 2, 3)), nn.Conv2d(2, 2, 3))
    kinds = [type(layer) for layer in Prepared(model, True).module]
    assert kinds == [nn.Conv2d, StackedConv2d]


def test_of_long_kernels_nothing_is_stacked_and_of_single_pixels_always() -> None:
    both = nn.Conv2d(128, 2, 5), nn.Conv2d(1025, 2, 1)
    long, single = (Prepared(nn.Sequential(layer), True).module[0] for layer in both)
    assert type(long) is nn.Conv2d
    assert isinstance(single, StackedConv2d)
    assert single.stacks


def test_a_model_with_stacked_convolutions_takes_the_same_step() -> None:
    def step(stacked: bool) -> Tensor:
        model = FunctionalModel(
            with_norm_and_dropout, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu")
        )
        model.prepared = Prepared(model.rows.template, stacked)
        model.module = model.prepared.module
        assert isinstance(model.module[1], StackedConv2d) == stacked
        x, y, ones = (
            points([4, 4]).x.view(2, 4, 30),
            torch.tensor([[0, 1, 2, 0]] * 2),
            torch.ones(2, 4).double(),
        )
        rows = torch.stack([model.initial("a"), model.initial("b")])
        with model.prepared.stacking():
            return model.gradients(rows, x, y, ones, ones, torch.tensor([5, 6]))[0]

    torch.testing.assert_close(step(True), step(False), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_moved_and_mirrored_pictures() -> None:
    """What `augment` draws hangs on the key of a step, as dropout does."""
    g = torch.Generator().manual_seed(2)
    x, y = torch.randint(0, 256, (60, 1, 8, 8), generator=g, dtype=torch.uint8), torch.arange(60) % 3
    data = Points(x, torch.arange(60), y, torch.arange(7) * 10)
    found = []
    for compile in (False, True):
        model = FunctionalModel(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
            LOSSES["classification"],
            dtype=torch.float64,
            device=torch.device("cpu"),
            augment=True,
        )
        start = model.initial("start").expand(6, -1)
        problems = Problems(torch.arange(6), torch.zeros(6, dtype=torch.long), torch.arange(6) * 77, start)
        compiler = Compiler(model, compile, data.x, 6, 10)
        found.append(solve(model, Training(batch_size=4, epochs=2), 0.1, data, problems, compiler).rows)
        assert all(step.draws for kind in compiler.steps.values() for step in kind.values())
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)


# gradients left as factors


def test_wide_layers_are_left_as_factors() -> None:
    left, right = torch.randn(2, 30, 3), torch.randn(2, 3, 50)

    def gradients(a: Tensor, b: Tensor) -> list[Tensor]:
        product = torch.bmm(a, b)
        return [
            product.transpose(1, 2).transpose(1, 2),
            torch.bmm(b.mT, a.mT).mT,
            a[:, :4] @ b[:, :, :4],
            a.sum(1),
        ]

    traced = make_fx(gradients)(left, right)
    assert leave_factors(traced, {"wide": 0, "turned": 1, "small": 2, "none": 3}) == ["wide"]
    *rest, a, b = fx.Interpreter(traced).run(left, right, enable_io_processing=False)
    assert rest[0] is None
    assert torch.equal(a, left)
    assert torch.equal(b, right)
    assert torch.equal(rest[3], left.sum(1))
