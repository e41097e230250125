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
const { textStream } = streamText({
  model: models[process.argv.at(-1)](),
  prompt: "Count the steps.",
  stopWhen: stepCountIs(40),
  maxOutputTokens: 2000,
  onError({ error }) {
    throw error;
  },
  tools: {
    add_step: tool({
      description: "Adds a step.",
      inputSchema: z.object({ number: z.string() }),
      execute: async ({ number }) => `step ${number} added, ${++steps} in all`,
    }),
  },
});
let text = "";
for await (const part of textStream) text += part;
if (!text) throw new Error("no answer");
console.log("step", steps);
