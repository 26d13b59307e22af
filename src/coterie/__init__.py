"""Clustered and personalised federated learning."""

from coterie.algorithms import ALGORITHMS, Algorithm, FedAvg, FedProx, FedSoft, FedSPD, Local
from coterie.cohort import Personal
from coterie.errors import CoterieError
from coterie.federation import Federation, Points
from coterie.participation import Participation
from coterie.run import PersonalModel, Run, load, run
from coterie.simulate import Stage, Stages
from coterie.topology import Graph, Server
from coterie.training import Training

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CoterieError",
    "FedAvg",
    "FedProx",
    "FedSPD",
    "FedSoft",
    "Federation",
    "Graph",
    "Local",
    "Participation",
    "Personal",
    "PersonalModel",
    "Points",
    "Run",
    "Server",
    "Stage",
    "Stages",
    "Training",
    "load",
    "run",
]
