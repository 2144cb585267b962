// A client of a cluster for Node.js, written from docs/protocol.md: `pg` for the nodes, `fetch` for the coordinator.
//
//     const router = new Router(["http://127.0.0.1:8080"], { token, password });
//     await router.transaction("orders", [42], async (client) => {
//       await client.query("INSERT INTO orders (id) VALUES ($1)", [42]);
//     });
//     await router.close();
import pg from "pg";

const FIRST_PAUSE = 5;
const LONGEST_PAUSE = 100;
const MOST_ROUTES = 65536;

/** Nothing was done, and trying again later may help. */
export class Unavailable extends Error {}
/** The connection broke during COMMIT: it may or may not have been done. */
export class OutcomeUnknown extends Error {}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What a driver's error means: moving, moved, lost, again or other. */
export function classify(error, beginning = false) {
  const word = error.code === "40001" ? String(error.detail ?? "").split(" ")[0] : "";
  if (word === "TB001") return "moving";
  if (word === "TB002" || (error.code === "23514" && !error.constraint)) return "moved";
  if (beginning && (error.code === "55P03" || error.code === "40P01")) return "moving";
  if (beginning && error.code === "42P01") return "moved";
  if (error.code === "40001" || error.code === "40P01") return "again";
  const state = /^[0-9A-Z]{5}$/.test(error.code ?? "") ? error.code : "";
  if (!state || state.startsWith("08") || ["57P01", "57P02", "57P03", "57P05"].includes(state)) return "lost";
  return "other";
}

export class Router {
  #coordinators;
  #options;
  #pools = new Map();
  #routes = new Map();

  constructor(coordinators, options = {}) {
    this.#coordinators = coordinators;
    this.#options = { patience: 10_000, size: 10, ...options };
  }

  /** Who owns a key: from memory, or from a coordinator. */
  async locate(table, key) {
    return this.#routes.get(named(table, key)) ?? (await this.#ask(table, key));
  }

  /** Runs `work(client)` in a transaction on the key's owner; resolves with its result when that is committed. */
  async transaction(table, key, work, { readOnly = false, isolation, patience } = {}) {
    const deadline = Date.now() + (patience ?? this.#options.patience);
    const client = await this.#begin(table, key, opening(readOnly, isolation), !readOnly, deadline);
    let broken = true;
    try {
      let result;
      try {
        result = await work(client);
      } catch (error) {
        broken = classify(error) === "lost" || !(await rolledBack(client));
        throw error;
      }
      let answer;
      try {
        answer = await client.query("COMMIT");
      } catch (error) {
        if (classify(error) === "lost") throw new OutcomeUnknown("the connection broke during COMMIT", { cause: error });
        throw error;
      }
      broken = false;
      if (answer.command !== "COMMIT") throw new Error("an error inside the transaction was swallowed: nothing is committed");
      return result;
    } finally {
      client.release(broken);
    }
  }

  /** The same, and again from its start where a node asks for that: `work` must have no other effects. */
  async run(table, key, work, options = {}) {
    const deadline = Date.now() + (options.patience ?? this.#options.patience);
    for (let pause = FIRST_PAUSE; ; pause = Math.min(pause * 2, 2 * LONGEST_PAUSE)) {
      try {
        return await this.transaction(table, key, work, { ...options, patience: deadline - Date.now() });
      } catch (error) {
        const ours = error instanceof Unavailable || error instanceof OutcomeUnknown;
        if (ours || !error.code || classify(error) === "other" || Date.now() + pause >= deadline) throw error;
        this.#routes.delete(named(table, key));
        await sleep(pause);
      }
    }
  }

  async close() {
    await Promise.all([...this.#pools.values()].map(({ pool }) => pool.end()));
    this.#pools.clear();
  }

  async #begin(table, key, begin, writing, deadline) {
    let seen = "lost";
    for (let pause = FIRST_PAUSE; ; pause = Math.min(pause * 1.5, LONGEST_PAUSE)) {
      let route, client;
      try {
        route = await this.locate(table, key);
        client = await this.#pool(route).connect();
        await client.query(`${begin}; CALL balancer.hold(${BigInt(route.tablet)}, ${BigInt(route.epoch)}, ${writing})`);
        return client;
      } catch (error) {
        const failure = classify(error, true);
        if (client) client.release(failure === "lost" || !(await rolledBack(client)));
        if (failure === "other" || error.final) throw error;
        if (failure !== "lost") seen = failure;
        if (Date.now() >= deadline) {
          throw new Unavailable(`${named(table, key)}: ${seen}; gave up at the deadline, nothing was done`, { cause: error });
        }
        if (failure === "moving" || !route) await sleep(pause);
        else await this.#ask(table, key, route, pause).catch((again) => again.final && Promise.reject(again));
      }
    }
  }

  async #ask(table, key, known, wait = 0) {
    const query = key.map((value) => `key=${encodeURIComponent(String(value))}`);
    if (known) query.push(`wait=${wait / 1000}`);
    const headers = this.#options.token ? { authorization: `Bearer ${this.#options.token}` } : {};
    if (known) headers["if-none-match"] = `"${known.version}"`;
    let last;
    for (const base of this.#coordinators) {
      let answer;
      try {
        answer = await fetch(`${base}/v1/route/${encodeURIComponent(table)}?${query.join("&")}`, { headers });
      } catch (error) {
        last = error; // another coordinator knows the same
        continue;
      }
      if (answer.status === 304) return known;
      const body = await answer.json();
      if (answer.ok) return this.#keep(table, key, body);
      last = Object.assign(new Error(body.detail ?? body.title), { status: answer.status, final: answer.status < 500 });
      if (last.final) throw last;
    }
    throw last;
  }

  #keep(table, key, route) {
    if (this.#routes.size >= MOST_ROUTES) this.#routes.clear();
    this.#routes.set(named(table, key), route);
    return route;
  }

  #pool(route) {
    const known = this.#pools.get(route.node);
    if (known?.dsn === route.dsn) return known.pool;
    known?.pool.end();
    const { password, size } = this.#options;
    const pool = new pg.Pool({ connectionString: route.dsn, max: size, ...(password && { password }) });
    pool.on("error", () => {}); // an idle connection that breaks is replaced by the pool
    this.#pools.set(route.node, { dsn: route.dsn, pool });
    return pool;
  }
}

const named = (table, key) => JSON.stringify([table, ...key.map(String)]);

function opening(readOnly, isolation) {
  const level = isolation ?? (readOnly ? "REPEATABLE READ" : "READ COMMITTED");
  const allowed = readOnly ? ["REPEATABLE READ", "SERIALIZABLE"] : ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
  if (!allowed.includes(level)) throw new TypeError(`isolation ${level}: allowed are ${allowed.join(", ")}`);
  return `BEGIN ISOLATION LEVEL ${level} ${readOnly ? "READ ONLY" : "READ WRITE"}`;
}

async function rolledBack(client) {
  try {
    await client.query("ROLLBACK");
    return true;
  } catch {
    return false;
  }
}
