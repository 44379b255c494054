// Two tiers, as people write them: each envelope once in five minutes, and of an interaction only what is newer.

import { show } from "./board.ts";

const MINUTES_5 = { expireIn: 300_000 };
const kv = await Deno.openKv(Deno.env.get("KV"));

async function handler(request: Request): Promise<Response> {
    const event = await request.json();
    const [seen, newest] = [["seen", event.id], ["newest", event.detail.interactionId]];
    if ((await kv.get(seen)).value) return new Response("skipped\n");
    const time = new Date(event.time).getTime();
    if (time <= ((await kv.get<number>(newest)).value ?? 0)) return new Response("skipped\n");
    await kv.set(seen, true, MINUTES_5);
    await kv.set(newest, time, MINUTES_5);
    await show(event.detail);
    return new Response("taken\n");
}

Deno.serve({ hostname: "127.0.0.1", port: Number(Deno.env.get("PORT") ?? "8000") }, handler);
