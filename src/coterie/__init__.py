"""Clustered and personalised federated learning."""

from coterie import algorithms, recipes
from coterie.algorithms import *  # noqa: F403
from coterie.api import load, run
from coterie.clustering.kfed import KFed
from coterie.data.federation import Federation, Points
from coterie.engine.training import Training
from coterie.errors import CoterieError
from coterie.model_selection.choice import Choice, Choosing
from coterie.model_selection.search import choose_clusters
from coterie.protocol.participation import Participation
from coterie.protocol.personal import Personal
from coterie.protocol.privacy import Privacy
from coterie.protocol.stages import Stage, Stages
from coterie.protocol.topology import Graph, Server
from coterie.runs.models import PersonalModel
from coterie.runs.onboarding import Onboarded
from coterie.runs.result import Run

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
