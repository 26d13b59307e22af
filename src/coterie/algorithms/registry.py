"""All algorithms by their titles, in the order in which `algorithms/__init__.py` names them."""

from coterie import algorithms, lazy
from coterie.protocol.algorithm import Algorithm

_NAMES = [name for name, module in lazy.imports(algorithms.__name__).items() if module != __name__]
_OFFERED = [getattr(algorithms, name) for name in _NAMES]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.title(): kind for kind in _OFFERED if kind is not Algorithm}
