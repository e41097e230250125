"""Which models are made, of what shape, and how long each may learn."""

from dataclasses import dataclass

from engines.tiny.architecture import ModelShape
from engines.tiny.corpus import Task
from engines.tiny.training import TrainingSchedule
from engines.tiny.vocabulary import LLAMA, MISTRAL, QWEN

VERSION = "tiny-1"
"""Of the models that this code makes; another version makes them anew. The configuration names it as their revision."""

PASSAGES = 80
"""Texts a task; few enough to be learned by heart, so that answers are words rather than noise."""

QUESTIONS = 320
"""Questions put to a target, whose answers its drafts learn."""


@dataclass(frozen=True)
class ModelPlan:
    """One model: a target where `target` is None, else a draft for the target of that name.

    `share` is its part of the time that all training may take; `tasks` are what it is trained on.
    """

    name: str
    shape: ModelShape
    course: TrainingSchedule
    share: float
    target: str | None = None
    tasks: tuple[Task, ...] = ("chat", "code")


TARGET_SCHEDULE = TrainingSchedule(steps=250, learning_rate=5e-3)
DRAFT_SCHEDULE = TrainingSchedule(steps=50, learning_rate=2e-3)

MODELS = (
    ModelPlan("llama", ModelShape("Llama", LLAMA, hidden=128, layers=2), TARGET_SCHEDULE, 0.29),
    ModelPlan("qwen-draft", ModelShape("Qwen2", QWEN, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "llama"),
    ModelPlan("code-draft", ModelShape("Llama", LLAMA, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "llama", ("code",)),
    ModelPlan("mistral", ModelShape("Mistral", MISTRAL, hidden=128, layers=2), TARGET_SCHEDULE, 0.29),
    ModelPlan("mistral-draft", ModelShape("Mistral", MISTRAL, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "mistral"),
)
"""In the order they are made: a target before its drafts."""
