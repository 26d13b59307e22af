"""Data: sources, distributions, partitions, and the user's own."""

from coterie.data.digits import digits
from coterie.data.own import from_arrays, from_folder, from_table
from coterie.data.synthetic import gaussians, regressions

__all__ = ["digits", "from_arrays", "from_folder", "from_table", "gaussians", "regressions"]
