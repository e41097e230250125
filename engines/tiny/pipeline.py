"""Makes the models: collects text, trains tokenizers, trains the targets, distils their drafts, saves them."""

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

_HELD_OUT_EVERY = 25  # 4 % of the answers are for measuring the acceptance rate
_QUESTION_SEED, _FIRST_MODEL_SEED = 7, 100
_TASKS: tuple[Task, ...] = ("chat", "code")


@dataclass(frozen=True)
class TrainedModel:
    """Size, training time, last loss in nats per token, and for a draft the share (0 to 1) of tokens it predicts."""

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
    """Makes every model of the plan in `folder/<name>`; `limit_s` bounds the seconds of all training together."""
    corpus = dialogues([passage for task in _TASKS for passage in collect_passages(task, PASSAGES)], each=2)
    texts = [f"{dialogue.question}\n{dialogue.answer}" for dialogue in corpus]
    targets: dict[str, _TrainedTarget] = {}
    trained = []
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
        own = [dialogue for dialogue in corpus if dialogue.task in plan.tasks]
        if target is None:
            loss, agreement = _train_target(libraries, plan, model, tokenizer, own, stage), None
            targets[plan.name] = _TrainedTarget(
                model, tokenizer, _generate_answers(libraries, plan, model, tokenizer, stage)
            )
        else:
            loss, agreement = _train_draft(libraries, plan, model, tokenizer, target, own, stage)
        _save(libraries, model, tokenizer, folder / plan.name)
        size = sum(weight.numel() for weight in model.parameters())
        trained.append(TrainedModel(plan.name, size, round(time.monotonic() - started, 1), loss, agreement))
    return trained


def _train_target(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, examples: list[Dialogue], stage: Stage
) -> float:
    feed = token_batches(libraries, [encode(tokenizer, dialogue) for dialogue in examples], seed=1)
    with stage(f"train {plan.name}") as report:
        return train(libraries, model, language_model_loss(model), feed, plan.course, report)


def _generate_answers(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, stage: Stage
) -> dict[Task, list[AnsweredPrompt]]:
    """The answers of a trained target to everyday questions, by task."""
    answers: dict[Task, list[AnsweredPrompt]] = {}
    with stage(f"ask {plan.name}") as report:
        for number, task in enumerate(_TASKS, 1):
            questions = everyday_questions(task, QUESTIONS // len(_TASKS), _QUESTION_SEED)
            answers[task] = list(
                generate_answers(libraries, model, [encode(tokenizer, question) for question in questions])
            )
            report(number / len(_TASKS), 0.0)
    return answers


def _train_draft(
    libraries: Libraries,
    plan: ModelPlan,
    model: Any,
    tokenizer: Any,
    target: _TrainedTarget,
    examples: list[Dialogue],
    stage: Stage,
) -> tuple[float, float]:
    mapping = map_vocabularies(libraries, target.tokenizer, tokenizer)
    init_from_target(libraries, target.model, model, mapping)
    answers = [answer for task in plan.tasks for answer in target.answers[task]]
    held_out = answers[::_HELD_OUT_EVERY]
    training_rows = [answer.tokens for at, answer in enumerate(answers) if at % _HELD_OUT_EVERY]
    feed = token_batches(
        libraries, training_rows + [encode(target.tokenizer, dialogue) for dialogue in examples], seed=2
    )
    with stage(f"distil {plan.name}") as report:
        loss = train(
            libraries, model, distillation_loss(libraries, target.model, model, mapping), feed, plan.course, report
        )
    return loss, acceptance_rate(libraries, model, mapping, held_out)


def _save(libraries: Libraries, model: Any, tokenizer: Any, folder: Path) -> None:
    """Saves in bfloat16, which vLLM runs; the model itself stays in float32, since its drafts may still need it."""
    tokenizer.save_pretrained(folder)
    weights = {name: weight.to(libraries.torch.bfloat16) for name, weight in model.state_dict().items()}
    original_dtype = model.config.dtype
    # save_pretrained writes the dtype of the config, so it is changed for the call only.
    model.config.dtype = libraries.torch.bfloat16
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = original_dtype


def _find_plan(name: str | None) -> ModelPlan:
    return next(plan for plan in MODELS if plan.name == name)


def _with_time_limit(plan: ModelPlan, limit_s: float | None) -> ModelPlan:
    if limit_s is None:
        return plan
    return replace(plan, course=replace(plan.course, limit_s=limit_s * plan.share))
