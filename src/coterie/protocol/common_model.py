"""One model for all clients beside the clusters' centers, trained as FedAvg does: for `personal = "auto"`.

The mean of all centers is no substitute: centers that found different clusters average badly. So clients that train in
a round train this model too, and in the end it is one of those that they choose from.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from coterie.protocol.client_state import ClientState
from coterie.protocol.clients import Clients
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.received import Received
from coterie.protocol.round import finite_only
from coterie.protocol.stages import Stages
from coterie.protocol.state import State
from coterie.protocol.traffic import Traffic


def is_trained(stages: Stages) -> bool:
    """Only at a server, for peers would have to exchange a second model; and without privacy, which is of the first."""
    open_server = all(stage.topology.is_server and stage.privacy is None for stage in stages)
    return stages[-1].personal == "auto" and open_server


def train(cohort: Cohort, offer: Messages) -> Fields:
    """At the client. What it keeps is of the algorithm alone."""
    forgetful = replace(cohort, client_state=ClientState(cohort.client_state.clients))
    training = replace(cohort.training, keep_optimizer=False)
    row = forgetful.solve(offer.center, training=training, purpose="common")
    return {"row": row, "size": cohort.sizes}


def play_round(common: Tensor, state: State, clients: Clients, who: Tensor, traffic: Traffic) -> Tensor:
    """At the server: (1, 1, width) the mean of what these clients make of it, by size."""
    offer = state.for_everyone().offer(center=common[:, 0]).take(who)
    sent = finite_only(clients.ask("common", offer, state.context))[0]
    traffic.to_clients(offer)
    traffic.to_server(sent)
    if not len(sent):
        return common
    received = Received.by_server(sent)
    return received.mean("row", received.size[:, None], otherwise=common)
