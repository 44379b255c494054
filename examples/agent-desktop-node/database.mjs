// Stands in for your database: prints each update, and posts it to DATABASE_URL if that is set.

const { DATABASE_URL } = process.env;

export async function update({ conversationId, state }, { key, token, signal } = {}) {
    if (DATABASE_URL) {
        const headers = { "Content-Type": "application/json" };
        if (key) Object.assign(headers, { "Idempotency-Key": key, "Oncebridge-Token": String(token) });
        const body = JSON.stringify({ conversation: conversationId, state });
        const answer = await fetch(DATABASE_URL, { method: "POST", headers, body, signal });
        if (!answer.ok) throw new Error(`the database answers ${answer.status}`);
    }
    console.log(`update: ${conversationId} is ${state}`);
}
