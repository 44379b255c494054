// @ts-check
// Claims at a running `oncebridge serve`. Nothing to install: Node 20 and Deno have all that it takes.

const TIMEOUT_MS = 5000; // longer than the service takes at most, which is 4.5 s

/**
 * What a claim is answered with. Who has a `claim` does the work; `acknowledge` says whether the delivery is settled.
 * @typedef {object} Claimed
 * @property {string} verdict
 * @property {boolean} acknowledge
 * @property {string} reason
 * @property {string | null} outcome `dead` where the event is kept as a dead letter
 * @property {string | null} claim
 * @property {string} key the same at every attempt: hand it to what you write to, which can then refuse the second one
 * @property {number} token higher at every claim: hand it to what you write to, which can then refuse a late worker
 * @property {number} attempt
 * @property {number} lease_seconds
 * @property {number | null} retry_in_seconds
 */

/** The delivery has to come again: throw this at Lambda, answer 503 over HTTP, and never 200. */
export class NotAcknowledged extends Error {
    /** @param {string} reason @param {number | null} [seconds] */
    constructor(reason, seconds) {
        super(reason);
        this.name = "NotAcknowledged";
        this.retryAfter = Math.ceil(seconds ?? 5);
    }
}

export class Claims {
    #url;
    #headers;
    #handler;
    #leaseSeconds;

    /** The handler's name is remembered with each event: keep it, and give every other handler another one.
     * @param {string} handler @param {string | undefined} url @param {string | undefined} apiKey */
    constructor(handler, url, apiKey, { leaseSeconds = 30 } = {}) {
        this.#handler = handler;
        this.#url = new URL(url ?? "http://127.0.0.1:8080");
        this.#headers = { "Content-Type": "application/json", ...(apiKey && { "X-API-Key": apiKey }) };
        this.#leaseSeconds = leaseSeconds;
    }

    /** Claim an event. Give its text if you have it: what JSON.parse makes of large numbers is no longer the same event.
     * @param {unknown} event @returns {Promise<Claimed>} */
    claim(event) {
        return this.#post("/claims", { event, handler: this.#handler, lease_seconds: this.#leaseSeconds });
    }

    /** @param {string} claim @returns {Promise<{ok: boolean}>} whether it is still yours */
    extend(claim) {
        return this.#post("/claims/extend", { claim, lease_seconds: this.#leaseSeconds });
    }

    /** @param {string} claim @param {"done" | "retry" | "release" | "dead"} outcome @param {object} [more]
     * @returns {Promise<{ok: boolean, outcome: string}>} what became of it; not ok: it was no longer yours */
    settle(claim, outcome, more) {
        return this.#post("/claims/settle", { claim, outcome, ...more });
    }

    /** Work an event off once: return the verdict when it may be acknowledged, throw NotAcknowledged otherwise.
     * @param {unknown} event @param {(claim: Claimed & {signal: AbortSignal}) => Promise<unknown>} work */
    async once(event, work) {
        const claimed = await this.claim(event);
        if (!claimed.claim) {
            if (claimed.acknowledge) return claimed.outcome ?? claimed.verdict;
            throw new NotAcknowledged(claimed.reason, claimed.retry_in_seconds);
        }
        let settled;
        try {
            await this.#whileExtended(claimed, claimed.claim, work);
        } catch (error) {
            settled = await this.settle(claimed.claim, "retry", { event, detail: String(error) });
            if (settled.ok && settled.outcome === "dead") return settled.outcome; // the last attempt: kept as a dead letter
            throw new NotAcknowledged(`the work failed: ${error}`);
        }
        settled = await this.settle(claimed.claim, "done");
        if (!settled.ok) throw new NotAcknowledged("the claim ran out, and somebody else may have it");
        return claimed.verdict;
    }

    /** @param {Claimed} claimed @param {string} claim @param {(claim: Claimed & {signal: AbortSignal}) => unknown} work */
    async #whileExtended(claimed, claim, work) {
        const lost = new AbortController();
        const timer = setInterval(async () => {
            const { ok } = await this.extend(claim).catch(() => ({ ok: true })); // out of reach: perhaps not the next time
            if (!ok) lost.abort(new Error("the claim ran out"));
        }, claimed.lease_seconds * 1000 / 3);
        try {
            await work({ ...claimed, signal: lost.signal });
        } finally {
            clearInterval(timer);
        }
    }

    /** @param {string} path @param {object} body @returns {Promise<any>} */
    async #post(path, body) {
        const call = {
            method: "POST",
            // The same call again, where its answer was lost, is no second one.
            headers: { ...this.#headers, "Idempotency-Key": crypto.randomUUID() },
            body: JSON.stringify(body),
            redirect: /** @type {const} */ ("error"), // the key is for nobody else
        };
        const ask = async () => {
            const answer = await fetch(new URL(path, this.#url), {
                ...call,
                signal: AbortSignal.timeout(TIMEOUT_MS),
            });
            return { ok: answer.ok, status: answer.status, said: await answer.json() };
        };
        const { ok, status, said } = await ask().catch(ask).catch((error) => {
            throw new NotAcknowledged(`oncebridge is out of reach: ${error}`);
        });
        // What is unreadable is refused, but kept as a dead letter, and need not come again.
        if (!ok && said.acknowledge !== true) {
            throw new NotAcknowledged(`oncebridge answers ${status}: ${said.title}: ${said.detail}`);
        }
        return said;
    }
}
