"""Clustered and personalised federated learning."""

from coterie import algorithms, recipes
from coterie.algorithms import *  # noqa: F403
from coterie.choice import Choice, Choosing
from coterie.choose import choose_clusters
from coterie.clustering import KFed
from coterie.cohort import Personal
from coterie.errors import CoterieError
from coterie.federation import Federation, Points
from coterie.onboarding import Onboarded
from coterie.participation import Participation
from coterie.privacy import Privacy
from coterie.results import PersonalModel, Run
from coterie.run import load, run
from coterie.stages import Stage, Stages
from coterie.topology import Graph, Server
from coterie.training import Training

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Choosing",
    "CoterieError",
    "Federation",
    "Graph",
    "KFed",
    "Onboarded",
    "Participation",
    "Personal",
    "PersonalModel",
    "Points",
    "Privacy",
    "Run",
    "Server",
    "Stage",
    "Stages",
    "Training",
    "choose_clusters",
    "load",
    "recipes",
    "run",
]
__all__ += algorithms.__all__
