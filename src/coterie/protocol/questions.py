"""What clients answer to each question. Every backend has them answer here, and privacy is applied here alone."""

from __future__ import annotations

from collections.abc import Callable

from coterie.errors import CoterieError
from coterie.protocol import (
    common_model,
    evaluation,
    fit,
    judgement,
    personalise,
    scale,
    selection,
    separation,
)
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MODEL, SIZE, Declared, Field
from coterie.protocol.message import Fields, Messages
from coterie.protocol.stages import Stage, Stages

Answer = Callable[[Stage, Cohort, Messages], Fields]

_ANSWERS: dict[Question, Answer] = {
    "report": lambda stage, cohort, offer: stage.algorithm.report(cohort, offer),
    "train": lambda stage, cohort, offer: stage.algorithm.train(cohort, offer),
    "enrol": lambda stage, cohort, offer: selection.introduce(stage.participation, cohort),
    "loss": lambda stage, cohort, offer: selection.losses(stage.algorithm, cohort, offer),
    "separation": lambda stage, cohort, offer: separation.measure(cohort, offer),
    "choose": lambda stage, cohort, offer: personalise.try_all(stage.algorithm, cohort, offer),
    "common": lambda stage, cohort, offer: common_model.train(cohort, offer),
    "size": lambda stage, cohort, offer: {"size": cohort.sizes},
    "training_loss": lambda stage, cohort, offer: evaluation.training_loss(cohort),
    "scale": lambda stage, cohort, offer: scale.measure(cohort),
    "evaluate": lambda stage, cohort, offer: evaluation.evaluate(stage.algorithm, cohort, offer),
    "finish": lambda stage, cohort, offer: evaluation.finish(stage.algorithm, cohort, offer, stage.personal),
    "fit": lambda stage, cohort, offer: fit.measure(stage.algorithm, cohort, offer, _withholds_sizes(stage)),
    "likelihood": lambda stage, cohort, offer: evaluation.likelihood(stage.algorithm, cohort, offer),
    "judge": lambda stage, cohort, offer: judgement.judge(cohort, offer),
    "gradient": lambda stage, cohort, offer: evaluation.gradient(cohort, offer),
    "center_loss": lambda stage, cohort, offer: evaluation.center_loss(cohort, offer),
}


def _withholds_sizes(stage: Stage) -> bool:
    return stage.privacy is not None and stage.privacy.withholds_sizes


def answer(question: Question, stages: Stages, cohort: Cohort, offer: Messages) -> Fields:
    """What clients answer, as it leaves them."""
    stage = stages[cohort.context.stage]
    sent, fields = _ANSWERS[question](stage, cohort, offer), declared(question, stage)
    strange = [name for name in sent if fields is not None and name not in fields]
    if strange:
        raise CoterieError(
            f"{stage.algorithm.title()} sends {strange[0]!r}, which it does not declare in `reports` or `sends`"
        )
    if stage.privacy is None or fields is None or question not in ("report", "train"):
        return sent
    return stage.privacy.protect(repr(stages), stage.algorithm, fields, cohort, offer, sent)


_LOSS = Field("number", finite=False)  # of a model that may have diverged
_MAYBE = Field("number", None, optional=True, finite=False)
_EVALUATED: Declared = {
    "importance": Field("importance", None, finite=False),
    **dict.fromkeys(("losses", "loss", "accuracy", "f1"), _MAYBE),
}
_DECLARED: dict[Question, Declared] = {
    "enrol": {"size": SIZE, "means": _MAYBE},
    "loss": {"loss": _LOSS},
    "separation": dict.fromkeys(("loss", "margin", "moved", "grown"), _LOSS),
    "choose": {"errors": Field("number", None)},
    "common": {"row": MODEL, "size": SIZE},
    "size": {"size": SIZE},
    "training_loss": {"loss": _LOSS},
    "scale": dict.fromkeys(("input", "target", "guess"), _LOSS),
    "evaluate": _EVALUATED,
    "finish": {
        **_EVALUATED,
        "rows": Field("model", None, finite=False),
        "weights": Field("number", None, finite=False),
        "way": _MAYBE,
    },
    "fit": {
        "losses": Field("number", None, finite=False),
        "points": Field("mass", None),
        "importance": Field("importance", None),
        "margin": _MAYBE,
    },
    "likelihood": dict.fromkeys(("held_out", "training"), _LOSS),
    "judge": {
        "importance": Field("importance", None, finite=False),
        **dict.fromkeys((*judgement.NUMBERS, *judgement.PAIRS), Field("number", None, finite=False)),
        **dict.fromkeys(judgement.OPTIONAL, _MAYBE),
    },
    "gradient": {"gradient": Field("update", None, finite=False)},
    "center_loss": {"loss": _LOSS},
    "begin": {},
    "keep": {},
    "restore": {},
    "combine": {},
    "join": {},
    "save": {},
    "load": {},
}


def declared(question: Question, stage: Stage) -> Declared | None:
    """The fields of an answer; None: any."""
    if question == "report":
        return stage.algorithm.reports
    if question == "pass":
        return stage.algorithm.passes
    return stage.algorithm.sends if question == "train" else _DECLARED.get(question)
