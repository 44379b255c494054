// What k6 does in one turn: each virtual user posts events, one request after the other, until time is up.
// bench/serve.py runs it, and says by environment variables what to send where.
import http from 'k6/http';

const { URL, RUN } = __ENV;
const size = Number(__ENV.SIZE);
const again = Number(__ENV.AGAIN);
const templates = JSON.parse(open(__ENV.TEMPLATES)); // each in parts, between which the event's id goes
const sent = { headers: { 'Content-Type': 'application/json' } };

export const options = {
  vus: Number(__ENV.CONNECTIONS),
  duration: `${__ENV.SECONDS}s`,
  discardResponseBodies: true,
  summaryTrendStats: ['med', 'p(99)'],
};

let number = 0;
let last = null;

function event() {
  number += 1;
  // Eight digits for the run, four for the user: no two events of a bench have the same.
  const id = `${RUN}-${String(__VU).padStart(4, '0')}-4000-8000-${String(number).padStart(12, '0')}`;
  return templates[number % templates.length].join(id);
}

function body() {
  if (size === 1) return event();
  const events = [];
  for (let n = 0; n < size; n += 1) events.push(event());
  return `[${events.join(',')}]`;
}

export default function post() {
  if (last === null || Math.random() >= again) last = body();
  http.post(URL, last, sent);
}

export function handleSummary(data) {
  const { http_reqs: requests, http_req_duration: duration, http_req_failed: failed } = data.metrics;
  const found = {
    requests: requests.values.count,
    per_second: requests.values.rate,
    p50_ms: duration.values.med,
    p99_ms: duration.values['p(99)'],
    failed: failed.values.passes, // how often it holds that a request failed
  };
  return { stdout: `${JSON.stringify(found)}\n` };
}
