"""The cost of classifying a prompt, by kind and length; the load time of the weights, and their memory.

    .venv/bin/python -m benchmarks.classify [--repeats 300]

The measured region is `Classifier.classify` alone, called in a loop. The result is the time of the fastest of many
loops, which other programs disturbed least. Lengths are in bytes of UTF-8, so 2000 is the "2 KB prompt" of the target
(30 us) in every script.
"""

import argparse
import timeit
import tracemalloc
from collections.abc import Callable

from router.core.routing.classify import Classifier

CALLS = 50
LENGTHS = (100, 500, 2000, 100_000)

PROMPTS = {
    "English": "How would you explain to a new colleague why meetings on Monday morning are rarely a good idea? ",
    "Python": "def mean(values: list[float]) -> float:\n    total = sum(values)\n    return total / len(values)\n\n",
    "minified": "!function(e,t){e.a=t(b)?c[0]:{d:1,...f};for(;;)g+=`${h}`}(i,()=>j&&k||l);",
    "log": '2031-05-04T11:22:33.123Z ERROR [worker-7] db.pool: timeout after 3000ms (id=8f3a, retry=2) at "x.y:44"\n',
    "letters and signs": "a;b,c.d/e(f)g[h]i{j}k<l>m=n+o-p*q&r|s^t%u$v#w@x!y?z~",
    "French": "Pourquoi la fonction récursive « été » ne s\u2019arrête-t-elle jamais, même si la liste est triée ? ",
    "Russian": "Объясните, пожалуйста, почему рекурсивная функция не завершается, если список уже отсортирован. ",
    "Arabic": "اشرح لي من فضلك لماذا لا تتوقف هذه الدالة عندما تكون القائمة مرتبة من قبل، وكيف أصلحها. ",
    "Hindi": "कृपया समझाइए कि सूची पहले से क्रमबद्ध होने पर यह फ़ंक्शन क्यों नहीं रुकता और इसे कैसे ठीक करें। ",
    "Chinese": "请解释一下当列表已经排好序的时候为什么这个递归函数一直停不下来、应该怎么修改代码。",
    "Japanese": "リストがすでに並べ替えられているとき、この再帰関数が終わらないのはなぜですか。直し方も教えて。",
    "Korean": "목록이 이미 정렬되어 있을 때 이 재귀 함수가 끝나지 않는 이유와 고치는 방법을 설명해 주세요. ",
    "Thai": "ช่วยอธิบายหน่อยว่าทำไมฟังก์ชันนี้ถึงไม่หยุดทำงานเมื่อรายการถูกเรียงลำดับไว้แล้ว",
    "emoji": "🦙🎉👩‍💻✨",
    "signs and ideographs": "字;a,典.b/文(c)法[d]語{e}言",
}


def fastest(work: Callable[[], object], repeats: int, calls: int = CALLS) -> float:
    """Microseconds per call, in the fastest loop."""
    return min(timeit.repeat(work, number=calls, repeat=repeats)) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the classifier takes.")
    parser.add_argument("--repeats", type=int, default=300, help="loops of 50 calls, of which the fastest counts")
    arguments = parser.parse_args()

    tracemalloc.start()
    classifier = Classifier.load()
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"load: {fastest(Classifier.load, arguments.repeats // 10, 1) / 1000:.1f} ms, {memory / 1e6:.1f} MB\n")

    print("| microseconds | " + " | ".join(f"{length:,} bytes" for length in LENGTHS) + " |")
    print("| --- |" + " --- |" * len(LENGTHS))
    for kind, phrase in PROMPTS.items():
        encoded = phrase.encode()
        texts = [(encoded * (length // len(encoded) + 1))[:length].decode("utf-8", "ignore") for length in LENGTHS]
        times = [fastest(lambda text=text: classifier.classify(text), arguments.repeats) for text in texts]  # type: ignore[misc]
        print(f"| {kind} | " + " | ".join(f"{time:.0f}" for time in times) + " |", flush=True)


if __name__ == "__main__":
    main()
