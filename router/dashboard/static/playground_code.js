/** The request of the playground as a command and as a program. A tenant's key is not in them, only a variable. */

const KEY_VARIABLE = "ROUNDHOUSE_API_KEY";

/** `mode`: how the router knows tenants; `tenant`: the name that goes into X-Tenant-ID. */
export function asCurl(origin, body, mode, tenant = "") {
  const lines = [`curl ${shell(`${origin}/v1/chat/completions`)}`, "-H 'Content-Type: application/json'"];
  if (mode === "keys") lines.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
  if (mode === "header") lines.push(`-H ${shell(`X-Tenant-ID: ${tenant}`)}`);
  return `${[...lines, `-d ${shell(JSON.stringify(body))}`].join(" \\\n  ")}\n`;
}

export function asPython(origin, body, mode, tenant = "") {
  const key = mode === "keys" ? `os.environ[${python(KEY_VARIABLE)}]` : '"none"';
  const headers = mode === "header" ? `, default_headers=${python({ "X-Tenant-ID": tenant })}` : "";
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${python(value)},\n`);
  return `${mode === "keys" ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${python(`${origin}/v1`)}, api_key=${key}${headers})
stream = client.chat.completions.create(
${fields.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A literal of Python. JSON's strings and numbers are Python's, too. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, item]) => `${python(name)}: ${python(item)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}
