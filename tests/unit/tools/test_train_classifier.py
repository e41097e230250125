"""The training of the classifier: the weights in the package can be made again."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

TOOLS = ROOT / "tools"


def test_the_same_examples_train_the_same_weights(tmp_path: Path) -> None:
    def few(name: str) -> str:
        lines = (TOOLS / name).read_text(encoding="utf-8").splitlines(keepends=True)
        path = tmp_path / name
        path.write_text("".join(lines[::12]), encoding="utf-8")
        return str(path)

    examples = ["--examples", few("classifier_examples.jsonl"), "--documents", few("classifier_documents.jsonl")]
    examples += ["--few-words", few("classifier_few_words.jsonl")]

    def trained(out: Path, seed: str) -> bytes:
        script = [sys.executable, str(TOOLS / "train_classifier.py"), *examples, "--repeats", "0"]
        # With another seed, sets have another order.
        environment = {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run([*script, "--out", str(out)], check=True, capture_output=True, env=environment)
        return out.read_bytes()

    assert trained(tmp_path / "one.json", "1") == trained(tmp_path / "two.json", "2")
