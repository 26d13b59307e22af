"""What an algorithm cannot do is refused."""

from __future__ import annotations

import pytest

from coterie import (
    CFL,
    Algorithm,
    CoterieError,
    FedAvg,
    FedAvgPlus,
    FedEM,
    FedProxPlus,
    FedSoft,
    FedSPD,
    FeSEM,
    Graph,
    Stage,
    WeCFL,
)
from tests.builders import trained


def test_refusals() -> None:
    with pytest.raises(CoterieError, match=r"draws is 11; allowed is 1 to 10"):
        trained(FedSoft(2, draws=11))
    with pytest.raises(CoterieError, match="over a graph nobody is drawn"):
        trained(FedSoft(2, draws=5), topology=Graph("complete"))
    with pytest.raises(CoterieError, match="n_clusters is 0"):
        trained(FedSPD(0))
    with pytest.raises(CoterieError, match="FedSoft leaves 3 centers but FedSPD"):
        Stage(FedSoft(3), 1).then(Stage(FedSPD(2), 1)).check(3)


@pytest.mark.parametrize(
    "algorithm", [FeSEM(2), WeCFL(2), CFL(), FedAvgPlus(2), FedProxPlus(2)], ids=lambda a: a.title()
)
def test_what_needs_a_server_says_so(algorithm: Algorithm) -> None:
    with pytest.raises(CoterieError, match=r"needs a server; it cannot run over a graph"):
        trained(algorithm, topology=Graph("complete"))


def test_stages_that_cannot_follow() -> None:
    cfl, wecfl, fedem = Stage(CFL(), 1), Stage(WeCFL(2), 1), Stage(FedEM(2), 1)
    with pytest.raises(CoterieError, match="CFL finds the number of clusters; no stage can follow it"):
        cfl.then(Stage(FedAvg(), 1)).check(4)
    with pytest.raises(CoterieError, match="WeCFL begins at one common model; it must be the first stage"):
        fedem.then(wecfl).check(4)
    wecfl.then(fedem).check(4)
