"""Rules between the settings of an [engine.launch]: what vLLM would refuse, or silently ignore."""

from collections.abc import Iterator
from typing import get_args

from router.settings.mistakes import Mistake, Place
from router.settings.tables import LaunchSettings, Speculation


def broken_launch(place: Place, launch: LaunchSettings, max_model_len: int | None) -> Iterator[Mistake]:
    """The violations of one launch, which is at `place`; `max_model_len` is its engine's."""
    yield from _gpus(place, launch)
    yield from _placement(place, launch)
    yield from _speculation(place, launch)
    yield from _batches(place, launch, max_model_len)
    if launch.max_lora_rank is not None and not launch.lora:
        yield Mistake((*place, "max_lora_rank"), "needs lora; name the adapters there", reads=((*place, "lora"),))


def _gpus(place: Place, launch: LaunchSettings) -> Iterator[Mistake]:
    gpus: Place = (*place, "gpus")
    first: dict[int, int] = {}
    for index, gpu in enumerate(launch.gpus):
        if gpu in first:
            yield Mistake((*gpus, index), "is named twice; name each GPU once")
        first.setdefault(gpu, index)
    if launch.gpus and launch.device == "cpu":
        message = 'cannot be combined with device = "cpu"; remove one of them'
        yield Mistake(gpus, message, of_value=False, reads=((*place, "device"),))
    sizes: tuple[Place, ...] = ((*place, "tensor_parallel_size"), (*place, "pipeline_parallel_size"))
    count, stages = len(launch.gpus), launch.pipeline_parallel_size
    if not count:
        return  # vLLM takes the first ones that it sees
    if launch.tensor_parallel_size is None:
        if count % stages:
            message = f"names {count} GPUs, which cannot be divided into {stages} pipeline stages of equal size"
            yield Mistake(gpus, f"{message}; add or remove some", of_value=False, reads=sizes)
    elif count != (needed := launch.tensor_parallel_size * stages):
        message = f"names {count}, but tensor_parallel_size * pipeline_parallel_size is {needed}"
        yield Mistake(gpus, f"{message}; name {needed}, or change the sizes", of_value=False, reads=sizes)


def _placement(place: Place, launch: LaunchSettings) -> Iterator[Mistake]:
    reads: tuple[Place, ...] = ((*place, "placement"),)
    if launch.placement == "ray" and launch.gpus:
        message = 'cannot be combined with placement = "ray", which chooses the GPUs; set tensor_parallel_size'
        yield Mistake((*place, "gpus"), message, of_value=False, reads=reads)
    if launch.placement == "local" and launch.resources:
        message = 'has an effect only with placement = "ray"; set that, or remove it'
        yield Mistake((*place, "resources"), message, of_value=False, reads=reads)


def _speculation(place: Place, launch: LaunchSettings) -> Iterator[Mistake]:
    if launch.speculation is not None and launch.speculation not in get_args(Speculation):
        return  # reported already; the settings below may suit what was meant
    draft: Place = (*place, "draft")
    reads: tuple[Place, ...] = ((*place, "speculation"), draft)
    method = launch.speculation_method
    if launch.draft is None and method in ("draft_model", "eagle", "eagle3"):
        yield Mistake((*place, "speculation"), "needs a draft; set draft to a model", reads=reads)
    if launch.draft is not None and method not in ("draft_model", "eagle", "eagle3"):
        yield Mistake(draft, f"has no effect with speculation = {_quoted(launch.speculation)}; remove it", reads=reads)
    if launch.heterogeneous_vocab and method != "draft_model":
        message = 'is only possible with speculation = "draft_model"; remove it'
        yield Mistake((*place, "heterogeneous_vocab"), message, reads=reads)
    for name in ("prompt_lookup_min", "prompt_lookup_max"):
        if getattr(launch, name) is not None and method != "ngram":
            message = 'has an effect only with speculation = "ngram"; set that, or remove it'
            yield Mistake((*place, name), message, reads=reads)
    least, most = launch.prompt_lookup_min, launch.prompt_lookup_max
    if least is not None and most is not None and least > most:
        longest: Place = (*place, "prompt_lookup_max")
        yield Mistake((*place, "prompt_lookup_min"), "must be at most prompt_lookup_max", reads=(longest,))
    if launch.speculation_max_batch is not None and method is None:
        message = "has no effect without speculation; set draft or speculation, or remove it"
        yield Mistake((*place, "speculation_max_batch"), message, reads=reads)


def _batches(place: Place, launch: LaunchSettings, max_model_len: int | None) -> Iterator[Mistake]:
    tokens, requests = launch.max_num_batched_tokens, launch.max_num_seqs
    where: Place = (*place, "max_num_batched_tokens")
    seqs: Place = (*place, "max_num_seqs")
    if tokens is None:
        return
    if launch.enable_chunked_prefill is False and max_model_len is not None and tokens < max_model_len:
        message = "must be at least the engine's max_model_len if enable_chunked_prefill is false"
        yield Mistake(where, message, reads=((*place[:-1], "max_model_len"), (*place, "enable_chunked_prefill")))
    if requests is None:
        return
    drafted = launch.num_speculative_tokens if launch.speculation_method is not None else 0
    if tokens < requests:
        yield Mistake(where, "must be at least max_num_seqs", reads=(seqs,))
    elif launch.lora and drafted and tokens < requests * (drafted + 1):
        least = requests * (drafted + 1)
        message = f"must be at least {least} with lora: max_num_seqs * (num_speculative_tokens + 1)"
        drafts: tuple[Place, ...] = tuple((*place, name) for name in ("num_speculative_tokens", "speculation", "draft"))
        yield Mistake(where, message, reads=(seqs, *drafts))


def _quoted(name: str | None) -> str:
    return f'"{name}"'
