// Delivers the lines of a file to an address, each until it is taken, as EventBridge does: deliver.mjs FILE URL

import { readFileSync } from "node:fs";
import { argv } from "node:process";

const [file, url] = argv.slice(2);
for (const event of readFileSync(file, "utf8").trim().split("\n")) {
    let answer;
    while (!answer?.ok) {
        answer = await fetch(url, { method: "POST", body: event }).catch(() => undefined); // not there yet
        if (!answer?.ok) await new Promise((again) => setTimeout(again, 200));
    }
    console.log((await answer.text()).trim());
}
