// Runs a handler as Lambda would, but behind a port, for trying: node server.mjs [./naive.mjs]

import { createServer } from "node:http";
import { text } from "node:stream/consumers";

const { handler } = await import(process.argv[2] ?? "./handler.mjs");

const server = createServer(async (request, response) => {
    try {
        const { statusCode, body } = await handler(JSON.parse(await text(request)));
        response.writeHead(statusCode).end(`${body}\n`);
    } catch (error) {
        response.writeHead(503, { "Retry-After": String(error.retryAfter ?? 5) }).end(`${error.message}\n`);
    }
});
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
    console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
