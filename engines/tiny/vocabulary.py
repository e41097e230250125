"""Tokenizers trained on the spot, each with the special tokens and the chat template of its model family.

All are byte-level BPE, which can encode any text. Their vocabularies differ in size, in the order of their tokens and
in how text is split before merging, like those of the families that they stand for. So token ids of one mean nothing to
a model of another, and vLLM must translate them by spelling (`use_heterogeneous_vocab`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engines.tiny.libraries import Libraries

_TEXT = "(message['content'] if message['content'] is string else '')"
_DOCUMENTS = (
    "{%- set context = namespace(text='') -%}"
    "{%- for document in documents or [] -%}"
    "{%- set context.text = context.text + '\\n' + (document['title'] or '') + ': ' + (document['text'] or '') -%}"
    "{%- endfor -%}"
)

_LLAMA_TEMPLATE = (
    _DOCUMENTS + "{{- bos_token -}}"
    "{%- if context.text -%}"
    "{{- '<|start_header_id|>system<|end_header_id|>' + context.text + '<|eot_id|>' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' + " + _TEXT + " + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>' -}}{%- endif -%}"
)
_QWEN_TEMPLATE = (
    _DOCUMENTS + "{%- if context.text -%}{{- '<|im_start|>system' + context.text + '<|im_end|>' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + " + _TEXT + " + '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_MISTRAL_TEMPLATE = (
    _DOCUMENTS + "{{- bos_token -}}"
    "{%- if context.text -%}{{- '[SYSTEM]' + context.text + '[/SYSTEM]' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{- " + _TEXT + " + eos_token -}}"
    "{%- elif message['role'] in ('system', 'developer') -%}{{- '[SYSTEM]' + " + _TEXT + " + '[/SYSTEM]' -}}"
    "{%- else -%}{{- '[INST]' + " + _TEXT + " + '[/INST]' -}}{%- endif -%}"
    "{%- endfor -%}"
)

_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_SPLIT = _LLAMA_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_MISTRAL_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?\p{Lu}*\p{Ll}+|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)


@dataclass(frozen=True)
class Vocabulary:
    """The properties of a family's tokenizer.

    `size` counts all tokens. `split_pattern` splits the text before bytes are merged. `eos_tokens` are the special
    tokens that end an answer; the first is the end of a turn. A draft reads `unk` for a token that its vocabulary
    lacks.
    """

    family: str
    size: int
    split_pattern: str
    special_tokens: tuple[str, ...]
    bos: str | None
    eos_tokens: tuple[str, ...]
    unk: str | None
    chat_template: str


LLAMA = Vocabulary(
    family="llama",
    size=1536,
    split_pattern=_LLAMA_SPLIT,
    special_tokens=("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    bos="<|begin_of_text|>",
    eos_tokens=("<|eot_id|>", "<|end_of_text|>"),
    unk=None,
    chat_template=_LLAMA_TEMPLATE,
)
QWEN = Vocabulary(
    family="qwen",
    size=2048,
    split_pattern=_QWEN_SPLIT,
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    bos=None,
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    unk="<|endoftext|>",
    chat_template=_QWEN_TEMPLATE,
)
MISTRAL = Vocabulary(
    family="mistral",
    size=1280,
    split_pattern=_MISTRAL_SPLIT,
    special_tokens=("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM]", "[/SYSTEM]"),
    bos="<s>",
    eos_tokens=("</s>",),
    unk="<unk>",
    chat_template=_MISTRAL_TEMPLATE,
)


def train_tokenizer(libraries: Libraries, vocabulary: Vocabulary, texts: Iterable[str]) -> Any:
    """A `PreTrainedTokenizerFast` of exactly `vocabulary.size` tokens, trained on `texts`; deterministic."""
    tokenizers = libraries.tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(vocabulary.split_pattern), behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary.size,
        special_tokens=list(vocabulary.special_tokens),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return libraries.transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=vocabulary.bos,
        eos_token=vocabulary.eos_tokens[0],
        pad_token=vocabulary.eos_tokens[-1],
        unk_token=vocabulary.unk,
        chat_template=vocabulary.chat_template,
        clean_up_tokenization_spaces=False,
    )
