"""What only a GPU shows of engines that take turns: `python -m tools.gpu_check`, in less than ten minutes.

    python -m tools.gpu_check --target ./models/llama --vllm-python .venv-vllm/bin/python
    python -m tools.gpu_check --target Qwen/Qwen3-0.6B --json gpu-check.json

`roundhouse up` starts two engines with the model on one GPU, of which each takes 60 % of its memory, so that they fit
only one at a time. For both levels of vLLM's sleep, it checks that

- both start, although the first one has had the memory that the second one takes;
- a request for the engine that sleeps wakes it up, and a hit wakes nobody;
- the memory of the one that falls asleep is free, by NVML;
- an engine answers after its sleep with the same tokens as before, with level 2 from weights that are loaded again;
- streams run to their end before their engine sleeps.

It prints a line for each check with its seconds, and ends with status 1 if one fails. It needs the package
nvidia-ml-py for the memory; without it, that check is left out.
"""

import argparse
import contextlib
import importlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from tests.support.ports import free_port

NAMES: Final = ("first", "second")
SHARE: Final = 0.6
"""Of the GPU's memory, for each engine."""

_START_TIMEOUT: Final = 240.0  # seconds
_REQUEST_TIMEOUT: Final = 120.0  # seconds
_ENGINE: Final = """
[[engine]]
name = "{name}"
model = "{name}"
url = "http://127.0.0.1:{port}"
sleep = "vllm"
sleep_level = {level}
[engine.launch]
target = {target}
device = "gpu"
gpus = [{gpu}]
gpu_memory_utilization = {share}
args = {args}
"""


class Check(NamedTuple):
    """`seconds`: how long it took. `detail`: what was measured, or what is wrong."""

    name: str
    is_right: bool
    seconds: float
    detail: str = ""


class CheckFailedError(Exception):
    """What is wrong."""


def configuration(options: argparse.Namespace, level: int, folder: Path, ports: dict[str, int], port: int) -> str:
    text = f'[router]\nport = {port}\nstate = "{folder}/state"\nexplore = 0\n'
    text += "".join(f'[[model]]\nname = "{name}"\n' for name in NAMES)
    for name in NAMES:
        text += _ENGINE.format(
            name=name, port=ports[name], level=level, gpu=options.gpu, share=SHARE, target=json.dumps(options.target),
            args=json.dumps(options.args),
        )  # fmt: skip
    return text + '[[gpu]]\nname = "gpu"\nengines = ["first", "second"]\n'


@contextlib.contextmanager
def running(options: argparse.Namespace, level: int) -> Iterator["Tree"]:
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        folder, ports, port = Path(name), {each: free_port() for each in NAMES}, free_port()
        config = folder / "roundhouse.toml"
        config.write_text(configuration(options, level, folder, ports, port), encoding="utf-8")
        argv = [sys.executable, "-m", "router", "up", "--config", str(config), "--engines", options.engines]
        if options.vllm_python is not None:
            argv += ["--vllm-python", str(options.vllm_python)]
        log = folder / "up.log"
        with log.open("wb") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            yield Tree(process, log, folder, f"http://127.0.0.1:{port}", ports)
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


class Tree:
    """A `roundhouse up`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", log: Path, folder: Path, url: str, ports: dict[str, int]
    ) -> None:
        self._process = process
        self._log = log
        self._folder = folder
        self._ports = ports
        self.http = httpx.Client(base_url=url, timeout=_REQUEST_TIMEOUT)

    def wait_until_ready(self) -> str:
        end = time.monotonic() + _START_TIMEOUT
        while "stop: Ctrl-C" not in self._log.read_text(encoding="utf-8", errors="replace"):
            if self._process.poll() is not None or time.monotonic() > end:
                logs = [self._log, *sorted(self._folder.glob("state/logs/*.log"))]
                ends = [f"--- {each.name}\n{each.read_text(errors='replace')[-3000:]}" for each in logs]
                raise CheckFailedError("`roundhouse up` did not come up:\n" + "\n".join(ends))
            time.sleep(0.5)
        self._expect_awake("first")
        return ""

    def ask(self, model: str, prompt: str, *, cached: bool = False) -> str:
        body = {
            "model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 32,
        }  # fmt: skip
        answer = self.http.post("/v1/chat/completions", json=body)
        if answer.status_code != httpx.codes.OK:
            raise CheckFailedError(f"status {answer.status_code}: {answer.text[:300]}")
        wanted = "HIT" if cached else "MISS"
        if answer.headers["x-cache"] != wanted:
            raise CheckFailedError(f"X-Cache is {answer.headers['x-cache']}, not {wanted}")
        return str(answer.json()["choices"][0]["message"]["content"])

    def _expect_awake(self, name: str) -> None:
        for each, port in self._ports.items():
            sleeps = httpx.get(f"http://127.0.0.1:{port}/is_sleeping", timeout=30).json()["is_sleeping"]
            if sleeps is (each == name):
                raise CheckFailedError(f"{each} is {'asleep' if sleeps else 'awake'}")

    def wake(self, name: str, prompt: str) -> str:
        """By a request that is no hit."""
        self.ask(name, prompt)
        self._expect_awake(name)
        return ""

    def hit(self, name: str, prompt: str, awake: str) -> str:
        self.ask(name, prompt, cached=True)
        self._expect_awake(awake)
        return ""

    def stream_and_switch(self, name: str, other: str) -> str:
        """A stream of one engine, during which the other one is wanted."""
        body = {
            "model": name, "messages": [{"role": "user", "content": "Count to a thousand."}], "stream": True,
            "max_tokens": 300, "temperature": 0,
        }  # fmt: skip
        chunks = 0
        with self.http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            argv = [sys.executable, "-m", "router", "engines", "wake", other, "--no-wait"]
            config = str(self._folder / "roundhouse.toml")
            subprocess.run([*argv, "--config", config], check=True, timeout=60, capture_output=True)
            last = ""
            for line in lines:
                chunks += 1
                last = line or last
        if last != "data: [DONE]":
            raise CheckFailedError(f"the stream ended with {last[:100]}")
        return f"{chunks} lines"


def free_memory(gpu: int) -> int | None:
    """In bytes; None if NVML cannot be asked."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(gpu)).free)
    except Exception:  # noqa: BLE001 - it is missing, or has no GPU: whatever it is, the memory is unknown
        return None


def checks(options: argparse.Namespace, level: int) -> Iterator[Check]:
    def run(name: str, what: Callable[[], str]) -> Check:
        began = time.monotonic()
        try:
            detail, is_right = what(), True
        except (CheckFailedError, httpx.HTTPError, KeyError, ValueError) as error:
            detail, is_right = str(error) or repr(error), False
        return Check(f"level {level}: {name}", is_right, round(time.monotonic() - began, 1), detail)

    with running(options, level) as tree:
        started = run("both engines start, and one is awake", tree.wait_until_ready)
        yield started
        if not started.is_right:
            return
        texts: dict[str, str] = {}

        def first_answers() -> str:
            texts["first"] = tree.ask("first", "What is the sea?")
            return f"{texts['first'][:60]!r}"

        def same_answer() -> str:
            body = {
                "model": "first", "messages": [{"role": "user", "content": "What is the sea?"}], "temperature": 0,
                "max_tokens": 32,
            }  # fmt: skip
            answer = tree.http.post("/v1/chat/completions", json=body, headers={"cache-control": "no-cache"})
            found = str(answer.json()["choices"][0]["message"]["content"])
            if found != texts["first"]:
                raise CheckFailedError(f"{found[:100]!r} and not {texts['first'][:100]!r}")
            return ""

        def memory() -> str:
            free = free_memory(options.gpu)
            if free is None:
                return "left out: NVML cannot be asked (pip install nvidia-ml-py)"
            nvml = importlib.import_module("pynvml")
            total = int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(options.gpu)).total)
            if free < (1 - SHARE - 0.15) * total:
                raise CheckFailedError(f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free with one awake")
            return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free with one awake"

        yield run("the first one answers", first_answers)
        yield run("memory of the engine that sleeps is free", memory)
        yield run("a request wakes the second one up", lambda: tree.wake("second", "What is a hill?"))
        yield run("a hit wakes nobody", lambda: tree.hit("first", "What is the sea?", "second"))
        yield run("memory of the first one is free", memory)
        yield run("the first one answers as before its sleep", same_answer)
        yield run("a request wakes the second one up again", lambda: tree.wake("second", "What is a lake?"))
        yield run("a stream ends before its engine sleeps", lambda: tree.stream_and_switch("second", "first"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, help="a small model: a folder, or a name on the Hugging Face hub")
    parser.add_argument("--vllm-python", type=Path, help="the interpreter that vLLM is installed in; this one")
    parser.add_argument(
        "--engines", choices=("vllm", "simulator"), default="vllm", help="simulated: to try this script"
    )
    parser.add_argument("--gpu", type=int, default=0, help="its index, as in nvidia-smi")
    parser.add_argument("--level", type=int, choices=(1, 2), action="append", help="of vLLM's sleep; both")
    parser.add_argument("--args", nargs="*", default=["--enforce-eager", "--max-model-len", "1024"], help="of vLLM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the checks there")
    options = parser.parse_args()
    done = []
    for level in options.level or (1, 2):
        for check in checks(options, level):
            done.append(check)
            word = "ok  " if check.is_right else "FAIL"
            sys.stdout.write(f"{word} {check.seconds:6.1f} s  {check.name}  {check.detail}\n")
            sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps([check._asdict() for check in done], indent=2) + "\n", encoding="utf-8")
    return 0 if all(check.is_right for check in done) else 1


if __name__ == "__main__":
    sys.exit(main())
