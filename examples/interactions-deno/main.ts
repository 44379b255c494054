// The whole handler. BRIDGE_URL is where `oncebridge serve` listens, BRIDGE_KEY one of its keys.

import { Claims, NotAcknowledged } from "../claims-client/oncebridge.mjs";
import { show } from "./board.ts";

const { env } = Deno;
const leaseSeconds = Number(env.get("LEASE_SECONDS") ?? "30");
const claims = new Claims("board", env.get("BRIDGE_URL"), env.get("BRIDGE_KEY"), { leaseSeconds });

async function handler(request: Request): Promise<Response> {
    const event = await request.text(); // as it came: whatever it says tells it from others
    try {
        const verdict = await claims.once(event, (claim) => show(JSON.parse(event).detail, claim));
        return new Response(`${verdict}\n`);
    } catch (error) {
        if (!(error instanceof NotAcknowledged)) throw error;
        const headers = { "Retry-After": String(error.retryAfter) };
        return new Response(`${error.message}\n`, { status: 503, headers });
    }
}

Deno.serve({ hostname: "127.0.0.1", port: Number(env.get("PORT") ?? "8000") }, handler);
