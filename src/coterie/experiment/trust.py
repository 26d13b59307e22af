"""A run's folder may come from somebody else, and its model may be code. Whose code has this user run before?

What `coterie run` was asked to run is remembered by its fingerprint, in the user's own state folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import CoterieError, SettingError
from coterie.experiment.experiment import Experiment
from coterie.models.own import sources_of


@dataclass(frozen=True)
class Code:
    """What builds an experiment's model, where that is no model of ours."""

    name: str  # module:attribute
    files: list[Path]  # the first has it; the others lie beside it and are imported
    fingerprint: str  # of the name, its settings and the files


def code_of(experiment: Experiment) -> Code | None:
    """None: the model is a built-in one, which runs no code but ours."""
    name = experiment.model["name"]
    if ":" not in name:
        return None
    folder = Path(experiment.model["folder"])
    try:
        files = sources_of(name, folder)
        contents = [hashlib.blake2b(file.read_bytes()).hexdigest() for file in files]
    except (OSError, SettingError):  # it cannot be run either, and that is said when it is tried
        files, contents = [], []
    settings = {key: value for key, value in experiment.model.items() if key != "folder"}
    names = [os.path.relpath(file, folder) for file in files[1:]]
    text = json.dumps([settings, names, contents], sort_keys=True, default=str)
    return Code(name, files, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def remember(experiment: Experiment) -> None:
    """The user asked for this code to be run. Where that cannot be written down, it will be asked again."""
    code = code_of(experiment)
    if code is None or code.fingerprint in _known():
        return
    try:
        _state().parent.mkdir(parents=True, exist_ok=True)
        with _state().open("a", encoding="ascii") as file:
            file.write(code.fingerprint + "\n")
    except OSError:
        return


def check(experiment: Experiment, folder: Path, trust: bool, allow: str = "--trust") -> None:
    """Refuse code of a run's folder that this user has not run before."""
    code = code_of(experiment)
    if code is None or code.fingerprint in _known():
        return
    if trust:
        remember(experiment)
        return
    _refuse_always(experiment, folder)
    if not code.files:
        raise CoterieError(
            f"the model of the run in {folder} is code, {code.name}, which is nowhere to be found; put its file in "
            f"{experiment.model['folder']}"
        )
    others = ", ".join(file.name for file in code.files[1:])
    also = f" (with {others} beside it)" if others else ""
    raise CoterieError(
        f"the model of the run in {folder} is code, {code.name} from {code.files[0]}{also}, that you have not run "
        f"before as it is now; read it, then allow it with {allow}"
    )


def _refuse_always(experiment: Experiment, folder: Path) -> None:
    """Code that no trust allows."""
    try:
        sources_of(experiment.model["name"], Path(experiment.model["folder"]))
    except SettingError as problem:
        raise CoterieError(f"the model of the run in {folder}: model.{problem}") from problem


def _state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "coterie" / "trusted"


def _known() -> set[str]:
    try:
        return set(_state().read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()
