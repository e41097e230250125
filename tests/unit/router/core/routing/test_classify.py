"""Prompts are classified accurately, at a bounded cost, and no input raises."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.classifier_weights import Weight, Weights
from router.core.routing.classify import (
    CHAT_PRIOR,
    END_WEIGHT,
    HEAD_LENGTH,
    LOG_ODDS_PER_FEATURE,
    MAX_FEATURES,
    MAX_SHORT_PROMPT,
    TAIL_LENGTH,
    Classifier,
    feature,
    features,
    is_short,
    name_of,
    probability_of_code,
    separate_end,
)
from router.core.types import Task
from tests.support.paths import ROOT

HERE = Path(__file__).parent
TOOLS = ROOT / "tools"
# Hypothesis refuses function-scoped fixtures, and a classifier is immutable.
SHARED: Final = Classifier.load()


# Words whose weights are large: each occurs in prompts of one kind alone.
COMMON_WORDS: Final = {
    *("python", "git", "select", "list", "test", "hello", "sea", "poem", "error", "linux", "regex", "story", "love"),
    *("function", "sql", "docker", "recipe", "grandmother", "compile", "garden", "segfault", "pandas", "weather"),
}


class Labelled(msgspec.Struct, frozen=True):
    prompt: str
    task: Task


def weights(bias: int, **words: int) -> Weights:
    """The same weights for short and for long prompts."""
    return Weights(Weight(bias, bias), {word: Weight(weight, weight) for word, weight in words.items()})


def explained(classifier: Classifier, prompt: str) -> dict[str, float]:
    """An explanation, rounded, so that the order of a sum does not matter."""
    return {name: round(amount, 9) for name, amount in classifier.explain(prompt)}


def environment(seed: str) -> dict[str, str]:
    """The environment of another process, in which sets have another order."""
    return {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}


def figures(classifier: Classifier, path: Path) -> tuple[int, float, float]:
    """The number of prompts, the number classified correctly, and the F1 score of code."""
    verdicts = [(one.task, classifier.classify(one.prompt).task) for one in labelled(path)]
    both = verdicts.count(("code", "code"))
    f1 = 2 * both / (2 * both + verdicts.count(("code", "chat")) + verdicts.count(("chat", "code")))
    return len(verdicts), sum(truth == verdict for truth, verdict in verdicts) / len(verdicts), f1


def labelled(path: Path) -> list[Labelled]:
    return [msgspec.json.decode(line, type=Labelled) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier.load()


def test_prompts_outside_the_training_data_are_classified(classifier: Classifier) -> None:
    count, accuracy, f1 = figures(classifier, HERE / "classify_prompts.jsonl")

    assert count >= 120
    assert accuracy >= 0.92
    assert f1 >= 0.92


def test_prompts_of_other_kinds_and_languages_are_classified(classifier: Classifier) -> None:
    count, accuracy, f1 = figures(classifier, HERE / "classify_kinds.jsonl")

    assert count >= 200
    assert accuracy >= 0.88
    assert f1 >= 0.88


def test_prompts_of_kinds_that_are_easily_confused_are_told_apart(classifier: Classifier) -> None:
    count, accuracy, f1 = figures(classifier, HERE / "classify_confusable.jsonl")

    assert count >= 200
    assert accuracy >= 0.9
    assert f1 >= 0.9


def test_prompts_of_a_few_words_are_classified(classifier: Classifier) -> None:
    count, accuracy, f1 = figures(classifier, HERE / "classify_short.jsonl")

    assert count >= 240
    assert accuracy >= 0.95
    assert f1 >= 0.85


def test_no_test_prompt_is_among_the_examples_for_training() -> None:
    def bare(prompt: str) -> str:
        return re.sub(r"\W+", " ", prompt).casefold().strip() or prompt

    files = (TOOLS / "classifier_examples.jsonl", TOOLS / "classifier_few_words.jsonl")
    trained = {bare(one.prompt) for file in files for one in labelled(file)}
    for name in ("classify_prompts.jsonl", "classify_kinds.jsonl", "classify_confusable.jsonl", "classify_short.jsonl"):
        assert not trained & {bare(one.prompt) for one in labelled(HERE / name)}


@pytest.mark.parametrize(
    "prompt",
    [
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n\nwhy is this function slow?",
        "Write a SQL query that joins orders and customers",
        'Traceback (most recent call last):\n  File "app.py", line 3, in <module>\nKeyError: 1',
        "用Python写一个函数计算数组的平均值",
        "Напиши функцию на Python, которая сортирует массив",
        "파이썬 함수 코드를 작성해줘",
    ],
)
def test_a_prompt_that_asks_for_a_program_is_code(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "code"


@pytest.mark.parametrize(
    "prompt",
    [
        "Write a poem about the autumn rain",
        "Write a poem about a programmer in love",
        "What is the derivative of x^3 + 2x?",
        "给我讲一个关于月亮的故事",
        "Придумай сказку про медведя",
        "Erzähl mir eine Geschichte über einen Drachen",
    ],
)
def test_a_prompt_that_asks_for_prose_or_mathematics_is_chat(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "chat"


@pytest.mark.parametrize(
    "prompt",
    [
        "Given n ropes, join them into one at the least cost.\n\nInput\nn, then n integers\n\nOutput\nOne integer",
        "给定一个长度为 n 的整数序列 求最长的不下降子序列\n\n输入格式\n第一行一个整数 n\n\n输出格式\n一个整数",
        "Cho dãy n số nguyên. Tìm đoạn con có tổng lớn nhất.\nInput: dòng đầu là n\nOutput: một số nguyên",
        "Дан массив из n чисел. Найдите количество нечётных пар. Входные данные: n. Выходные данные: одно число.",
        "Diberikan N bilangan. Cari selisih terkecil.\nFormat masukan: N bilangan\nFormat keluaran: satu bilangan",
    ],
)
def test_a_contest_problem_that_names_no_language_is_code(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "code"


@pytest.mark.parametrize(
    "prompt",
    [
        "Напишите программу, которая вычисляет площадь трапеции",
        "编写一个程序计算两个矩阵的和",
        "Viết chương trình tính tổng các chữ số của một số nguyên",
        "Buat program untuk mencari akar persamaan kuadrat",
        "Escribe un programa que calcule la media de una lista de números",
    ],
)
def test_a_program_about_mathematics_is_code_in_any_language(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "code"


@pytest.mark.parametrize(
    "prompt",
    [
        "How many ways are there to seat 5 people in a row of 9 chairs?",
        "用数字1到5可以组成多少个没有重复数字的三位数",
        "Сколькими способами можно выбрать двух дежурных из 20 учеников?",
        "Có bao nhiêu cách chọn 3 học sinh từ 12 học sinh?",
        "¿De cuántas maneras se pueden ordenar seis personas en una fila?",
    ],
)
def test_short_combinatorics_is_chat(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "chat"


@pytest.mark.parametrize(
    "prompt",
    [
        "You are a lighthouse keeper in 1890. Stay in character, answer in three sentences, and end with a question.",
        "You are an assistant that plans birthday parties. Ask for the number of guests, then make a schedule.",
        "Write a validation protocol for a freezer: purpose, responsibilities, test cases and acceptance criteria.",
        "Составь план работы отдела на месяц: задачи, сроки, ответственные.",
        "Extract the names and the dates and return them as JSON: Ruth met Karl on 3 May.",
        "Извлеки имена гостей из письма: Анна привезёт Петра, Ольга приедет одна.",
        "Write a script for a short video about my grandmother's garden",
        "Viết kịch bản cho một video ngắn về quán phở",
        "Simulate an interview with a beekeeper",
        "Make the case for a four-day week",
    ],
)
def test_role_play_plans_extraction_and_everyday_words_are_chat(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "chat"


@pytest.mark.parametrize(
    ("request_text", "task"),
    [
        ("Write a Python function that counts the words of this text.", "code"),
        ("Rewrite this as a cheerful letter to my grandmother.", "chat"),
    ],
)
def test_the_request_at_the_end_of_a_document_decides(classifier: Classifier, request_text: str, task: Task) -> None:
    document = "We keep a list of all guests, with the day on which they came and the room in which they slept. " * 20

    assert classifier.classify(f"{document}\n\n{request_text}").task == task


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n\n", "\x00", "\ud800", "🦙", "!", "...", "👋👋", "42", "1 2 3", "-", "10:30"]
)
def test_a_prompt_without_content_is_chat(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "chat"


@pytest.mark.parametrize(
    "prompt",
    [
        *("hi", "Hello", "hello!", "test", "Test 1", "testing", "ok", "thank you", "word", "Once upon a time"),
        *("hello world", "Guten Tag", "bonjour", "¡Hola!", "olá", "привет", "тест", "你好", "测试", "こんにちは"),
        *("안녕하세요", "مرحبا", "नमस्ते"),
    ],
)
def test_a_greeting_or_a_test_of_the_connection_is_chat(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "chat"


@pytest.mark.parametrize("word", ["next", "data", "Check.", "python", "SELECT", "module?", " unit\n", "代码"])
def test_a_single_word_is_chat_whatever_its_weight(classifier: Classifier, word: str) -> None:
    verdict = classifier.classify(word)

    assert verdict.task == "chat"
    assert verdict.score <= 0.5
    assert Classifier(weights(0, **{word.strip(" \n.?").lower(): 900})).task(word) == "chat"


def test_what_a_single_word_lacks_to_be_code_is_part_of_its_explanation() -> None:
    classifier = Classifier(weights(-100, python=800))

    assert explained(classifier, "python") == {"python": 8.0, "(bias)": -2.0, "(one word)": -6.0}
    assert explained(classifier, "python 3")["python"] > 0
    assert "(one word)" not in explained(classifier, "python 3")


@pytest.mark.parametrize("prompt", ["SELECT * FROM users", "print(x)", "git push", "npm install", "def main():"])
def test_a_prompt_that_is_itself_a_piece_of_a_program_is_code(classifier: Classifier, prompt: str) -> None:
    assert classifier.classify(prompt).task == "code"


@given(
    st.lists(st.sampled_from(sorted(COMMON_WORDS)), max_size=4).map(" ".join)
    | st.text(max_size=12)
    | st.lists(st.sampled_from(sorted(COMMON_WORDS)), max_size=2).map(lambda words: " ".join(words * 50))
)
def test_a_prompt_of_few_features_is_never_certain(text: str) -> None:
    # 0.68, 0.82, 0.90, 0.95, ..., whatever the weights, and however often a word is repeated.
    certain = probability_of_code(LOG_ODDS_PER_FEATURE * (len(set(features(text))) + 1))

    assert 1 - certain - 1e-9 <= SHARED.classify(text).score <= certain + 1e-9


def test_few_features_have_to_outweigh_the_prior_of_chat() -> None:
    assert Classifier(weights(0, test=round(100 * CHAT_PRIOR / 2))).task("a test") == "chat"
    assert Classifier(weights(0, test=round(100 * CHAT_PRIOR / 2) + 1)).task("a test") == "code"


def test_the_bound_of_the_certainty_scales_an_explanation() -> None:
    classifier = Classifier(weights(-100, python=800))

    assert classifier.log_odds("a python") == 2 * LOG_ODDS_PER_FEATURE
    assert explained(classifier, "a python") == {
        "python": 2 * LOG_ODDS_PER_FEATURE * 8 / 6,
        "(bias)": -2 * LOG_ODDS_PER_FEATURE * 2 / 6,
    }


@given(st.text(st.characters() | st.sampled_from("\ud800\ufeff\u2019\x00\x01?_#\\\n 函数コード함수код")))
def test_any_text_has_a_verdict_that_is_the_sum_of_its_explanation(text: str) -> None:
    verdict = SHARED.classify(text)
    log_odds = sum(amount for _, amount in SHARED.explain(text))

    assert 0 <= verdict.score <= 1
    assert verdict.task == ("code" if verdict.score > 0.5 else "chat")
    assert (log_odds > 1e-9) <= (verdict.task == "code") <= (log_odds > -1e-9)


@given(st.text(), st.text(min_size=1), st.text())
def test_text_between_the_ends_of_a_long_prompt_changes_nothing(start: str, middle: str, end: str) -> None:
    head, tail = start.ljust(HEAD_LENGTH, "a")[:HEAD_LENGTH], end.rjust(TAIL_LENGTH, "z")[-TAIL_LENGTH:]

    assert features(head + middle + tail) == features(head + middle * 2 + "def main():" + tail)


@given(st.text(st.characters() | st.sampled_from("a;字é ф"), min_size=1), st.integers(1, 1000))
def test_the_features_of_the_longest_prompt_are_no_more_than_its_window_has_characters(text: str, times: int) -> None:
    assert len(features(text * times)) <= MAX_FEATURES


def test_an_instruction_at_either_end_of_a_long_document_is_read(classifier: Classifier) -> None:
    document = "The quick brown fox jumps over the lazy dog. " * 2000

    for prompt in (f"Fix the python function\n{document}", f"{document}\nFix the python function"):
        assert "python" in dict(classifier.explain(prompt))


def test_the_end_of_a_prompt_counts_for_itself_only_if_the_middle_is_not_read() -> None:
    window = "a" * (HEAD_LENGTH + TAIL_LENGTH)

    assert separate_end(window) is None
    assert separate_end(window + "end") == ("a" * 80 + "end")[-80:]
    assert separate_end("字" * 128) is None
    assert separate_end("字" * 129) == "字" * 40
    assert separate_end("ф" * 220) is None
    assert separate_end("ф" * 221) == "ф" * 80


def test_the_end_is_scored_with_the_weights_of_short_prompts() -> None:
    classifier = Classifier(Weights(bias=Weight(0, -100), features={"python": Weight(short=500, long=-30)}))
    prompt = "a " * 1000 + "python"

    assert explained(classifier, prompt) == {"python": -0.3 + END_WEIGHT * 5, "(bias)": -1.0 - CHAT_PRIOR / 2}
    assert classifier.task(prompt) == classifier.classify(prompt).task == "code"


def test_typographic_quotes_do_not_change_how_english_is_read() -> None:
    assert features("why doesn\u2019t my \u201cfor loop\u201d end\u2026") == features("why doesn t my  for loop  end ")


def test_words_symbols_and_layout_are_features() -> None:
    names = set(features("#include <map>\nint main() {\n    f_1 = c++;\n}"))

    assert {"#include", "int", "main", "f_1", "c++", "()", "~\n    ", "~_"} <= names


def test_scripts_without_spaces_are_split_into_pairs_and_inflected_words_are_truncated() -> None:
    names = [name_of(one) for one in features("编写函数 コード 프로그램을 คำสั่ง")]

    assert {"编写", "写函", "函数", "コー", "ード", "프로", "คำ"} <= set(names)
    assert {"функц", "lambda", "été"} <= set(features("функциями lambda été"))


def test_latin_words_between_characters_without_spaces_are_found() -> None:
    assert {"python", "c++"} <= set(features("用Python写函数或者用C++"))


@given(st.text(st.sampled_from("编写函数コード함수คำ"), min_size=2, max_size=40))
def test_every_pair_is_found_by_its_name(text: str) -> None:
    pairs = [one for one in features(text) if isinstance(one, int)]

    assert len(pairs) == len(text) - 1
    assert [feature(name_of(one)) for one in pairs] == pairs


def test_an_explanation_names_the_feature_with_the_largest_weight_first() -> None:
    classifier = Classifier(weights(-50, python=250, poem=-300, unseen=900))

    assert explained(classifier, "a Python poem") == {
        "poem": round(-3 / 2**0.5, 9),
        "python": round(2.5 / 2**0.5, 9),
        "(bias)": round(-0.5 - CHAT_PRIOR / 3, 9),
    }
    assert next(iter(explained(classifier, "a Python poem"))) == "poem"
    assert classifier.classify("a Python poem").task == "chat"
    assert classifier.classify("a python").task == "code"


def test_an_explanation_can_be_printed() -> None:
    classifier = Classifier(weights(0, **{"~\n    ": 1, "~;\n": 1, "~\n\t": 1, ";\x01": 1}))
    names = dict(classifier.explain("def f(x):\n\ty = x;\n    return y;\n"))

    assert {"~⏎    ", "~;⏎", "~⏎⇥", ";⏎"} <= names.keys()
    assert all(name.isprintable() for name in names)


def test_a_feature_counts_once_however_often_it_occurs() -> None:
    classifier = Classifier(weights(0, python=100, poem=-90))

    assert classifier.classify("poem poem poem python") == classifier.classify("python poem")


def test_the_weights_are_small_enough_to_ship_and_tend_to_chat_where_nothing_is_known() -> None:
    packed = (ROOT / "router" / "core" / "routing" / "classify_weights.json").read_bytes()

    assert len(packed) < 200_000
    assert msgspec.json.decode(packed, type=Weights).bias.short < 0


def test_short_and_long_prompts_have_weights_of_their_own() -> None:
    classifier = Classifier(Weights(bias=Weight(0, 0), features={"python": Weight(short=300, long=-300)}))

    at_the_limit = "a python" + " " * (MAX_SHORT_PROMPT - len("a python"))
    assert is_short(at_the_limit)
    assert classifier.classify(at_the_limit).task == "code"
    assert classifier.classify(at_the_limit + " ").task == "chat"


def test_the_verdict_is_the_same_in_every_process() -> None:
    script = (
        "from router.core.routing.classify import Classifier; import sys; "
        "print([repr(Classifier.load().classify(line).score) for line in sys.stdin])"
    )
    prompts = "\n".join(one.prompt.replace("\n", " ") for one in labelled(HERE / "classify_kinds.jsonl")[::7])

    def scores(seed: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", script],
            input=prompts,
            check=True,
            capture_output=True,
            env=environment(seed),
            encoding="utf-8",
        )
        return ran.stdout

    assert scores("1") == scores("2")
