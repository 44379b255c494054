// The whole function: the handler is `handler.handler`. BRIDGE_URL is where `oncebridge serve` listens, BRIDGE_KEY one
// of its keys.

import { Claims } from "../claims-client/oncebridge.mjs";
import { update } from "./database.mjs";

const { BRIDGE_URL, BRIDGE_KEY, LEASE_SECONDS = "30" } = process.env;
const claims = new Claims("agent-desktop", BRIDGE_URL, BRIDGE_KEY, { leaseSeconds: Number(LEASE_SECONDS) });

export const handler = async (event) => {
    // Throws where the event has to come again: for Lambda, whatever is returned is an acknowledgement.
    const verdict = await claims.once(event, (claim) => update(event.detail, claim));
    return { statusCode: 200, body: verdict };
};
