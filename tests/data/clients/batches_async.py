import asyncio
import json

from openai import AsyncOpenAI, NotFoundError

ENDED = ("completed", "failed", "expired", "cancelled")


def request(custom_id, model, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": f"Tell me about {custom_id}."}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


async def create(client, file):
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
        metadata={"description": "nightly"},
    )  # fmt: skip


async def wait(client, batch):
    while batch.status not in ENDED:
        await asyncio.sleep(0.2)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def main():
    client = AsyncOpenAI()
    content = request("sea", "llama") + request("land", "llama") + request("air", "llama", temperature="hot")
    file = await client.files.create(file=("requests.jsonl", content.encode()), purpose="batch")
    waiting = await client.files.create(
        file=request("fire", "mistral").encode(), purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )  # fmt: skip
    file = await client.files.wait_for_processing(file.id)

    done = await wait(client, await create(client, file))
    answers = (await client.files.content(done.output_file_id)).text
    errors = await (await client.files.content(done.error_file_id)).aread()
    async with client.files.with_streaming_response.content(file.id) as response:
        copy = b"".join([part async for part in response.iter_bytes()])

    batches = [done, *[await create(client, waiting) for _ in range(4)]]
    cancelling = [await client.batches.cancel(batch.id) for batch in batches[1:]]
    cancelled = [await wait(client, batch) for batch in cancelling]
    listed = [batch.id async for batch in client.batches.list(limit=2)]
    files = [each.id async for each in client.files.list(purpose="batch", order="asc", limit=1)]
    deleted = await client.files.delete(file.id)
    try:
        await client.files.content(file.id)
    except NotFoundError as error:
        missing = error.code

    seen = {
        "file": [file.filename, file.purpose, file.status],
        "expires": waiting.expires_at - waiting.created_at,
        "metadata": done.metadata,
        "counts": done.request_counts.to_dict(),
        "answers": sorted(json.loads(line)["custom_id"] for line in answers.splitlines()),
        "errors": [json.loads(line)["response"]["status_code"] for line in errors.decode().splitlines()],
        "is_whole": copy == content.encode(),
        "cancelled": [batch.status for batch in cancelled],
        "all_listed": listed == [batch.id for batch in reversed(batches)],
        "files": sorted(files) == sorted([file.id, waiting.id]),
        "deleted": deleted.deleted,
        "missing": missing,
    }
    print(json.dumps(seen))


asyncio.run(main())
