"""The same run on the CPU and on a GPU, in float64: `python benchmarks/gpu.py --out FILE`. Needs a CUDA device."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import ALGORITHMS, Federation, Graph, Server, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, from_arrays, regressions
from coterie.protocol.result import Result


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def cnn() -> nn.Module:
    """Convolution, batch norm and dropout: everything that has to know its client."""
    layers = [nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 9, 10))


def letters() -> nn.Module:
    class CharLSTM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.memory = nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True)
            self.out = nn.Linear(16, 20)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.memory(self.embed(x))[0])
            return out

    return CharLSTM()


def text(seed: int) -> Federation:
    g = torch.Generator().manual_seed(seed)
    speech = [
        torch.randint(0, 20, (int(n), 13), generator=g) for n in torch.randint(5, 30, (12,), generator=g)
    ]
    return from_arrays([(t[:, :-1], t[:, 1:]) for t in speech], task="next-character")


def play(device: str, build: Any, data: Federation, stages: Stages) -> tuple[Result, float, bool]:
    simulation = simulate(build, data, stages, dtype=torch.float64, device=torch.device(device))
    began = time.perf_counter()
    while not simulation.done:
        simulation.step()
    result = simulation.finish()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - began, simulation.model.vectorised


def difference(a: Result, b: Result) -> float:
    pairs = [(a.centers, b.centers), (a.importance, b.importance), (a.personal.rows, b.personal.rows)]
    return max(float((x.cpu() - y.cpu()).abs().max()) for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    problems = {
        "regressions, linear": (linear, regressions(clients=40, separation=166.0, seed=0)),
        "digits, CNN with batch norm and dropout": (
            cnn,
            digits(clients=20, image=True, train_points=30, seed=0),
        ),
        "text, char-LSTM": (letters, text(0)),
    }
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"provenance": provenance(), "gpu": torch.cuda.get_device_name(), "runs": []}
    training = Training(learning_rate=0.02, batch_size=10, epochs=1, momentum=0.5)
    for problem, (build, data) in problems.items():
        algorithms: dict[str, Any] = dict(ALGORITHMS)
        for name, kind in algorithms.items():
            soft = "n_clusters" in {f.name for f in fields(kind)}
            for place, topology in (("server", Server()), ("graph", Graph("erdos-renyi", degree=4))):
                if kind.needs_server and place == "graph":
                    continue
                stages = Stages((Stage(kind(n_clusters=2) if soft else kind(), 3, training, topology),))
                (cpu, _, _), (gpu, seconds, together) = (
                    play(d, build, data, stages) for d in ("cpu", "cuda")
                )
                run = {"problem": problem, "algorithm": name, "place": place, "together": together}
                run |= {"largest_difference": difference(cpu, gpu), "gpu_seconds": round(seconds, 2)}
                report["runs"].append(run)
                print(run, flush=True)
    worst = max(run["largest_difference"] for run in report["runs"])
    print(f"{'ok ' if worst < 1e-8 else 'NOT'} largest difference {worst:.1e}, to be under 1e-8")
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
