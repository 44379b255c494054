// Checks the specification with one configuration, and tells a counterexample in words. The engine is tla-checker,
// the npm package; this is used by Node (spec/check.mjs) and by the page docs/evidence.html alike.

const PROMISES = {
  NothingLost: "Something is lost",
  OneHolder: "Two hold the same at once, or what was settled for good is granted again",
  NoLateSettle: "A late worker changes something, or the one in force is refused",
  RepeatsAgree: "A call whose reply was lost is answered differently when it is repeated",
  TokensRise: "A token is not above every earlier one",
  VerdictsRight: "An echo or a stale state is called so wrongly, and its event is lost",
  AttemptsRight: "Attempts are not what failures and lonely run-outs add up to",
  NeverBlocked: "Someone is told to wait where nobody holds",
  NewestShown: "At the end the sink does not show the newest state",
};

export function configure(constants, leftOut = []) {
  const names = leftOut.map((rule) => JSON.stringify(rule)).join(", ");
  return `SPECIFICATION Spec
INVARIANTS ${Object.keys(PROMISES).join(" ")}
CONSTANTS
${constants}
LeftOut = {${names}}
`;
}

export function check(engine, source, constants, leftOut = [], maxStates = 10_000_000) {
  const cfg = configure(constants, leftOut);
  const options = { cfg_source: cfg, max_states: maxStates, max_depth: 10_000, allow_deadlock: false };
  const found = JSON.parse(engine.check_spec_with_options(source, JSON.stringify(options)));
  const result = { states: found.states_explored, held: found.success, broken: null, promise: null, steps: [] };
  if (found.success) return result;
  if (!["InvariantViolation", "Deadlock"].includes(found.error_type)) {
    throw new Error(`${found.error_type}: ${found.error_message}`);
  }
  const states = pathThrough(engine, source, cfg, tracedStates(found.trace[0]));
  result.steps = states.slice(1).map((after, at) => told(states[at].state, after));
  const end = states[states.length - 1].state;
  if (found.error_type === "Deadlock") return { ...result, broken: "deadlock", promise: "Nothing can happen any more" };
  const looked = JSON.parse(engine.explore_invariants(source, cfg, "{}", JSON.stringify(end)));
  const broken = looked.invariants.find((one) => one.holds === false || one.result === false);
  return { ...result, broken: broken.name, promise: PROMISES[broken.name] };
}

// A trace comes as text, a state after the other: "State 3", then a line for each variable.
function tracedStates(text) {
  return text.split(/^State \d+.*$/m).slice(1).map((part) => {
    const lines = [...part.matchAll(/^ {2}(\w+) = (.*)$/gm)];
    return Object.fromEntries(lines.map(([, name, value]) => [name, value]));
  });
}

// Goes the same way again, step by step, since only so each step has its name.
function pathThrough(engine, source, cfg, wanted) {
  const begun = JSON.parse(engine.explore_init(source, cfg, "{}"));
  const path = [{ action: null, state: begun.states[0].json }];
  for (const next of wanted.slice(1)) {
    const here = JSON.stringify(path[path.length - 1].state);
    const steps = JSON.parse(engine.explore_next(source, cfg, "{}", here)).transitions;
    const same = ({ state }) => Object.keys(next).every((name) => state.display[name] === next[name]);
    const step = steps.find(same);
    path.push({ action: step.action, state: step.state.json });
  }
  return path;
}

// ---- in words

const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);
const tuple = (value) => (Array.isArray(value) ? value : (value.__tuple ?? []));
const event = (number) => `event ${number}`;

function granted(member) {
  return `${event(member.event)} is granted with token ${member.token}, attempt ${member.attempt}`;
}

function answered(before, after) {
  const members = tuple(after.members);
  if (members.length > 0) return members.map(granted).join("; ");
  const known = after.acks.filter((one) => !before.acks.includes(one));
  if (known.length > 0) return `${listed(known.map(event))} ${known.length > 1 ? "are" : "is"} settled already`;
  return tuple(after.calls).some((call) => call.alone) ? "it is to be asked for alone" : "busy";
}

function settled(before, after, worker) {
  const members = tuple(before.work[worker].members);
  const ends = members.slice(before.work[worker].settled, before.work[worker].turn);
  const records = [tuple(before.rec), tuple(after.rec)];
  return ends.map((member) => {
    const [was, is] = records.map((all) => JSON.stringify(all[member.event - 1]));
    const same = was === is ? ", which changes nothing" : "";
    return `${event(member.event)} as ${member.outcome} under token ${member.token}${same}`;
  }).join("; ");
}

function ended(before, after, worker) {
  const at = before.work[worker].turn;
  const member = tuple(after.work[worker].members)[at];
  return [event(member.event), member.outcome, member.token];
}

// Who has made a step: whose knowledge has changed; or, where nobody has learned anything, who could have made it.
function actor(before, after, action) {
  const workers = Object.keys(after.work);
  const learned = workers.find((one) => JSON.stringify(before.work[one]) !== JSON.stringify(after.work[one]));
  if (learned !== undefined) return learned;
  const could = workers.filter((one) => {
    const { taken, settled: done, turn } = before.work[one];
    return action === "SettlesUnheard" ? done < turn : action !== "Takes" || taken.length === 0;
  });
  const changes = (one) => !settled(before, after, one).endsWith("changes nothing");
  return could.find((one) => action === "SettlesUnheard" && changes(one)) ?? could[0];
}

function told(before, { action, state: after }) {
  if (action === "Waits") return "Nobody works, and the leases run out.";
  if (action === "Pauses") return "Nobody moves until the leases have run out; what was kept so long is delivered again.";
  const worker = actor(before, after, action);
  const name = worker.toUpperCase();
  const [was, is] = [before.work[worker], after.work[worker]];
  const asked = tuple(tuple((was.calls && tuple(was.calls).length ? was : is).calls)[0]?.events ?? []);
  switch (action) {
    case "Takes":
      if (is.taken.length === 0) return `${name} takes what waits, and is told to wait.`;
      return `${name} takes ${listed(is.taken.map((one) => `delivery ${one}`))} and claims: ${answered(was, is)}.`;
    case "AsksAgain":
      return `${name} ${tuple(was.lost).length ? "repeats its call" : "asks"}: ${answered(was, is)}.`;
    case "TakesUnheard":
    case "AsksUnheard":
      return `${name} claims ${listed(asked.map(event))}, but the reply is lost.`;
    case "Handles": {
      const [what, outcome, token] = ended(before, after, worker);
      return outcome === "done" ? `${name} handles ${what} under token ${token}: it takes effect.`
        : `${name} calls ${what} ${outcome}.`;
    }
    case "FailsBefore":
    case "FailsAfter": {
      const [what, outcome] = ended(before, after, worker);
      return `${name} fails at ${what}, ${action === "FailsBefore" ? "before" : "after"} its effect: ${outcome}.`;
    }
    case "Stops": return `${name} is stopped, and gives back what it has not tried.`;
    case "Crashes": return `${name} crashes; its deliveries will come again.`;
    case "Extends": return `${name} extends its lease.`;
    case "Settles": return `${name} settles ${settled(before, after, worker)}.`;
    case "SettlesUnheard": return `${name} settles ${settled(before, after, worker)}; the reply is lost.`;
    case "Acknowledges": return `${name} acknowledges ${listed(after.gone.filter((one) => !before.gone.includes(one))
      .map((one) => `delivery ${one}`))}.`;
    default: return `${name}: ${action}.`;
  }
}
