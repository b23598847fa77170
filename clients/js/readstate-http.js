/** The HTTP API as one user. */

const ANSWER_WITHIN = 30_000;

/** What the service, or the client in its place, refused. `code` is for programs, `detail` for people. */
export class ReadstateError extends Error {
  constructor({ code = "unknown", detail, status, field, retry = false }, options) {
    super(detail ?? code, options);
    this.name = "ReadstateError";
    this.code = code;
    this.detail = detail ?? code;
    this.status = status;
    this.field = field;
    this.retry = retry;
  }
}

export class Http {
  #options;
  #token = null;

  /** @param {{url: string, getToken: () => Promise<string>, fetch: typeof fetch, timers: object}} options */
  constructor(options) {
    this.#options = options;
  }

  /** Ask for a token; it is used from now on. */
  async renew() {
    this.#token = await this.#options.getToken();
    return this.#token;
  }

  /** One call. A token that is refused is renewed once: it may just have run out. */
  async call(method, path, body) {
    const used = this.#token ?? (await this.renew());
    const answer = await this.#send(method, path, body);
    if (answer.status !== 401 || (await this.renew()) === used) return decode(answer);
    return decode(await this.#send(method, path, body));
  }

  /**
   * All that is unread and all followed threads, at the moment `sync` or later. What changed while the pages
   * were fetched is told again to whoever resumes from `sync`: the threads are asked for after it was taken.
   */
  async everything() {
    const unread = await this.#pages("/v1/users/me/unread", "");
    const threads = await this.#pages("/v1/users/me/threads", "limit=100").catch((error) => {
      if (error.field !== "limit") throw error;
      return this.#pages("/v1/users/me/threads", ""); // this service has smaller pages
    });
    return {
      sync: unread[0].sync,
      channels: unread.flatMap((page) => page.channels),
      threads: threads.flatMap((page) => page.threads),
    };
  }

  /** `U` of one channel, or null for whoever is not a member. */
  async unread(channelId) {
    const name = encodeURIComponent(channelId); // given twice, so that a comma in it separates nothing
    try {
      const page = await this.call("GET", `/v1/users/me/unread?only_unread=false&channels=${name}&channels=${name}`);
      return page.channels[0] ?? null;
    } catch (error) {
      if (error.status === 403 || error.status === 404) return null;
      throw error;
    }
  }

  async #pages(path, query) {
    const pages = [];
    let cursor = "";
    do {
      pages.push(await this.call("GET", `${path}?${query}${cursor}`));
      cursor = pages.at(-1).cursor && `&cursor=${encodeURIComponent(pages.at(-1).cursor)}`;
    } while (cursor);
    return pages;
  }

  async #send(method, path, body) {
    const { url, fetch, timers } = this.#options;
    const headers = { Authorization: `Bearer ${this.#token}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const abort = new AbortController();
    const cancel = timers.after(ANSWER_WITHIN, () => abort.abort());
    try {
      const answer = await fetch(url + path, { method, headers, body: JSON.stringify(body), signal: abort.signal });
      return { status: answer.status, ok: answer.ok, text: await answer.text() };
    } catch (cause) {
      const detail = `${method} ${path.split("?")[0]} had no answer: ${cause.message}`;
      throw new ReadstateError({ code: "unreachable", detail, retry: true }, { cause });
    } finally {
      cancel();
    }
  }
}

/** What an answer says; thrown, if it is an error. */
function decode({ status, ok, text }) {
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    // not from the service, but from something before it
  }
  if (ok) return body;
  throw new ReadstateError({ code: `http_${status}`, retry: status >= 500, ...body, status });
}
