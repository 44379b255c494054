// What most people write: ask Redis whether the conversation was there, and remember it for ten seconds.

import { update } from "./database.mjs";
import { redis } from "./redis.mjs";

export const handler = async (event) => {
    const name = `call:${event.detail.conversationId}`;
    if (await redis.get(name)) return { statusCode: 200, body: "seen before" };
    await redis.setex(name, 10, "1");
    await update(event.detail);
    return { statusCode: 200, body: "done" };
};
