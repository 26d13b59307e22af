"""Data: sources, distributions, partitions, and the user's own."""

from coterie.data.deal import Deal, deal
from coterie.data.named import digits, named
from coterie.data.own import from_arrays, from_folder, from_table
from coterie.data.source import Source
from coterie.data.synthetic import gaussians, regressions

__all__ = [
    "Deal",
    "Source",
    "deal",
    "digits",
    "from_arrays",
    "from_folder",
    "from_table",
    "gaussians",
    "named",
    "regressions",
]
