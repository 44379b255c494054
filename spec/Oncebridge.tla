------------------------------ MODULE Oncebridge ------------------------------
(* The protocol of claims: workers that crash, stall past their leases and lose replies take deliveries from a          *)
(* transport that delivers at least once, and a ledger grants, fences and frees. docs/specification.md tells which code *)
(* each rule is, and what is left out.                                                                                  *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Workers,        \* their names
    EventOf,        \* the event of each delivery, in order of arrival: <<1, 2, 2>> are two events, the second twice
    Chained,        \* whether all events are states of one entity; otherwise each is a fact
    StateOf,        \* what each event says
    Older,          \* the pairs <<a, b>> of events of which a is strictly older than b
    Near,           \* the pairs of events whose times lie within the echo window
    Ahead,          \* the events whose stamp is too far in the future to be believed
    TakenMax,       \* how many deliveries a worker takes at a time
    AttemptsMax,    \* how often an event may fail before it is dead
    FaultsMax,      \* how much may go wrong on one way
    LeftOut         \* the rules that are left out, by their names in RuleNames

VARIABLES
    rec,            \* the ledger's record of each event
    ent,            \* the ledger's record of each entity; a fact is alone in one of its own
    work,           \* what each worker knows; a crash takes all of it
    hidden,         \* the deliveries that the transport keeps back, because a worker has them
    gone,           \* the deliveries that were acknowledged
    faults,         \* how much may still go wrong
    shown,          \* what a fenced sink shows for each entity, and the highest token that it has seen
    effects,        \* the events whose effect has reached the sink
    \* From here on the judge's own book, which no rule reads.
    hold,           \* the newest claim of each entity: its highest token, whether its lease runs, which are not settled
    last,           \* the newest claim of each event, and how it was settled
    closed,         \* how each event was settled for good
    spent,          \* the attempts that each event has spent
    flaws           \* the promises that a step has broken

vars == <<rec, ent, work, hidden, gone, faults, shown, effects, hold, last, closed, spent, flaws>>
judged == <<hold, last, closed, spent>>

RuleNames == {"token", "top token", "nonce", "tokens rise", "tokens in a row", "lease holds", "lease ends",
    "last end frees", "freed at the end", "settled stays", "claimed is not settled", "own outcome", "data with the end",
    "unsure after run-out", "unsure after failure", "unsure after unbelieved", "no echo while unsure",
    "echo of the same state", "echo in the window", "echo moves the line", "done becomes newest", "older is stale",
    "stale by done alone", "future is not believed", "run-out alone", "lonely run-out counts", "only lonely counts",
    "failure counts", "release does not count", "extend by top token"}
ASSUME LeftOut \subseteq RuleNames
Kept(rule) == rule \notin LeftOut

Events == 1..Len(StateOf)
Deliveries == 1..Len(EventOf)
EntityOf(e) == IF Chained THEN 1 ELSE e
Entities == {EntityOf(e) : e \in Events}
Settled == {"done", "echo", "stale", "dead"}

Nothing == [done |-> 0, line |-> 0, unsure |-> FALSE]       \* a worker's copy of an entity of which nothing is known
Idle == [taken |-> {}, acks |-> {}, calls |-> <<>>, lost |-> <<>>, members |-> <<>>, turn |-> 0, settled |-> 0,
    base |-> Nothing, overdue |-> FALSE]

Init ==
    /\ rec = [e \in Events |-> [status |-> "none", token |-> 0, nonce |-> "", alone |-> FALSE, attempts |-> 0]]
    /\ ent = [x \in Entities |-> [top |-> 0, nonce |-> "", lease |-> "free", ranOut |-> FALSE, data |-> Nothing]]
    /\ work = [w \in Workers |-> Idle]
    /\ hidden = {}
    /\ gone = {}
    /\ faults = FaultsMax
    /\ shown = [x \in Entities |-> [token |-> 0, event |-> 0]]
    /\ effects = {}
    /\ hold = [x \in Entities |-> [top |-> 0, runs |-> FALSE, open |-> {}]]
    /\ last = [e \in Events |-> [token |-> 0, alone |-> FALSE, outcome |-> ""]]
    /\ closed = [e \in Events |-> ""]
    /\ spent = [e \in Events |-> 0]
    /\ flaws = {}

Sorted(S) == [i \in 1..Cardinality(S) |-> CHOOSE n \in S : Cardinality({m \in S : m < n}) = i - 1]
Least(S) == CHOOSE n \in S : \A m \in S : n <= m
Greatest(S) == CHOOSE n \in S : \A m \in S : n >= m
Turned(s) == [i \in 1..Len(s) |-> s[Len(s) + 1 - i]]
PlaceOf(e, s) == CHOOSE i \in 1..Len(s) : s[i] = e
Flaw(name, isRight) == IF isRight THEN {} ELSE {name}

Works(k) == k.members # <<>>
Asks(k) == k.members = <<>> /\ k.calls # <<>>
Ended(k) == k.members = <<>> /\ k.calls = <<>> /\ k.taken # {}
AllIdle == \A w \in Workers : work[w] = Idle

\* A nonce that no worker can send again is as good as none.
Forgotten(table, w) == [n \in DOMAIN table |-> IF table[n].nonce = w THEN [table[n] EXCEPT !.nonce = ""] ELSE table[n]]

(* ---- order: the verdicts that a worker draws on its own copy ---- *)

IsEcho(e, copy) ==
    /\ ~copy.unsure \/ ~Kept("no echo while unsure")
    /\ copy.done # 0
    /\ StateOf[e] = StateOf[copy.done] \/ ~Kept("echo of the same state")
    /\ <<e, copy.done>> \in Near \/ ~Kept("echo in the window")

Verdict(e, copy) ==
    IF ~Chained THEN "fresh"
    ELSE IF IsEcho(e, copy) THEN "echo"
    ELSE IF <<e, copy.line>> \in Older /\ Kept("older is stale") THEN "stale"
    ELSE "fresh"

Believed(e) == e \notin Ahead \/ ~Kept("future is not believed")
AfterDone(copy, e) ==
    IF <<e, copy.line>> \in Older \/ ~Believed(e)
    THEN [copy EXCEPT !.unsure = @ \/ Kept("unsure after unbelieved")]
    ELSE IF Kept("done becomes newest") THEN [done |-> e, line |-> e, unsure |-> FALSE] ELSE copy
AfterEcho(copy, e) ==
    IF <<copy.line, e>> \in Older /\ Believed(e) /\ Kept("echo moves the line") THEN [copy EXCEPT !.line = e] ELSE copy
AfterFailure(copy, e) ==
    [copy EXCEPT !.unsure = @ \/ Kept("unsure after failure"), !.line = IF Kept("stale by done alone") THEN @ ELSE e]
After(copy, e, outcome) ==
    IF ~Chained THEN copy
    ELSE CASE outcome = "done" -> AfterDone(copy, e)
           [] outcome = "echo" -> AfterEcho(copy, e)
           [] outcome = "stale" -> copy
           [] OTHER -> AfterFailure(copy, e)

(* ---- claim ---- *)

Known(e) == (rec[e].status \in Settled /\ Kept("settled stays"))
    \/ (rec[e].status = "claimed" /\ ~Kept("claimed is not settled"))
RanOut(e) == rec[e].status = "claimed"      \* where its lease is known not to run
IsOwn(w, x) == Kept("nonce") /\ ent[x].lease # "free" /\ ent[x].nonce = w
IsBusy(x) == \/ ent[x].lease = "runs" /\ Kept("lease holds")
             \/ ent[x].lease = "over" /\ ~Kept("lease ends")

\* The events of a call that belong to an entity and are not settled, in their order, up to the first one that must be
\* claimed alone.
Asked(x, call) == SelectSeq(call.events, LAMBDA e : EntityOf(e) = x /\ ~Known(e))
CutAt(s, call) ==
    LET bad == {i \in 1..Len(s) : RanOut(s[i]) /\ ~call.alone /\ Kept("run-out alone")}
    IN IF bad = {} THEN Len(s) + 1 ELSE Least(bad)
New(w, x, call) ==
    LET s == Asked(x, call)
    IN IF IsOwn(w, x) \/ IsBusy(x) THEN <<>> ELSE SubSeq(s, 1, CutAt(s, call) - 1)

FirstToken(x) == IF Kept("tokens rise") THEN ent[x].top + 1 ELSE 1
TopToken(w, x, call) == FirstToken(x) + Len(New(w, x, call)) - 1
AttemptsOf(e) ==
    LET counts == RanOut(e) /\ ((rec[e].alone /\ Kept("lonely run-out counts")) \/ ~Kept("only lonely counts"))
    IN rec[e].attempts + (IF counts THEN 1 ELSE 0)
RanOutBefore(x) == Chained /\ (ent[x].ranOut \/ ent[x].lease # "free")

\* The answer for an event: known, busy, again (the repeat of a lost reply), new, or alone: to be asked for by itself.
Kind(w, e, call) ==
    LET x == EntityOf(e)
        s == Asked(x, call)
    IN IF Known(e) THEN "known"
       ELSE IF IsOwn(w, x) THEN (IF rec[e].nonce = w THEN "again" ELSE "busy")
       ELSE IF IsBusy(x) THEN "busy"
       ELSE IF PlaceOf(e, s) < CutAt(s, call) THEN "new"
       ELSE IF PlaceOf(e, s) = 1 THEN "alone" ELSE "busy"
NewToken(w, e, call) ==
    LET x == EntityOf(e)
    IN IF Kept("tokens in a row") THEN FirstToken(x) + PlaceOf(e, New(w, x, call)) - 1 ELSE TopToken(w, x, call)
Answer(w, e, call) ==
    LET kind == Kind(w, e, call)
    IN [kind |-> IF kind = "again" THEN "new" ELSE kind,
        token |-> CASE kind = "new" -> NewToken(w, e, call) [] kind = "again" -> rec[e].token [] OTHER -> 0,
        attempt |-> CASE kind = "new" -> AttemptsOf(e) + 1 [] kind = "again" -> rec[e].attempts + 1 [] OTHER -> 1]

RecAfterClaim(w, call, lost) ==
    LET nonce == IF lost THEN w ELSE ""
        after == [e \in Events |->
            IF \E i \in 1..Len(New(w, EntityOf(e), call)) : New(w, EntityOf(e), call)[i] = e
            THEN [status |-> "claimed", token |-> NewToken(w, e, call), nonce |-> nonce, alone |-> call.alone,
                  attempts |-> AttemptsOf(e)]
            ELSE rec[e]]
    IN IF lost THEN after ELSE Forgotten(after, w)
EntAfterClaim(w, call, lost) ==
    LET after == [x \in Entities |->
            IF New(w, x, call) = <<>> THEN ent[x]
            ELSE [top |-> TopToken(w, x, call), nonce |-> IF lost THEN w ELSE "", lease |-> "runs",
                  ranOut |-> RanOutBefore(x), data |-> ent[x].data]]
    IN IF lost THEN after ELSE Forgotten(after, w)

\* What a worker makes of the answers: members to bring to their end, events to acknowledge, and calls still to make.
Base(w, call, members) ==
    LET unsure == IF IsOwn(w, 1) THEN ent[1].ranOut ELSE RanOutBefore(1)
    IN IF ~Chained \/ members = <<>> THEN Nothing
       ELSE [ent[1].data EXCEPT !.unsure = @ \/ (unsure /\ Kept("unsure after run-out"))]
Next1(k) ==  \* the next call; without one, the worker acknowledges, or gives everything back
    LET rest == [k EXCEPT !.members = <<>>, !.turn = 0, !.settled = 0, !.base = Nothing, !.overdue = FALSE]
    IN IF k.calls = <<>> /\ k.acks = {} THEN Idle ELSE rest
Heard(w, k) ==
    LET call == k.calls[1]
        granted == SelectSeq(call.events, LAMBDA e : Kind(w, e, call) \in {"new", "again"})
        lonely == SelectSeq(Turned(call.events), LAMBDA e : Kind(w, e, call) = "alone")
        topOf(e) == IF Kind(w, e, call) = "new" THEN TopToken(w, EntityOf(e), call) ELSE ent[EntityOf(e)].top
        members == [i \in 1..Len(granted) |->
            [event |-> granted[i], token |-> Answer(w, granted[i], call).token, top |-> topOf(granted[i]),
             attempt |-> Answer(w, granted[i], call).attempt, outcome |-> "", left |-> Nothing]]
        rest == [i \in 1..Len(lonely) |-> [events |-> <<lonely[i]>>, alone |-> TRUE]] \o Tail(k.calls)
        known == {call.events[i] : i \in {j \in 1..Len(call.events) : Kind(w, call.events[j], call) = "known"}}
        after == [k EXCEPT !.lost = <<>>, !.acks = @ \cup known, !.members = members, !.base = Base(w, call, members),
                           !.calls = IF members = <<>> THEN rest ELSE <<call>> \o rest]
    IN IF members = <<>> THEN Next1(after) ELSE after
\* Deliveries that nobody works on any more are delivered again.
GivenBack(k, after) == IF after = Idle THEN hidden \ k.taken ELSE hidden

\* The judge on a claim. What was granted before, in a reply that was lost, must be granted in the same way again.
JudgeClaim(w, k) ==
    LET call == k.calls[1]
        places == 1..Len(call.events)
        at(i) == call.events[i]
        answer(i) == Answer(w, at(i), call)
        wasLost(i) == k.lost # <<>> /\ k.lost[i].token \in hold[EntityOf(at(i))].open
        runs(i) == hold[EntityOf(at(i))].open # {} /\ hold[EntityOf(at(i))].runs
        begun == \E i \in places : answer(i).kind \in {"new", "alone"}
        granted == {i \in places : answer(i).token # 0 /\ ~wasLost(i)}
        ranOut(i) == last[at(i)].token # 0 /\ last[at(i)].outcome = ""
        spentThen(i) == spent[at(i)] + (IF ranOut(i) /\ last[at(i)].alone THEN 1 ELSE 0)
        above(i) == /\ answer(i).token > hold[EntityOf(at(i))].top
                    /\ \A j \in granted : j < i /\ EntityOf(at(j)) = EntityOf(at(i)) => answer(j).token < answer(i).token
        of(x) == {i \in granted : EntityOf(at(i)) = x}
    IN /\ hold' = [x \in Entities |-> IF of(x) = {} THEN hold[x] ELSE
              [top |-> answer(Greatest(of(x))).token, runs |-> TRUE, open |-> {answer(i).token : i \in of(x)}]]
       /\ last' = [e \in Events |-> IF \E i \in granted : at(i) = e
              THEN [token |-> answer(PlaceOf(e, call.events)).token, alone |-> call.alone, outcome |-> ""] ELSE last[e]]
       /\ spent' = [e \in Events |-> IF \E i \in granted : at(i) = e THEN spentThen(PlaceOf(e, call.events)) ELSE spent[e]]
       /\ closed' = closed
       /\ flaws' = flaws
              \cup Flaw("repeat", \A i \in places : wasLost(i) => answer(i) = k.lost[i])
              \cup Flaw("blocked", \A i \in places : answer(i).kind = "busy" /\ ~wasLost(i) => runs(i) \/ begun)
              \cup Flaw("two holders", \A i \in granted : ~runs(i))
              \cup Flaw("again", \A i \in granted : closed[at(i)] = "")
              \cup Flaw("token", \A i \in granted : above(i))
              \cup Flaw("attempts", \A i \in granted : answer(i).attempt = 1 + spentThen(i) /\ (call.alone \/ ~ranOut(i)))

Call(w, k, kept, lost) ==
    LET call == k.calls[1]
        after == IF lost THEN [k EXCEPT !.lost = [i \in 1..Len(call.events) |-> Answer(w, call.events[i], call)]]
                 ELSE Heard(w, k)
    IN /\ rec' = RecAfterClaim(w, call, lost)
       /\ ent' = EntAfterClaim(w, call, lost)
       /\ work' = [work EXCEPT ![w] = after]
       /\ hidden' = IF after = Idle THEN kept \ k.taken ELSE kept
       /\ JudgeClaim(w, k)
       /\ UNCHANGED <<gone, shown, effects>>

FirstsOf(taken) == {d \in taken : \A other \in taken : EventOf[other] = EventOf[d] => d <= other}
TakenBy(taken) ==
    LET firsts == Sorted(FirstsOf(taken))
        events == [i \in 1..Len(firsts) |-> EventOf[firsts[i]]]
    IN [Idle EXCEPT !.taken = taken, !.calls = <<[events |-> events, alone |-> Len(events) = 1]>>]
Take(w, lost) ==
    /\ work[w] = Idle
    /\ \E taken \in SUBSET (Deliveries \ (hidden \cup gone)) :
        /\ taken # {} /\ Cardinality(taken) <= TakenMax
        /\ Call(w, TakenBy(taken), hidden \cup taken, lost)
Ask(w, lost) == Asks(work[w]) /\ Call(w, work[w], hidden, lost)

(* ---- handle ---- *)

Copy(k) == IF k.turn = 0 THEN k.base ELSE k.members[k.turn].left
\* How the member whose turn has come ends without its handler; "" if that is called.
Untried(k) ==
    LET member == k.members[k.turn + 1]
        verdict == Verdict(member.event, Copy(k))
    IN IF verdict # "fresh" THEN verdict ELSE IF member.attempt > AttemptsMax THEN "dead" ELSE ""
Ending(k, outcome) ==
    [k EXCEPT !.turn = @ + 1, !.members[k.turn + 1].outcome = outcome,
              !.members[k.turn + 1].left = After(Copy(k), k.members[k.turn + 1].event, outcome)]

Effect(member) ==
    LET x == EntityOf(member.event)
    IN IF member.token < shown[x].token THEN UNCHANGED <<shown, effects>>
       ELSE /\ shown' = [shown EXCEPT ![x] = [token |-> member.token, event |-> member.event]]
            /\ effects' = effects \cup {member.event}
EchoIsRight(member) ==
    LET x == EntityOf(member.event)
        other == shown[x].event
    IN member.token \in hold[x].open =>
        other # 0 /\ StateOf[other] = StateOf[member.event] /\ <<member.event, other>> \in Near

\* A handler may succeed, fail before its effect, or fail after it.
Handle(w, how) ==
    LET k == work[w]
        member == k.members[k.turn + 1]
        failed == IF member.attempt >= AttemptsMax THEN "dead" ELSE "retry"
        ended == IF Untried(k) # "" THEN Untried(k) ELSE IF how = "well" THEN "done" ELSE failed
    IN /\ Works(k) /\ k.turn < Len(k.members)
       /\ how = "well" \/ Untried(k) = ""
       /\ IF Untried(k) = "" /\ how # "before" THEN Effect(member) ELSE UNCHANGED <<shown, effects>>
       /\ work' = [work EXCEPT ![w] = Ending(k, ended)]
       /\ flaws' = flaws \cup Flaw("echo", ended = "echo" => EchoIsRight(member))
       /\ UNCHANGED <<rec, ent, hidden, gone, judged>>

\* Give back the members that are left, untried.
Stop(w) ==
    LET k == work[w]
        left == After(Copy(k), k.members[k.turn + 1].event, "release")
        members == [i \in 1..Len(k.members) |-> IF i <= k.turn THEN k.members[i]
                    ELSE [k.members[i] EXCEPT !.outcome = "release", !.left = left]]
    IN /\ Works(k) /\ k.turn < Len(k.members)
       /\ work' = [work EXCEPT ![w] = [k EXCEPT !.members = members, !.turn = Len(members)]]
       /\ UNCHANGED <<rec, ent, hidden, gone, shown, effects, judged, flaws>>

(* ---- extend and settle ---- *)

SettledUp(k) == IF k.settled < Len(k.members) THEN k ELSE Next1([k EXCEPT !.calls = Tail(@)])
\* The lease of a chain is one, and any member that is not settled extends it; each fact has its own.
Extend(w) ==
    LET k == work[w]
        first == k.settled + 1
        left == IF Chained THEN {first} ELSE first..Len(k.members)
        x(i) == EntityOf(k.members[i].event)
        ok(i) == ent[x(i)].lease # "free" /\ (ent[x(i)].top = k.members[i].top \/ ~Kept("extend by top token"))
        inForce(i) == hold[x(i)].open # {} /\ hold[x(i)].top = k.members[i].top
        extended == {x(i) : i \in {j \in left : ok(j)}}
        keeps(i) == i <= k.turn \/ (IF Chained THEN ok(first) ELSE i \notin left \/ ok(i))
        places == Sorted({i \in 1..Len(k.members) : keeps(i)})
        after == SettledUp([k EXCEPT !.overdue = FALSE, !.members = [n \in 1..Len(places) |-> k.members[places[n]]]])
    IN /\ Works(k) /\ k.overdue
       /\ ent' = [y \in Entities |-> IF y \in extended THEN [ent[y] EXCEPT !.lease = "runs"] ELSE ent[y]]
       /\ hold' = [y \in Entities |-> IF \E i \in left : x(i) = y /\ inForce(i) THEN [hold[y] EXCEPT !.runs = TRUE] ELSE hold[y]]
       /\ work' = [work EXCEPT ![w] = after]
       /\ hidden' = GivenBack(k, after)
       /\ flaws' = flaws \cup Flaw("late", \A i \in left : ok(i) => inForce(i))
                         \cup Flaw("refused", \A i \in left : inForce(i) => ok(i))
       /\ UNCHANGED <<rec, gone, shown, effects, last, closed, spent>>

\* A write is compared with the event's token and with its entity's top token. Who finds its own outcome is answered ok.
MayWrite(m) == /\ rec[m.event].token = m.token \/ ~Kept("token")
               /\ rec[m.event].status = "claimed"
               /\ ent[EntityOf(m.event)].top = m.top \/ ~Kept("top token")
IsRepeat(m) == Kept("own outcome") /\ rec[m.event].token = m.token /\ rec[m.event].status = m.outcome
Frees(k, i) == \/ ~Chained
               \/ i = Len(k.members) /\ Kept("freed at the end")
               \/ ~Kept("last end frees")
Counts(outcome) == \/ outcome \in {"retry", "dead"} /\ Kept("failure counts")
                   \/ outcome = "release" /\ ~Kept("release does not count")

StandingThen(then) == {e \in Events : then[e] \in {"done", "echo"} /\ e \notin Ahead}
JudgeSettle(k, ends, ok) ==
    LET m(i) == k.members[i]
        x(i) == EntityOf(m(i).event)
        inForce == {i \in ends : m(i).token \in hold[x(i)].open}
        of(e) == CHOOSE i \in inForce : m(i).event = e
        isOf(e) == \E i \in inForce : m(i).event = e
        repeated(i) == last[m(i).event].token = m(i).token /\ last[m(i).event].outcome = m(i).outcome
        spentThen == [e \in Events |-> IF isOf(e) /\ m(of(e)).outcome \in {"retry", "dead"} THEN spent[e] + 1 ELSE spent[e]]
        closedThen == [e \in Events |-> IF ~isOf(e) THEN closed[e]
                       ELSE IF m(of(e)).outcome \in Settled THEN m(of(e)).outcome ELSE ""]
        newer(e) == \E other \in StandingThen(closedThen) : <<e, other>> \in Older
    IN /\ hold' = [y \in Entities |-> [hold[y] EXCEPT !.open = @ \ {m(i).token : i \in {j \in inForce : x(j) = y}}]]
       /\ last' = [e \in Events |-> IF isOf(e) THEN [last[e] EXCEPT !.outcome = m(of(e)).outcome] ELSE last[e]]
       /\ spent' = spentThen
       /\ closed' = closedThen
       /\ flaws' = flaws
              \cup Flaw("late", \A i \in ends \ inForce : i \in ok => repeated(i))
              \cup Flaw("repeat", \A i \in ends \ inForce : repeated(i) => i \in ok)
              \cup Flaw("refused", inForce \subseteq ok)
              \cup Flaw("lost", \A i \in inForce : m(i).outcome = "done" => m(i).event \in effects)
              \cup Flaw("stale", \A i \in inForce : m(i).outcome = "stale" => newer(m(i).event))
              \cup Flaw("attempts", \A i \in inForce : m(i).outcome = "dead" => spentThen[m(i).event] >= AttemptsMax)

\* Settle the members that have ended. The first that is refused tells that the rest of the chain is lost.
Settle(w, lost) ==
    LET k == work[w]
        ends == (k.settled + 1)..k.turn
        m(i) == k.members[i]
        writes == {i \in ends : MayWrite(m(i))}
        ok == writes \cup {i \in ends : IsRepeat(m(i))}
        of(e) == CHOOSE i \in writes : m(i).event = e
        newRec(e) == [rec[e] EXCEPT !.status = m(of(e)).outcome, !.nonce = "",
                                    !.attempts = @ + (IF Counts(m(of(e)).outcome) THEN 1 ELSE 0)]
        onEnt(x) == {i \in writes : EntityOf(m(i).event) = x}
        data(x) == IF Kept("data with the end") THEN m(Greatest(onEnt(x))).left ELSE ent[x].data
        left(x) == [ent[x] EXCEPT !.data = data(x), !.ranOut = FALSE]
        newEnt(x) == IF \E i \in onEnt(x) : Frees(k, i) THEN [left(x) EXCEPT !.lease = "free", !.nonce = ""] ELSE left(x)
        known == {m(i).event : i \in {j \in ok : m(j).outcome \in Settled}}
        kept == IF Chained /\ ok # ends THEN SubSeq(k.members, 1, k.turn) ELSE k.members
        after == IF lost THEN k ELSE SettledUp([k EXCEPT !.acks = @ \cup known, !.settled = k.turn, !.members = kept])
    IN /\ Works(k) /\ k.settled < k.turn
       /\ rec' = [e \in Events |-> IF \E i \in writes : m(i).event = e THEN newRec(e) ELSE rec[e]]
       /\ ent' = [x \in Entities |-> IF onEnt(x) = {} THEN ent[x] ELSE newEnt(x)]
       /\ work' = [work EXCEPT ![w] = after]
       /\ hidden' = GivenBack(k, after)
       /\ JudgeSettle(k, ends, ok)
       /\ UNCHANGED <<gone, shown, effects>>

(* ---- the transport, crashes and the clock ---- *)

Acknowledge(w) ==
    LET k == work[w]
    IN /\ Ended(k)
       /\ gone' = gone \cup {d \in k.taken : EventOf[d] \in k.acks}
       /\ hidden' = hidden \ k.taken
       /\ work' = [work EXCEPT ![w] = Idle]
       /\ UNCHANGED <<rec, ent, shown, effects, judged, flaws>>

Crash(w) ==
    /\ work[w] # Idle
    /\ work' = [work EXCEPT ![w] = Idle]
    /\ hidden' = hidden \ work[w].taken
    /\ rec' = Forgotten(rec, w)
    /\ ent' = Forgotten(ent, w)
    /\ UNCHANGED <<gone, shown, effects, judged, flaws>>

\* The clock passes every lease, and the transport delivers again what a worker has kept for so long.
Tick ==
    /\ ent' = [x \in Entities |-> IF ent[x].lease = "runs" THEN [ent[x] EXCEPT !.lease = "over"] ELSE ent[x]]
    /\ hold' = [x \in Entities |-> [hold[x] EXCEPT !.runs = FALSE]]
    /\ work' = [w \in Workers |-> IF Works(work[w]) THEN [work[w] EXCEPT !.overdue = TRUE] ELSE work[w]]
    /\ hidden' = {}
    /\ UNCHANGED <<rec, gone, shown, effects, last, closed, spent, flaws>>

Fault == faults > 0 /\ faults' = faults - 1
Step(w) == Take(w, FALSE) \/ Ask(w, FALSE) \/ Handle(w, "well") \/ Extend(w) \/ Settle(w, FALSE) \/ Acknowledge(w)
Trouble(w) == \/ Take(w, TRUE) \/ Ask(w, TRUE) \/ Settle(w, TRUE)           \* the reply is lost
              \/ Handle(w, "before") \/ Handle(w, "after") \/ Stop(w) \/ Crash(w)
Wait == AllIdle /\ Tick /\ UNCHANGED faults
Pause == ~AllIdle /\ Tick /\ Fault

Next == \/ \E w \in Workers : Step(w) /\ UNCHANGED faults
        \/ \E w \in Workers : Fault /\ Trouble(w)
        \/ Wait
        \/ Pause
Spec == Init /\ [][Next]_vars

(* ---- the promises ---- *)

AtEnd == AllIdle /\ gone = Deliveries

\* Nothing is lost: what is acknowledged was settled for good, is so in the ledger, and what is done has taken effect.
NothingLost == /\ \A d \in gone : closed[EventOf[d]] # ""
               /\ \A e \in Events : closed[e] # "" => rec[e].status = closed[e]
               /\ "lost" \notin flaws
\* No second effect while a holder lives: nothing is granted twice, nor what was settled for good.
OneHolder == flaws \cap {"two holders", "again"} = {}
\* A late worker changes nothing, and the one in force is not refused.
NoLateSettle == flaws \cap {"late", "refused"} = {}
\* A call whose reply was lost is answered again in the same way.
RepeatsAgree == "repeat" \notin flaws
TokensRise == "token" \notin flaws
\* Echo and stale are only called so where the sink shows it, and something newer has taken effect.
VerdictsRight == flaws \cap {"echo", "stale"} = {}
AttemptsRight == "attempts" \notin flaws
\* Nobody is told to wait where nobody holds. That every way can still come to its end is checked on the graph of states.
NeverBlocked == "blocked" \notin flaws
\* In the end the sink shows the newest state: either of two at the same time, or one that died after its effect.
NewestShown ==
    LET standing == StandingThen(closed)
        newest == {e \in standing : \A other \in standing : <<e, other>> \notin Older}
        e == shown[1].event
    IN AtEnd /\ Chained /\ e # 0 /\ standing # {} /\ e \notin Ahead =>
        \/ \E one \in newest : StateOf[one] = StateOf[e]
        \/ closed[e] = "dead" /\ \A one \in newest : <<e, one>> \notin Older
===============================================================================
