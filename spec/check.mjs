// Reads requests, a line of JSON each, and checks the specification so: {source, constants, leftOut, maxStates} of
// spec/checking.mjs; {source, constants, stuck: deliveries} to count the states from which nothing leads to the end; or
// {source, cfg} to count the states of another specification. Writes a line of JSON for each.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import { check, configure } from "./checking.mjs";

const folder = process.argv[2];
const engine = await import(pathToFileURL(`${folder}/tla_checker.js`));
engine.initSync({ module: readFileSync(`${folder}/tla_checker_bg.wasm`) });

function counted({ source, cfg }) {
  const options = { cfg_source: cfg, max_states: 10_000_000, max_depth: 10_000, allow_deadlock: true };
  return JSON.parse(engine.check_spec_with_options(source, JSON.stringify(options)));
}

// From how many states can nobody get to the end any more, in which all is acknowledged and nobody works? Going back from
// the ends, along all steps but faults.
function stuck({ source, constants, stuck: deliveries }) {
  const options = { cfg_source: configure(constants), max_states: 10_000_000, max_depth: 10_000, export_dot: true };
  const { dot } = JSON.parse(engine.check_spec_with_options(source, JSON.stringify({ ...options, dot_mode: "full" })));
  const left = new Map();
  const ends = [];
  for (const [, name, text] of dot.matchAll(/^ {2}(s\d+) \[label="((?:[^"\\]|\\.)*)"/gm)) {
    left.set(name, text.match(/\\nfaults=(\d+)/)[1]);
    const gone = text.match(/\\ngone=\{([^}]*)\}/)[1].match(/\d+/g) ?? [];
    if (gone.length === deliveries && !/taken \|-> \{\d/.test(text)) ends.push(name);
  }
  const before = new Map();
  for (const [, from, to] of dot.matchAll(/^ {2}(s\d+) -> (s\d+)/gm)) {
    if (left.get(from) === left.get(to)) before.set(to, [...(before.get(to) ?? []), from]);
  }
  const seen = new Set(ends);
  for (const name of seen) (before.get(name) ?? []).forEach((one) => seen.add(one));
  return { states: left.size, ends: ends.length, stuck: left.size - seen.size };
}

function answered(asked) {
  if (asked.cfg !== undefined) return counted(asked);
  if (asked.stuck !== undefined) return stuck(asked);
  return check(engine, asked.source, asked.constants, asked.leftOut, asked.maxStates);
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(answered(JSON.parse(line)))}\n`);
}
