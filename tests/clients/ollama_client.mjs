// Tests the unmodified `ollama` client for Node with a daemon: streamed and unstreamed, an abort,
// errors. FOLDER has `node_modules` with the package.
//
//   node ollama_client.mjs FOLDER ADDRESS MODEL TALKER

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, address, model, talker] = process.argv.slice(2);
const find = createRequire(path.join(path.resolve(folder), "package.json"));
const { Ollama } = await import(pathToFileURL(find.resolve("ollama")));
const client = new Ollama({ host: `http://${address}` });
const options = { temperature: 0, num_predict: 8 };

const refused = async (status, says, call) => {
  await assert.rejects(call, (error) => {
    assert.equal(error.status_code, status, error);
    assert.ok(error.message.includes(says), error);
    return true;
  });
};

assert.ok((await client.version()).version);
assert.ok((await client.list()).models.some((entry) => entry.name === `${model}:latest`));
const shown = await client.show({ model });
assert.deepEqual(shown.capabilities, ["completion", "tools"]);

const whole = await client.generate({ model, prompt: "Hello", options });
assert.ok(whole.done && whole.response && whole.eval_count === 8, JSON.stringify(whole));
let text = "";
for await (const piece of await client.generate({ model, prompt: "Hello", options, stream: true })) text += piece.response;
assert.equal(text, whole.response);

const messages = [{ role: "user", content: "Hello" }];
const answer = await client.chat({ model, messages, options });
assert.equal(answer.message.role, "assistant");
text = "";
for await (const piece of await client.chat({ model, messages, options, stream: true })) text += piece.message.content;
assert.equal(text, answer.message.content);

// Tool calls, thinking and structured output, unstreamed and streamed.
const gathered = async (request) => {
  const all = { content: "", thinking: "", tool_calls: [] };
  for await (const { message } of await client.chat({ ...request, stream: true })) {
    all.content += message.content ?? "";
    all.thinking += message.thinking ?? "";
    all.tool_calls.push(...(message.tool_calls ?? []));
  }
  return all;
};
const parameters = { type: "object", properties: { a: { type: "integer" } }, required: ["a"] };
const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters } }];
const definition = '<tool_call>\\{"name": "add", "arguments": \\{"a": [1-9]\\}\\}</tool_call>';
const called = { model: talker, messages, tools, think: false, format: { type: "grammar", syntax: "regex", definition } };
for (const said of [(await client.chat(called)).message, await gathered(called)]) {
  assert.equal(said.tool_calls[0].function.name, "add");
  assert.ok(said.tool_calls[0].function.arguments.a >= 1 && !said.content, JSON.stringify(said));
}
const thinks = { model: talker, messages, think: true, options };
const thought = (await client.chat(thinks)).message;
assert.ok(thought.thinking && !thought.content, JSON.stringify(thought));
assert.equal((await gathered(thinks)).thinking, thought.thinking);
const format = { type: "object", properties: { n: { type: "integer", minimum: 1, maximum: 9 } }, required: ["n"] };
const formed = { model: talker, messages, think: false, format };
for (const said of [(await client.chat(formed)).message, await gathered(formed)]) assert.ok(JSON.parse(said.content).n >= 1);

const endless = await client.generate({ model, prompt: "Hello", raw: true, options: { seed: 1, temperature: 2 }, stream: true });
await assert.rejects(
  async () => {
    for await (const _ of endless) endless.abort();
  },
  { name: "AbortError" },
);

await refused(404, "model 'nope' not found", () => client.chat({ model: "nope", messages }));
await refused(400, "does not support thinking", () => client.chat({ model, messages, think: true }));
await refused(400, "images", () => client.chat({ model, messages: [{ role: "user", content: "x", images: ["aGk="] }] }));

if (process.env.LODE_SEEING_MODEL) {
  const images = [await readFile(process.env.LODE_PICTURE)];
  const ask = (images) => client.chat({ model: process.env.LODE_SEEING_MODEL, messages: [{ role: "user", content: "What?", images }], options: { num_predict: 4 } });
  const [seen, blind] = [await ask(images), await ask([])];
  assert.ok(seen.done && seen.prompt_eval_count > blind.prompt_eval_count, JSON.stringify(seen));
}

let last;
for await (const line of await client.create({ model: "made", from: model, system: "Be brief.", stream: true })) last = line;
assert.equal(last.status, "success");
assert.equal((await client.copy({ source: "made", destination: "copied" })).status, "success");
assert.equal((await client.delete({ model: "made" })).status, "success");
await client.delete({ model: "copied" });
assert.ok((await client.ps()).models.some((entry) => entry.name === `${model}:latest`));
console.log("ok");
