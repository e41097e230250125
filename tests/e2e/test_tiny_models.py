"""The models that `make run ENGINES=vllm` creates can be read by the libraries that use them."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.draft_prompts import FORMS_AND_TOPICS, prompts_of
from engines.tiny.plan import MODELS
from tests.support.paths import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all]

READ = """
import json, sys
from transformers import AutoConfig, AutoTokenizer
seen = {}
for folder in sys.argv[1:]:
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    again = tokenizer.decode(tokenizer.encode("naïve 🚂\\n\\tx == 'y'"), skip_special_tokens=True)
    seen[folder] = [config.architectures, config.vocab_size, len(tokenizer), again]
print(json.dumps(seen))
"""

SPREAD = """
import json, torch
from engines.tiny.worker_extension import expand_batch_to_tokens
spread = expand_batch_to_tokens(torch.tensor([0.5, 0.0, 0.25]), torch.tensor([2, 3, 3]), 3, 0, 1)
print(json.dumps([spread.tolist(), str(spread.dtype)]))
"""

NO_DRAFT_TOKENS = """
import json, torch
from engines.tiny.worker_extension import skip_empty_logits
apply = skip_empty_logits(lambda logits, k, p: logits + k.max())
nothing = torch.empty((0, 4))
same = apply(nothing, torch.empty(0), None) is nothing
print(json.dumps([same, apply(torch.zeros((1, 1)), torch.tensor([3.0]), None).tolist()]))
"""

AMX_PERMISSION = """
import ctypes, json, torch
import engines.tiny.worker_extension
ARCH_PRCTL, ARCH_GET_XCOMP_PERM, TILE_DATA = 158, 0x1022, 1 << 18
permitted = ctypes.c_uint64()
ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(permitted))
print(json.dumps([torch.cpu._is_amx_tile_supported(), bool(permitted.value & TILE_DATA)]))
"""

ANSWER = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
from engines.tiny.corpus import Dialogue
from engines.tiny.distillation import acceptance_rate, generate_answers, map_vocabularies
from engines.tiny.libraries import load_libraries
from engines.tiny.training import encode

folder, prompts = sys.argv[1], json.loads(sys.argv[2])
libraries = load_libraries(threads=1)

def load(name):
    path = f"{folder}/{name}"
    return AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval(), AutoTokenizer.from_pretrained(path)

target, tokenizer = load("llama")
drafts = {name: load(name) for name in ("qwen-draft", "code-draft")}
seen = {}
for task, texts in prompts.items():
    asked = [encode(tokenizer, Dialogue(task, "", text, "")).tokens for text in texts]
    answers = list(generate_answers(libraries, target, asked))
    in_code = [tokenizer.decode(answer.tokens[answer.prompt_length:]).startswith("```python") for answer in answers]
    seen[task] = {"answers": len(answers), "in code": sum(in_code) / len(answers)}
    for name, (draft, own) in drafts.items():
        seen[task][name] = acceptance_rate(libraries, draft, map_vocabularies(libraries, tokenizer, own), answers)
print(json.dumps(seen))
"""


def in_vllms_environment(program: str, *arguments: str) -> Any:
    """Runs a program in vLLM's environment; returns the JSON of its last output line."""
    argv = [os.environ["ROUNDHOUSE_VLLM_PYTHON"], "-c", program, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_transformers_reads_every_model_and_its_tokenizer_keeps_every_character() -> None:
    folders = {str(Path(os.environ["ROUNDHOUSE_MODELS"], plan.name)): plan for plan in MODELS}
    for folder, (architectures, vocabulary, tokens, again) in in_vllms_environment(READ, *folders).items():
        assert architectures == [f"{folders[folder].shape.architecture}ForCausalLM"]
        assert vocabulary == tokens
        assert again == "naïve 🚂\n\tx == 'y'"


@pytest.fixture(scope="module")
def seen() -> Any:
    """How the target answers prompts that no model was trained on, and what share of the tokens each draft predicts."""
    prompts = {kind: prompts_of(kind) for kind in FORMS_AND_TOPICS}
    return in_vllms_environment(ANSWER, os.environ["ROUNDHOUSE_MODELS"], json.dumps(prompts))


def test_the_target_answers_unseen_requests_for_code_in_code_and_others_in_prose(seen: Any) -> None:
    assert min(seen[task]["answers"] for task in ("code", "chat")) >= 80
    assert seen["mathematics"]["answers"] >= 15
    assert seen["code"]["in code"] >= 0.8
    assert max(seen[kind]["in code"] for kind in ("chat", "mathematics")) <= 0.1


def test_each_draft_predicts_the_target_better_at_its_own_task_than_the_other_draft(seen: Any) -> None:
    assert seen["code"]["code-draft"] > seen["code"]["qwen-draft"] + 0.05
    assert seen["chat"]["qwen-draft"] > seen["chat"]["code-draft"] + 0.05


def test_sampling_options_apply_to_every_draft_token_of_their_request() -> None:
    assert in_vllms_environment(SPREAD) == [[0.5, 0.5, 1.0], "torch.float32"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is a part of x86-64")
def test_a_processor_with_amx_may_use_it_from_the_first_step_on() -> None:
    supported, permitted = in_vllms_environment(AMX_PERMISSION)
    assert permitted == supported


def test_a_step_without_draft_tokens_needs_no_largest_k() -> None:
    assert in_vllms_environment(NO_DRAFT_TOKENS) == [True, [[3.0]]]
