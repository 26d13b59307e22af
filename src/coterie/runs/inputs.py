"""What the inputs of a run's clients were, so that others are read as those were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.data.images import Normalise, Pixels
from coterie.errors import CoterieError


@dataclass(frozen=True)
class Inputs:
    """Images kept as uint8, or whole numbers, or floats."""

    pixels: bool
    normalise: Normalise | None  # of pixels
    integers: bool
    single: bool = False  # one number per point, which may be given without an axis of its own

    @staticmethod
    def of(summary: Mapping[str, Any]) -> Inputs:
        """Of a run, by its summary; of old runs only those that predict characters had integers."""
        integers = summary.get("integers", summary["task"] == "next-character")
        single = summary.get("inputs") == [1]
        return Inputs(bool(summary.get("pixels")), summary.get("normalise"), bool(integers), single)

    def __str__(self) -> str:
        if self.pixels:
            return "uint8 images" + (f", normalised by {self.normalise}" if self.normalise else "")
        return "integers" if self.integers else "floats"

    def like_theirs(self, x: Tensor, where: str) -> Tensor:
        """Other inputs as the run's were before it read them; floats for pixels are normalised already."""
        if self.pixels:
            return self._as_pixels(x, where)
        if not self.integers:
            return x if x.is_floating_point() else x.float()
        if x.is_floating_point() and not torch.equal(x, x.round()):
            raise CoterieError(
                f"{where} has other inputs than whole numbers, which those of the run's clients are"
            )
        return x.long()

    def read(self, x: Any, like: Tensor) -> Tensor:
        """Inputs as training read them, for a model whose numbers are of this kind."""
        x = _tensor(x).to(like.device)
        x = x[:, None] if self.single and x.dim() == 1 else x
        x = self.like_theirs(x.to(like.dtype) if x.is_floating_point() else x, "x")
        return Pixels(self.normalise, like.device, like.dtype).read(x)

    def _as_pixels(self, x: Tensor, where: str) -> Tensor:
        x = x.float() if x.dtype == torch.bool else x
        fraction = x.is_floating_point()
        if x.numel() and not (x.min() >= 0 and x.max() <= (1 if fraction else 255)):
            found = f"{'floats' if fraction else 'whole numbers'} from {x.min():.4g} to {x.max():.4g}"
            raise CoterieError(
                f"{where} has other inputs than the run's images, which were uint8: {found}; allowed are whole numbers "
                "from 0 to 255, or floats from 0 to 1, which are those divided by 255"
            )
        if fraction:
            return Pixels(self.normalise, x.device, x.dtype).normalised(x)
        return x.to(torch.uint8)


def _tensor(x: Any) -> Tensor:
    """Of a tensor, an array, a table or lists of numbers."""
    try:
        return torch.as_tensor(x.to_numpy(copy=True) if hasattr(x, "to_numpy") else x)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise CoterieError(
            f"x is a {type(x).__name__} that holds other things than numbers; allowed is a tensor, an array, or a "
            "table of numbers alone, with one row for each point"
        ) from problem
