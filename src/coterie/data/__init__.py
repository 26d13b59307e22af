"""Data: sources, distributions, partitions, and the user's own."""

from coterie.data.named import digits, named
from coterie.data.own.load import from_arrays, from_folder, from_table
from coterie.data.partition.settings import Deal, deal
from coterie.data.sources.catalogue import data_folder, load
from coterie.data.sources.hugging_face import from_datasets
from coterie.data.sources.source import Source
from coterie.data.synthetic import gaussians, regressions

__all__ = [
    "Deal",
    "Source",
    "data_folder",
    "deal",
    "digits",
    "from_arrays",
    "from_datasets",
    "from_folder",
    "from_table",
    "gaussians",
    "load",
    "named",
    "regressions",
]
