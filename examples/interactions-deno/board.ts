// Stands in for your board: prints what it shows, and posts it to BOARD_URL if that is set.

type Update = { interactionId: string; status: string };
type Once = { key: string; token: number; signal: AbortSignal };

const url = Deno.env.get("BOARD_URL");

export async function show({ interactionId, status }: Update, once?: Once): Promise<void> {
    if (url) {
        const headers = new Headers({ "Content-Type": "application/json" });
        if (once) headers.set("Idempotency-Key", once.key);
        if (once) headers.set("Oncebridge-Token", String(once.token));
        const body = JSON.stringify({ conversation: interactionId, state: status });
        const answer = await fetch(url, { method: "POST", headers, body, signal: once?.signal });
        await answer.body?.cancel();
        if (!answer.ok) throw new Error(`the board answers ${answer.status}`);
    }
    console.log(`board: ${interactionId} is ${status}`);
}
