"""Data: sources, distributions, partitions, and the user's own."""

from coterie.data.catalogue import data_folder, load
from coterie.data.digits import digits
from coterie.data.hugging_face import from_datasets
from coterie.data.own import from_arrays, from_folder, from_table
from coterie.data.source import Source
from coterie.data.synthetic import gaussians, regressions

__all__ = [
    "Source",
    "data_folder",
    "digits",
    "from_arrays",
    "from_datasets",
    "from_folder",
    "from_table",
    "gaussians",
    "load",
    "regressions",
]
