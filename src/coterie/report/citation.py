"""The BibTeX of what a run used: its algorithms, those that initialise them, its client selection, its privacy."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import ALGORITHMS, __version__, toml
from coterie.algorithms.fedspd import FedSPD
from coterie.clustering.paper import BIBTEX as KFED
from coterie.errors import CoterieError
from coterie.experiment.experiment import load_kept
from coterie.experiment.methods import Method

log = logging.getLogger("coterie")

COTERIE = f"""@software{{coterie,
  title={{coterie: Clustered and Personalised Federated Learning}},
  version={{{__version__}}}
}}"""
POWER_OF_CHOICE = """@article{cho2020client,
  title={Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies},
  author={Cho, Yae Jee and Wang, Jianyu and Joshi, Gauri},
  journal={arXiv preprint arXiv:2010.01243},
  year={2020}
}"""
NOISE_ON_MODELS = """@article{wei2020federated,
  title={Federated Learning With Differential Privacy: Algorithms and Performance Analysis},
  author={Wei, Kang and Li, Jun and Ding, Ming and Ma, Chuan and Yang, Howard H. and Farokhi, Farhad and Jin, Shi
    and Quek, Tony Q. S. and Poor, H. Vincent},
  journal={IEEE Transactions on Information Forensics and Security},
  volume={15},
  pages={3454--3469},
  year={2020}
}"""
OF_SELECTION = {"loss": (POWER_OF_CHOICE,), "loss-per-cluster": (POWER_OF_CHOICE, KFED)}
OF_PRIVACY = {"paper": (FedSPD.bibtex, NOISE_ON_MODELS)}


@dataclass(frozen=True)
class Used:
    """What a stage used."""

    algorithm: str  # the name of its class
    select: str
    mechanism: str | None  # of privacy
    comment: str = ""  # why it was used, where the experiment does not name it

    def entries(self) -> Iterator[tuple[str, str]]:
        """Each with its comment."""
        known = {kind.__name__: kind.bibtex for kind in ALGORITHMS.values()}
        if self.algorithm not in known:
            log.warning("%s is none of coterie's algorithms; its reference is not known here", self.algorithm)
        yield known.get(self.algorithm, ""), self.comment
        for entry in (*OF_SELECTION.get(self.select, ()), *OF_PRIVACY.get(self.mechanism or "", ())):
            yield entry, ""


def citation(folder: Path) -> str:
    """Each entry once, in the order of the stages; coterie itself comes last."""
    comments: dict[str, list[str]] = {}
    for entry, comment in (each for used in _stages(folder) for each in used.entries() if each[0]):
        comments.setdefault(entry, []).append(comment)
    return "\n\n".join([*(_commented(entry, each) for entry, each in comments.items()), COTERIE])


def _commented(entry: str, comments: list[str]) -> str:
    """What the experiment names at least once needs no comment."""
    return entry if "" in comments else "".join(dict.fromkeys(comments)) + entry


def _stages(folder: Path) -> list[Used]:
    """All stages of all methods in the folder of a run, initialisations among them."""
    path = folder / "experiment.toml"
    if not path.is_file():
        raise CoterieError(
            f"{folder} holds no experiment.toml; allowed is the folder of a run that was begun"
        )
    table = toml.load_kept(path)
    if "made" in table:
        stages = table.get("stages")
        return [_from_python(stage, folder) for stage in (stages if isinstance(stages, list) else [stages])]
    return [used for method in load_kept(folder).methods for used in _from_method(method)]


def _from_method(method: Method) -> Iterator[Used]:
    """An initialisation has the same origin as the stage that it initialises, which is the last of that origin."""
    initialised = {id(origin): stage for origin, stage in zip(method.origins, method.stages, strict=True)}
    for origin, stage in zip(method.origins, method.stages, strict=True):
        name, after = stage.algorithm.title(), initialised[id(origin)].algorithm.title()
        comment = "" if name == after else f"% {name}: the initialisation of {after}\n"
        mechanism = None if stage.privacy is None else stage.privacy.mechanism
        yield Used(type(stage.algorithm).__name__, stage.participation.select, mechanism, comment)


def _from_python(stage: Any, folder: Path) -> Used:
    """A run made in Python keeps its stages as Python writes them: Stage(algorithm=FedAvg(weights='size'), ..."""
    begins = re.match(r"Stage\(algorithm=(\w+)", stage) if isinstance(stage, str) else None
    if begins is None:
        raise CoterieError(f"{folder} holds no whole run: a stage is {stage!r}")
    select = re.search(r"participation=Participation\(.*?select='([^']*)'", stage)
    mechanism = re.search(r"privacy=Privacy\(mechanism='([^']*)'", stage)
    return Used(begins[1], select[1] if select else "uniform", mechanism[1] if mechanism else None)
