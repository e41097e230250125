import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const settings = { name: "roundhouse", baseURL: process.env.URL + "/v1", apiKey: "none" };
const models = {
  chat: () => createOpenAICompatible(settings)("llama"),
  responses: () => createOpenAI(settings).responses("llama"),
  messages: () => createAnthropic(settings)("llama"),
};
let steps = 0;
const { fullStream } = streamText({
  model: models[process.argv.at(-1)](),
  prompt: "Count the steps.",
  stopWhen: stepCountIs(40),
  maxOutputTokens: 2000,
  // The loop's end by an error is a part of the stream, which is thrown below.
  onError() {},
  tools: {
    add_step: tool({
      description: "Adds a step.",
      inputSchema: z.object({ number: z.string() }),
      execute: async ({ number }) => `step ${number} added, ${++steps} in all`,
    }),
  },
});
let text = "";
for await (const part of fullStream) {
  if (part.type === "error") throw part.error;
  if (part.type === "text-delta") text += part.text;
}
if (!text) throw new Error("no answer");
console.log("step", steps);
