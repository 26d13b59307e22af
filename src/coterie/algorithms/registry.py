"""All algorithms by their titles, in the order in which `algorithms/__init__.py` names them."""

from importlib import import_module

from coterie import lazy
from coterie.protocol.algorithm import Algorithm

_NAMED = {name: module for name, module in lazy.imports("coterie.algorithms").items() if module != __name__}
_OFFERED = [getattr(import_module(module), name) for name, module in _NAMED.items()]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.title(): kind for kind in _OFFERED if kind is not Algorithm}
