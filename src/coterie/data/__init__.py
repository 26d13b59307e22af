"""Every client's data: a `Federation`, and all the ways to make one.

`digits` and `named` partition a data set among clients; `load` gives such a data set, and `from_datasets` one of
Hugging Face, as a `Source`, and `partition` partitions any `Source` as `Partition` describes; `regressions` and
`gaussians` draw synthetic data; `from_arrays`, `from_folder` and `from_table` take the user's own. All of these are
public, the modules behind them are not.
"""

from coterie.data.named import digits, named
from coterie.data.own.load import from_arrays, from_folder, from_table
from coterie.data.partitions.build import partition
from coterie.data.partitions.settings import Partition
from coterie.data.sources.catalogue import data_folder, load
from coterie.data.sources.hugging_face import from_datasets
from coterie.data.sources.source import Source
from coterie.data.synthetic import gaussians, regressions

__all__ = [
    "Partition",
    "Source",
    "data_folder",
    "digits",
    "from_arrays",
    "from_datasets",
    "from_folder",
    "from_table",
    "gaussians",
    "load",
    "named",
    "partition",
    "regressions",
]
