"""Making the models: gather text, train tokenizers, train the targets, distil their drafts, write them down."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.tiny.architecture import build_model
from engines.tiny.corpus import Dialogue, Task, collect_passages, dialogues, everyday_questions
from engines.tiny.distillation import (
    AnsweredPrompt,
    acceptance_rate,
    distillation_loss,
    generate_answers,
    init_from_target,
    map_vocabularies,
)
from engines.tiny.libraries import Libraries
from engines.tiny.plan import MODELS, PASSAGES, QUESTIONS, ModelPlan
from engines.tiny.progress import Stage
from engines.tiny.training import encode, language_model_loss, token_batches, train
from engines.tiny.vocabulary import train_tokenizer

_HELD_OUT_EVERY = 25
_QUESTION_SEED, _FIRST_MODEL_SEED = 7, 100
_TASKS: tuple[Task, ...] = ("chat", "code")


@dataclass(frozen=True)
class TrainedModel:
    """A model that was made: its size, how long it took, its last loss in nats a token, and, of a draft, which part
    (0 to 1) of its target's words it foresees."""

    name: str
    parameters: int
    seconds: float
    loss: float
    foreseen: float | None


@dataclass(frozen=True)
class _TrainedTarget:
    model: Any
    tokenizer: Any
    answers: dict[Task, list[AnsweredPrompt]]


def make_models(libraries: Libraries, folder: Path, stage: Stage, limit_s: float | None) -> list[TrainedModel]:
    """Make every model of the plan into `folder/<name>`; `limit_s` bounds the seconds of training, all together."""
    asked = dialogues([passage for task in _TASKS for passage in collect_passages(task, PASSAGES)], each=2)
    texts = [f"{dialogue.question}\n{dialogue.answer}" for dialogue in asked]
    targets: dict[str, _TrainedTarget] = {}
    made = []
    for number, plan in enumerate(MODELS):
        started = time.monotonic()
        plan = _with_time_limit(plan, limit_s)
        target = targets[plan.target] if plan.target is not None else None
        shares_vocabulary = target is not None and _find_plan(plan.target).shape.vocabulary is plan.shape.vocabulary
        tokenizer = (
            target.tokenizer
            if target is not None and shares_vocabulary
            else train_tokenizer(libraries, plan.shape.vocabulary, texts)
        )
        model = build_model(libraries, plan.shape, tokenizer, _FIRST_MODEL_SEED + number)
        own = [dialogue for dialogue in asked if dialogue.task in plan.tasks]
        if target is None:
            loss, agreement = _train_target(libraries, plan, model, tokenizer, own, stage), None
            targets[plan.name] = _TrainedTarget(
                model, tokenizer, _generate_answers(libraries, plan, model, tokenizer, stage)
            )
        else:
            loss, agreement = _train_draft(libraries, plan, model, tokenizer, target, own, stage)
        _save(libraries, model, tokenizer, folder / plan.name)
        size = sum(weight.numel() for weight in model.parameters())
        made.append(TrainedModel(plan.name, size, round(time.monotonic() - started, 1), loss, agreement))
    return made


def _train_target(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, examples: list[Dialogue], stage: Stage
) -> float:
    feed = token_batches(libraries, [encode(tokenizer, dialogue) for dialogue in examples], seed=1)
    with stage(f"train {plan.name}") as report:
        return train(libraries, model, language_model_loss(model), feed, plan.course, report)


def _generate_answers(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, stage: Stage
) -> dict[Task, list[AnsweredPrompt]]:
    """What a trained target answers to everyday questions, by task."""
    said: dict[Task, list[AnsweredPrompt]] = {}
    with stage(f"ask {plan.name}") as report:
        for number, task in enumerate(_TASKS, 1):
            questions = everyday_questions(task, QUESTIONS // len(_TASKS), _QUESTION_SEED)
            said[task] = list(
                generate_answers(libraries, model, [encode(tokenizer, question) for question in questions])
            )
            report(number / len(_TASKS), 0.0)
    return said


def _train_draft(
    libraries: Libraries,
    plan: ModelPlan,
    model: Any,
    tokenizer: Any,
    target: _TrainedTarget,
    examples: list[Dialogue],
    stage: Stage,
) -> tuple[float, float]:
    translation = map_vocabularies(libraries, target.tokenizer, tokenizer)
    init_from_target(libraries, target.model, model, translation)
    said = [answer for task in plan.tasks for answer in target.answers[task]]
    held_out = said[::_HELD_OUT_EVERY]
    learned = [answer.tokens for at, answer in enumerate(said) if at % _HELD_OUT_EVERY]
    feed = token_batches(libraries, learned + [encode(target.tokenizer, dialogue) for dialogue in examples], seed=2)
    with stage(f"distil {plan.name}") as report:
        loss = train(
            libraries, model, distillation_loss(libraries, target.model, model, translation), feed, plan.course, report
        )
    return loss, acceptance_rate(libraries, model, translation, held_out)


def _save(libraries: Libraries, model: Any, tokenizer: Any, folder: Path) -> None:
    """In bfloat16, as vLLM runs it; the model itself stays in float32, since its drafts may still need it."""
    tokenizer.save_pretrained(folder)
    weights = {name: weight.to(libraries.torch.bfloat16) for name, weight in model.state_dict().items()}
    kept = model.config.dtype
    model.config.dtype = libraries.torch.bfloat16
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = kept


def _find_plan(name: str | None) -> ModelPlan:
    return next(plan for plan in MODELS if plan.name == name)


def _with_time_limit(plan: ModelPlan, limit_s: float | None) -> ModelPlan:
    if limit_s is None:
        return plan
    return replace(plan, course=replace(plan.course, limit_s=limit_s * plan.share))
