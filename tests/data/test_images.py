"""Images kept as uint8: one copy, made into numbers where they are used, the same in every chunk and place."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import ALGORITHMS, Federation, Points, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.data.images import MARGIN, Pixels
from coterie.errors import CoterieError
from coterie.prng import mix
from coterie.protocol.result import Result
from tests.builders import CPU, F64, apart, finish

NORMALISE = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def pixels(augment: bool = False, normalise=NORMALISE) -> Pixels:
    return Pixels(normalise, CPU, F64, augment)


def images(n: int, seed: int = 0, side: int = 8) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=g)


def federation(**settings) -> Federation:
    """Five clients of 3 to 9 images, which refer to one store."""
    sizes = [3, 9, 5, 7, 4]
    g = torch.Generator().manual_seed(1)
    at = torch.randint(0, 12, (sum(sizes),), generator=g)
    offset = torch.tensor([0, *np.cumsum(sizes)])
    y = torch.randint(0, 4, (sum(sizes),), generator=g)
    points = Points(images(12), at, y, offset)
    return Federation(tuple("abcde"), points, points, n_outputs=4, **settings)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))


def play(data: Federation, chunk: int | None = None, algorithm: str = "FedAvg", dtype=F64) -> Result:
    plan = Stages((Stage(ALGORITHMS[algorithm](), 2, Training(learning_rate=0.05, batch_size=4, epochs=2)),))
    return finish(simulate(net, data, plan, dtype=dtype, chunk=chunk, device=CPU)).finish()


def test_pixels_by_hand():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    expected = torch.tensor([(0 - 0.5) / 0.2, (0.2 - 0.4) / 0.3, (1 - 0.3) / 0.4], dtype=F64)
    torch.testing.assert_close(pixels().read(x).flatten(), expected)
    assert pixels(normalise=None).read(x).flatten().tolist() == [0, 0.2, 1]


def test_other_inputs_are_as_they_were():
    numbers, tokens = torch.randn(2, 3), torch.tensor([[1, 2]])
    assert torch.equal(pixels().read(numbers), numbers.to(F64))
    assert pixels().read(tokens) is tokens


def test_pixels_train_as_the_same_numbers_do():
    data = federation(normalise=NORMALISE)
    points = replace(data.train, x=pixels().read(data.train.x))
    numbers = replace(data, train=points, test=points, normalise=None)
    assert torch.equal(play(data).centers, play(numbers).centers)


def test_the_store_stays_one_copy_of_uint8():
    data = federation(normalise=NORMALISE)
    plan = Stages((Stage(ALGORITHMS["FedAvg"](), 1, Training()),))
    simulation = simulate(net, data, plan, device=CPU)
    assert simulation.clients.cohort.points.x.data_ptr() == data.train.x.data_ptr()
    assert simulation.clients.cohort.points.x.dtype == torch.uint8


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("algorithm", ["FedAvg", "Local"])
def test_the_same_in_every_chunk_order_and_place(augment: bool, algorithm: str):
    data = federation(normalise=NORMALISE, augment=augment)
    whole = play(data, algorithm=algorithm)
    order = [3, 0, 4, 2, 1]
    plan = Stages((Stage(ALGORITHMS[algorithm](), 2, Training(learning_rate=0.05, batch_size=4, epochs=2)),))
    alone = apart(net, data, plan)[0]
    for other in (play(data, chunk=1, algorithm=algorithm), play(data, chunk=2, algorithm=algorithm), alone):
        torch.testing.assert_close(other.personal.rows, whole.personal.rows, rtol=0, atol=1e-12)
    permuted = play(data.permuted(order), algorithm=algorithm).personal.rows
    torch.testing.assert_close(permuted, whole.personal.rows[order], rtol=0, atol=1e-12)


def test_augmentation_changes_training():
    data = federation()
    assert not torch.allclose(play(replace(data, augment=True)).centers, play(data).centers)


def test_a_varied_image_is_a_crop_of_the_padded_one_or_its_mirror():
    x = images(200, side=16)  # large enough that no two places are the same
    varied = pixels(augment=True).vary(x[None], torch.tensor([5]))[0]
    padded = nn.functional.pad(x.to(F64), (MARGIN,) * 4, mode="reflect").to(torch.uint8)
    seen = set()
    for image, around in zip(varied, padded, strict=True):
        places = [
            (i, j, flip)
            for i in range(2 * MARGIN + 1)
            for j in range(2 * MARGIN + 1)
            for flip in (False, True)
            if torch.equal(image.flip(-1) if flip else image, around[:, i : i + 16, j : j + 16])
        ]
        assert places
        seen.update(places[:1])
    assert len({(j, flip) for _, j, flip in seen}) == 18  # each move across, mirrored or not
    assert {i for i, _, _ in seen} == {j for _, j, _ in seen} == set(range(9))


def test_what_an_image_becomes_hangs_on_its_client_and_step_alone():
    x, vary = images(6).view(2, 3, 3, 8, 8), pixels(augment=True).vary
    keys = torch.stack([mix(1, "a"), mix(1, "b")])
    together = vary(x, keys)
    assert torch.equal(vary(x[1:], keys[1:]), together[1:])
    assert torch.equal(vary(x[:, :2], keys), together[:, :2])
    same = torch.stack([x[0], x[0]])
    assert not torch.equal(vary(same, keys)[0], vary(same, keys)[1])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"normalise": ((0.5, 0.5), (0.5, 0.5))}, "a mean and a deviation above 0 for each of 3 channels"),
        ({"normalise": ((0.5,), (0.0,))}, "a mean and a deviation above 0"),
    ],
)
def test_bad_normalisation(settings, sentence):
    with pytest.raises(CoterieError, match=sentence):
        federation(**settings)


@pytest.mark.parametrize("setting", [{"normalise": NORMALISE}, {"augment": True}])
def test_numbers_are_not_pixels(setting):
    data = federation()
    points = replace(data.train, x=data.train.x.float())
    with pytest.raises(
        CoterieError, match=f"{next(iter(setting))} is for .* kept as uint8, and there are .* float32"
    ):
        replace(data, train=points, test=points, **setting)


def test_tiny_images_cannot_be_moved():
    points = Points(
        images(4, side=4), torch.arange(4), torch.zeros(4, dtype=torch.long), torch.tensor([0, 4])
    )
    with pytest.raises(CoterieError, match="more than 4 pixels a side"):
        Federation(("a",), points, n_outputs=4, augment=True)


def test_other_normalisation_is_other_data():
    prints = [federation(**s).fingerprint() for s in ({}, {"normalise": NORMALISE}, {"augment": True})]
    assert len(set(prints)) == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[coterie.Run, Path]:
    data, out = federation(normalise=NORMALISE), tmp_path_factory.mktemp("runs") / "run"
    return coterie.run(net, data, ALGORITHMS["IFCA"](n_clusters=2), rounds=2, out=out), out


def read_by_hand(x: Tensor) -> Tensor:
    return Pixels(NORMALISE, CPU, torch.float32).read(x)


def test_a_finished_run_reads_pixels_as_it_did(finished) -> None:
    run, folder = finished
    x = images(6)
    again = coterie.load(folder, net)
    for one in (run, again):
        for model in (*one.centers, one.personal["a"]):
            assert isinstance(model, nn.Module)
            assert not model.training
            expected = model.module(read_by_hand(x))
            for same in (
                x,
                x.numpy(),
                x.long(),
                x / 255,
                (x / 255).numpy(),
            ):  # as uint8, or as a data loader has it
                assert torch.equal(model(same), expected)
                assert torch.equal(model.predict(same), expected.argmax(1))
    assert torch.equal(again.centers[1](x), run.centers[1](x))
    assert torch.equal(again.personal["a"](x), run.personal["a"](x))


def test_a_center_is_what_evaluation_scored(finished) -> None:
    """The client's own model is one of the centers, and its predictions on the held-out points have its accuracy."""
    run, _ = finished
    data = federation(normalise=NORMALISE)
    own = run.importance.to_numpy().argmax(1)
    right = []
    for i, name in enumerate(data.ids):
        here = slice(int(data.test.offset[i]), int(data.test.offset[i + 1]))
        x, y = data.test.x[data.test.at[here]], data.test.y[here]
        assert torch.equal(run.centers[own[i]](x), run.personal[name](x))
        right.append((run.centers[own[i]].predict(x) == y).float().mean())
    assert float(torch.stack(right).mean()) == pytest.approx(run.summary["personal"]["accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (lambda x: x.float(), "floats from 0 to 255"),
        (lambda x: x / 255 - 0.5, "floats from -0.5 to 0.5"),
        (lambda x: x.long() + 1, "whole numbers from 1 to 256"),
        (lambda x: x * torch.nan, "floats from nan to nan"),
    ],
)
def test_images_that_cannot_be_meant_as_pixels(finished, bad, found: str) -> None:
    run, _ = finished
    x, y = bad(images(200)), torch.arange(200) % 4
    for model in (run.centers[0], run.personal["a"]):
        with pytest.raises(
            CoterieError, match=f"^x has other inputs .* uint8: {found}; allowed are .* by 255$"
        ):
            model(x)
    if not x.isnan().any():
        with pytest.raises(CoterieError, match=f"^client 'newcomer' has other inputs .*: {found};"):
            run.onboard(x, y)


def test_a_new_client_may_have_pixels_or_what_a_data_loader_makes_of_them(finished) -> None:
    run, _ = finished
    x, y = images(6), torch.arange(6) % 4
    new = run.onboard(x.numpy(), y.numpy(), id="new")
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(center(x), y).item() for center in run.centers]
    assert new.losses == pytest.approx(losses, rel=1e-5)
    assert torch.equal(new.model(x), run.centers[np.argmin(losses)](x))
    assert run.onboard(x / 255, y, id="new").losses == pytest.approx(new.losses, rel=1e-5)


def test_the_models_of_a_run_are_modules_like_others(finished) -> None:
    run, _ = finished
    x = images(3)
    for model in (run.centers[0], run.personal["a"]):
        exported = net()
        exported.load_state_dict(model.module.state_dict())
        assert torch.equal(exported(read_by_hand(x)), model(x))
        other = run.centers[1]
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(x), model(x))
        assert not model(x).requires_grad
        model.requires_grad_()(x).sum().backward()  # to train it further
        assert all(p.grad is not None for p in model.parameters())
        wide = copy.deepcopy(model).double()
        torch.testing.assert_close(wide(x), model(x).double())
        assert "takes uint8 images, normalised by [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]" in repr(model)


def test_a_mixture_is_a_module_too() -> None:
    data = federation(normalise=NORMALISE)
    run = coterie.run(net, data, ALGORITHMS["FedEM"](n_clusters=2), rounds=2)
    x, model = images(5), run.personal["b"]
    parts = [part(read_by_hand(x)).softmax(1) for part in model.module.parts]
    weights = run.importance.loc["b"].to_numpy()
    expected = sum(w * p for w, p in zip(weights.tolist(), parts, strict=True))
    torch.testing.assert_close(model(x).exp(), expected)
    assert torch.equal(model.module(read_by_hand(x)), model(x))
    assert len(model.state_dicts()) == 2
    again = run.personal["a"]
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), model(x))
