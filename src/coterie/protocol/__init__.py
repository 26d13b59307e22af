"""What a run is made of, for authors of algorithms and of backends.

algorithm, fields        what an algorithm is, and what the fields of its messages mean
cohort, client_state     clients side by side: their data, what they keep, the local problem
state, received          the aggregator's half
message, envelope        what goes between the two, as tensors and as bytes
clients, questions       the seam: what clients can be asked by name, and what they answer
client, peer, remote     who answers: a cohort, a node of a graph, somebody at the other end of a network
round, coordinator       one round, and all rounds of all stages
topology, participation, selection, privacy, stages    settings of a stage
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a file is imported when a name of it is first used
    from coterie.protocol.algorithm import Algorithm as Algorithm
    from coterie.protocol.build import cohort_of as cohort_of
    from coterie.protocol.build import functional_model as functional_model
    from coterie.protocol.build import peer_of as peer_of
    from coterie.protocol.build import server_model as server_model
    from coterie.protocol.client import Client as Client
    from coterie.protocol.clients import Clients as Clients
    from coterie.protocol.clients import Question as Question
    from coterie.protocol.clients import Refused as Refused
    from coterie.protocol.cohort import Cohort as Cohort
    from coterie.protocol.coordinator import Coordinator as Coordinator
    from coterie.protocol.envelope import BadMessage as BadMessage
    from coterie.protocol.envelope import Header as Header
    from coterie.protocol.envelope import opened as opened
    from coterie.protocol.envelope import seal as seal
    from coterie.protocol.fields import CHOICE as CHOICE
    from coterie.protocol.fields import IMPORTANCE as IMPORTANCE
    from coterie.protocol.fields import MASS as MASS
    from coterie.protocol.fields import MODEL as MODEL
    from coterie.protocol.fields import MODELS as MODELS
    from coterie.protocol.fields import NUMBER as NUMBER
    from coterie.protocol.fields import SIZE as SIZE
    from coterie.protocol.fields import UPDATE as UPDATE
    from coterie.protocol.fields import Declared as Declared
    from coterie.protocol.fields import Field as Field
    from coterie.protocol.message import Fields as Fields
    from coterie.protocol.message import Messages as Messages
    from coterie.protocol.message import RoundContext as RoundContext
    from coterie.protocol.participation import Participation as Participation
    from coterie.protocol.peer import Peer as Peer
    from coterie.protocol.personal import Personal as Personal
    from coterie.protocol.personal import chosen as chosen
    from coterie.protocol.personal import mix_rows as mix_rows
    from coterie.protocol.privacy import Privacy as Privacy
    from coterie.protocol.received import Received as Received
    from coterie.protocol.remote import RemoteClients as RemoteClients
    from coterie.protocol.remote import Responder as Responder
    from coterie.protocol.result import Result as Result
    from coterie.protocol.result import Snapshot as Snapshot
    from coterie.protocol.stages import Stage as Stage
    from coterie.protocol.stages import Stages as Stages
    from coterie.protocol.state import State as State
    from coterie.protocol.topology import Graph as Graph
    from coterie.protocol.topology import Server as Server
    from coterie.protocol.topology import Topology as Topology
    from coterie.protocol.traffic import Traffic as Traffic
else:
    from coterie import lazy

    __getattr__, __dir__, __all__ = lazy.door(__name__)
