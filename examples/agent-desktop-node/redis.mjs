// Stands in for a client of Redis, so that there is nothing to install: two commands, each on a connection of its own.

import { createConnection } from "node:net";

function call(...words) {
    const { hostname, port } = new URL(process.env.REDIS_URL);
    return new Promise((resolve, reject) => {
        const connection = createConnection(Number(port), hostname);
        connection.write(
            `*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join("")}`,
        );
        connection.on("error", reject).once("data", (answer) => resolve(String(answer)) ?? connection.end());
    });
}

export const redis = {
    get: async (name) => (await call("GET", name) === "$-1\r\n" ? null : "found"),
    setex: (name, seconds, value) => call("SETEX", name, String(seconds), value),
};
