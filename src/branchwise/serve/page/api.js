// Talking to the server: requests, the stream of events, and every way in which that can fail. Knows no page.

const KEY = "branchwise-api-key"; // kept until the tab is closed

/** What went wrong, in words for the person. `kind` says which remedy the page offers. */
export class Failure extends Error {
  /**
   * @param {"gone"|"cut"|"key"|"busy"|"full"|"field"|"ended"|"server"} kind
   * @param {string} message
   * @param {string|null} field the setting that is wrong
   */
  constructor(kind, message, field = null) {
    super(message);
    this.kind = kind;
    this.field = field;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

function headers(extra = {}) {
  const own = key.get();
  return own === null ? extra : { ...extra, Authorization: `Bearer ${own}` };
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // a key with letters that no header can carry is refused by the browser itself
    if (error instanceof TypeError && !/^[\x20-\x7e]*$/.test(key.get() ?? "")) {
      throw new Failure("key", "This key has characters that no key can have.");
    }
    throw new Failure("gone", "The server does not answer. It may have been stopped, or the network is down.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // a proxy's own page: the status has to do
  }
  const message = error.message ?? `The server answered with status ${response.status}.`;
  if (response.status === 401) {
    return new Failure("key", key.get() === null ? "This server asks for a key." : "The server does not take this key.");
  }
  if (error.code === "context_length_exceeded") return new Failure("full", message, error.param);
  if (response.status === 429) return new Failure("busy", message);
  if (response.status === 503) return new Failure("ended", message);
  if (response.status === 400 && error.param) return new Failure("field", message, error.param);
  return new Failure("server", message);
}

/** Name and limits of the model. */
export async function model() {
  const { data } = await (await ask("v1/models")).json();
  return { name: data[0].id, longest: data[0].max_model_len };
}

/**
 * One answer as it comes: yields the chunks of the stream.
 *
 * @param {string} body JSON
 * @param {AbortSignal} signal ends the request; the server notices and stops generating
 */
export async function* answer(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body,
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Failure(chunk.error.code === "cancelled" ? "ended" : "server", chunk.error.message);
    yield chunk;
  }
  throw new Failure("cut", "The stream ended in the middle of the answer: the connection was lost or the server was stopped.");
}

/** The data of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await read(reader);
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        for (const line of part.split("\n")) if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  } finally {
    // also when nobody reads on: the connection is closed, and the server stops
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("cut", "The connection was lost in the middle of the answer.");
  }
}
