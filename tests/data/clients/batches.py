import json
import tempfile
import time
from pathlib import Path

from openai import NotFoundError, OpenAI

client = OpenAI()
ENDED = ("completed", "failed", "expired", "cancelled")


def request(custom_id, model, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": f"Tell me about {custom_id}."}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def create(file):
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
        metadata={"description": "nightly"},
    )  # fmt: skip


def wait(batch):
    while batch.status not in ENDED:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "requests.jsonl")
    path.write_text(request("sea", "llama") + request("land", "llama") + request("air", "llama", temperature="hot"))
    with path.open("rb") as content:
        file = client.files.create(file=content, purpose="batch")
    # A path, as well.
    waiting_file = Path(folder, "waiting.jsonl")
    waiting_file.write_text(request("fire", "mistral"))
    waiting = client.files.create(
        file=waiting_file, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    file = client.files.wait_for_processing(file.id)

    done = wait(create(file))
    answers = client.files.content(done.output_file_id).text
    errors = client.files.content(done.error_file_id).read().decode()
    copy = Path(folder, "copy.jsonl")
    client.files.content(file.id).write_to_file(copy)
    streamed = Path(folder, "streamed.jsonl")
    with client.files.with_streaming_response.content(file.id) as response:
        response.stream_to_file(streamed)
    is_whole = path.read_bytes() == copy.read_bytes() == streamed.read_bytes()

batches = [done, *[create(waiting) for _ in range(4)]]
cancelled = [wait(batch) for batch in [client.batches.cancel(batch.id) for batch in batches[1:]]]
listed = [batch.id for batch in client.batches.list(limit=2)]
files = [each.id for each in client.files.list(purpose="batch", order="asc", limit=1)]
deleted = client.files.delete(file.id)
try:
    client.files.retrieve(file.id)
except NotFoundError as error:
    missing = error.code

print(
    json.dumps(
        {
            "file": [file.filename, file.purpose, file.status],
            "expires": waiting.expires_at - waiting.created_at,
            "metadata": done.metadata,
            "counts": done.request_counts.to_dict(),
            "answers": sorted(json.loads(line)["custom_id"] for line in answers.splitlines()),
            "errors": [json.loads(line)["response"]["status_code"] for line in errors.splitlines()],
            "is_whole": is_whole,
            "cancelled": [batch.status for batch in cancelled],
            "all_listed": listed == [batch.id for batch in reversed(batches)],
            "files": sorted(files) == sorted([file.id, waiting.id]),
            "deleted": deleted.deleted,
            "missing": missing,
        }
    )
)
