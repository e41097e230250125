import { createReadStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import OpenAI, { NotFoundError, toFile, toStreamingFile } from "openai";

const client = new OpenAI();
const ended = ["completed", "failed", "expired", "cancelled"];

function request(customId, model, fields = {}) {
  const body = { model, messages: [{ role: "user", content: `Tell me about ${customId}.` }], ...fields };
  return JSON.stringify({ custom_id: customId, method: "POST", url: "/v1/chat/completions", body }) + "\n";
}

function create(file) {
  return client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { description: "nightly" },
  });
}

async function wait(batch) {
  while (!ended.includes(batch.status)) {
    await setTimeout(200);
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

const lines = (text) => text.trim().split("\n").map((line) => JSON.parse(line));

async function collect(pages) {
  const found = [];
  for await (const each of pages) found.push(each.id);
  return found;
}

const folder = mkdtempSync(join(tmpdir(), "batches-"));
const path = join(folder, "requests.jsonl");
writeFileSync(path, request("sea", "llama") + request("land", "llama") + request("air", "llama", { temperature: "hot" }));
let file = await client.files.create({ file: createReadStream(path), purpose: "batch" });
const waiting = await client.files.create({
  file: await toFile(Buffer.from(request("fire", "mistral")), "waiting.jsonl"),
  purpose: "batch",
  expires_after: { anchor: "created_at", seconds: 3600 },
});
const streamed = await client.files.create({
  file: toStreamingFile(createReadStream(path), "streamed.jsonl"),
  purpose: "batch",
});
file = await client.files.waitForProcessing(file.id);

const done = await wait(await create(file));
const answers = await (await client.files.content(done.output_file_id)).text();
const errors = Buffer.from(await (await client.files.content(done.error_file_id)).arrayBuffer()).toString();
const copy = await (await client.files.content(streamed.id)).text();
const isWhole = copy === readFileSync(path, "utf8");
rmSync(folder, { recursive: true });

const batches = [done];
for (let number = 0; number < 4; number++) batches.push(await create(waiting));
const cancelling = await Promise.all(batches.slice(1).map((batch) => client.batches.cancel(batch.id)));
const cancelled = await Promise.all(cancelling.map(wait));
const listed = await collect(client.batches.list({ limit: 2 }));
const files = await collect(client.files.list({ purpose: "batch", order: "asc", limit: 1 }));
const deleted = await client.files.delete(file.id);
const missing = await client.files.retrieve(file.id).catch((error) => error instanceof NotFoundError && error.code);

console.log(
  JSON.stringify({
    file: [file.filename, file.purpose, file.status],
    expires: waiting.expires_at - waiting.created_at,
    metadata: done.metadata,
    counts: done.request_counts,
    answers: lines(answers).map((line) => line.custom_id).sort(),
    errors: lines(errors).map((line) => line.response.status_code),
    is_whole: isWhole,
    cancelled: cancelled.map((batch) => batch.status),
    all_listed: JSON.stringify(listed) === JSON.stringify(batches.map((batch) => batch.id).reverse()),
    files: files.sort().join() === [file.id, streamed.id, waiting.id].sort().join(),
    deleted: deleted.deleted,
    missing,
  }),
);
