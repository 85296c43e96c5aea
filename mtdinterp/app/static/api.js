// Requests: JSON in, JSON or bytes out, errors as sentences, and the last input wins.

export class Refused extends Error {}

async function send(path, body, signal) {
  const response = await fetch(
    path,
    body === undefined
      ? { signal }
      : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal },
  );
  if (response.ok) return response;
  let sentence = `The server answered ${response.status}.`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch {
    /* no JSON: the status says it */
  }
  throw new Refused(sentence);
}

export const ask = async (path, body, signal) => (await send(path, body, signal)).json();
export const askText = async (path, body, signal) => (await send(path, body, signal)).text();
export const askBytes = async (path, body, signal) => (await send(path, body, signal)).arrayBuffer();

/**
 * Answers to the newest input. Only one request runs at a time; meanwhile, a newer input replaces the one that is
 * waiting. The page therefore never shows an older answer after a newer one, and the server gets no queue.
 */
export class Latest {
  constructor(request, show, fail) {
    Object.assign(this, { request, show, fail, waiting: null, running: null, asked: 0, answered: 0 });
  }

  put(input) {
    this.waiting = { input, number: ++this.asked };
    if (!this.running) this.work();
  }

  cancel() {
    this.waiting = null;
    this.running?.abort();
  }

  get idle() {
    return !this.running && !this.waiting;
  }

  async work() {
    while (this.waiting) {
      const { input, number } = this.waiting;
      this.waiting = null;
      this.running = new AbortController();
      try {
        const answer = await this.request(input, this.running.signal);
        if (number > this.answered) {
          this.answered = number;
          this.show(answer, input);
        }
      } catch (error) {
        this.fail(error, input);
      }
    }
    this.running = null;
  }
}
