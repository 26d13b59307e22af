"""How large the numbers of a client's data are, so that data that is out of scale is not taken for a wrong setting."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.protocol.cohort import Cohort
from coterie.protocol.judgement import guess
from coterie.protocol.message import Fields


def measure(cohort: Cohort) -> Fields:
    """My largest input and target, and the loss of a guess that does not look at inputs, on my training points."""
    points, dtype = cohort.points, cohort.model.dtype
    one = cohort.model.outputs(cohort.model.initial("client"), points.inputs(slice(0, 1)))
    like = one.new_zeros(len(points.y), *one.shape[1:])
    loss = cohort.model.loss(guess(cohort, points.owner, like), points.y)
    return {
        "input": _largest(cohort, _sizes(points.x, dtype)[points.at]),
        "target": _largest(cohort, _sizes(points.y, dtype)),
        "guess": cohort.means(loss),
    }


def _sizes(values: Tensor, dtype: torch.dtype) -> Tensor:
    """(point,) the largest absolute number of each."""
    flat = values.reshape(len(values), -1)
    return torch.maximum(flat.amax(1).to(dtype).abs(), flat.amin(1).to(dtype).abs())


def _largest(cohort: Cohort, sizes: Tensor) -> Tensor:
    found = sizes.new_zeros(len(cohort))
    return found.scatter_reduce(0, cohort.points.owner, sizes, "amax")
