"""The settings of a data set in `[data]`: what may be written, and the default of each."""

from __future__ import annotations

from dataclasses import replace

from coterie.data.named import defaults
from coterie.data.partitions.settings import Partition
from coterie.data.sources.joined import Labels
from coterie.experiment.schema import Setting, parameters


def data_set_settings(source: str) -> dict[str, Setting]:
    """Those of `Partition`, with the defaults of this data set, and what only some data sets take."""
    usual = defaults(source)
    found = {key: replace(one, default=getattr(usual, key)) for key, one in parameters(Partition).items()}
    if source == "digits":
        found["image"] = Setting(bool, False)
    if "+" in source:
        found["labels"] = Setting(Labels, "shared")
    return {**found, "seed": Setting(int, 0)}
