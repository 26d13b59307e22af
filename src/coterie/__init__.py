"""Clustered and personalised federated learning."""

from typing import TYPE_CHECKING

from coterie.version import __version__ as __version__

if TYPE_CHECKING:  # the names that users need; a file is imported when a name of it is first used
    from coterie import algorithms as algorithms
    from coterie import data as data
    from coterie import models as models
    from coterie import recipes as recipes
    from coterie import testing as testing
    from coterie.algorithms import *  # noqa: F403
    from coterie.api import load as load
    from coterie.api import run as run
    from coterie.clustering.kfed import KFed as KFed
    from coterie.data.federation import Federation as Federation
    from coterie.data.federation import Points as Points
    from coterie.engine.training import Training as Training
    from coterie.errors import CoterieError as CoterieError
    from coterie.model_selection.choice import Choice as Choice
    from coterie.model_selection.choice import Choosing as Choosing
    from coterie.model_selection.search import choose_clusters as choose_clusters
    from coterie.models.own import builds_model as builds_model
    from coterie.protocol.participation import Participation as Participation
    from coterie.protocol.personal import Personal as Personal
    from coterie.protocol.privacy import Privacy as Privacy
    from coterie.protocol.stages import Stage as Stage
    from coterie.protocol.stages import Stages as Stages
    from coterie.protocol.topology import Graph as Graph
    from coterie.protocol.topology import Server as Server
    from coterie.runs.models import PersonalModel as PersonalModel
    from coterie.runs.models import TrainedModel as TrainedModel
    from coterie.runs.onboarding import Onboarded as Onboarded
    from coterie.runs.result import Run as Run
else:
    from coterie import lazy

    __getattr__, __dir__, __all__ = lazy.door(__name__)
