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
IsAsking(k) == k.members = <<>> /\ k.calls # <<>>
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

\* What a call finds at each entity: whether it is its own claim, or in another's; its events that are not settled, in
\* their order, and how many of them it grants: those before the first that must be claimed alone.
Asked(x, call) == SelectSeq(call.events, LAMBDA e : EntityOf(e) = x /\ ~Known(e))
Before(asked, call) ==
    LET bad == {i \in 1..Len(asked) : RanOut(asked[i]) /\ ~call.alone /\ Kept("run-out alone")}
    IN IF bad = {} THEN Len(asked) ELSE Least(bad) - 1
FirstToken(x) == IF Kept("tokens rise") THEN ent[x].top + 1 ELSE 1
FoundAt(w, x, call, asked) ==
    LET own == IsOwn(w, x)
        busy == IsBusy(x)
        new == IF own \/ busy THEN 0 ELSE Before(asked, call)
    IN [own |-> own, busy |-> busy, asked |-> asked, new |-> new, first |-> FirstToken(x), top |-> FirstToken(x) + new - 1]
Found(w, call) == [x \in Entities |-> FoundAt(w, x, call, Asked(x, call))]

\* The answer for an event: known, busy, again (the repeat of a lost reply), new, or alone: to be asked for by itself.
Kind(w, e, at) ==
    IF Known(e) THEN "known"
    ELSE IF at.own THEN (IF rec[e].nonce = w THEN "again" ELSE "busy")
    ELSE IF at.busy THEN "busy"
    ELSE IF PlaceOf(e, at.asked) <= at.new THEN "new"
    ELSE IF PlaceOf(e, at.asked) = 1 THEN "alone" ELSE "busy"
AttemptsOf(e) ==
    LET counts == RanOut(e) /\ ((rec[e].alone /\ Kept("lonely run-out counts")) \/ ~Kept("only lonely counts"))
    IN rec[e].attempts + (IF counts THEN 1 ELSE 0)
AnswerAs(kind, e, at) ==
    CASE kind = "new" -> [kind |-> kind, attempt |-> AttemptsOf(e) + 1, top |-> at.top,
                          token |-> IF Kept("tokens in a row") THEN at.first + PlaceOf(e, at.asked) - 1 ELSE at.top]
      [] kind = "again" -> [kind |-> kind, attempt |-> rec[e].attempts + 1, top |-> ent[EntityOf(e)].top,
                            token |-> rec[e].token]
      [] OTHER -> [kind |-> kind, attempt |-> 1, top |-> 0, token |-> 0]
Answers(w, call, found) ==
    [i \in 1..Len(call.events) |->
        AnswerAs(Kind(w, call.events[i], found[EntityOf(call.events[i])]), call.events[i],
                 found[EntityOf(call.events[i])])]
Said(answer) == [kind |-> IF answer.kind = "again" THEN "new" ELSE answer.kind, token |-> answer.token,
                 attempt |-> answer.attempt]
AllSaid(answers) == [i \in 1..Len(answers) |-> Said(answers[i])]

RanOutBefore(x) == Chained /\ (ent[x].ranOut \/ ent[x].lease # "free")
RecClaimed(e, answer, alone, nonce) ==
    [status |-> "claimed", token |-> answer.token, nonce |-> nonce, alone |-> alone, attempts |-> answer.attempt - 1]
RecAfterClaim(call, answers, nonce) ==
    LET new == {i \in 1..Len(answers) : answers[i].kind = "new"}
        events == {call.events[i] : i \in new}
    IN [e \in Events |-> IF e \in events THEN RecClaimed(e, answers[PlaceOf(e, call.events)], call.alone, nonce)
                         ELSE rec[e]]
EntAfterClaim(found, nonce) ==
    [x \in Entities |-> IF found[x].new = 0 THEN ent[x]
        ELSE [top |-> found[x].top, nonce |-> nonce, lease |-> "runs", ranOut |-> RanOutBefore(x), data |-> ent[x].data]]

\* What a worker makes of the answers: members to bring to their end, events to acknowledge, and calls still to make.
Base(own) ==
    LET unsure == IF own THEN ent[1].ranOut ELSE RanOutBefore(1)
    IN IF ~Chained THEN Nothing ELSE [ent[1].data EXCEPT !.unsure = @ \/ (unsure /\ Kept("unsure after run-out"))]
NextCall(k) ==  \* without one, the worker acknowledges, or gives everything back
    IF k.calls = <<>> /\ k.acks = {} THEN Idle
    ELSE [k EXCEPT !.members = <<>>, !.turn = 0, !.settled = 0, !.base = Nothing, !.overdue = FALSE]
Member(event, answer) ==
    [event |-> event, token |-> answer.token, top |-> answer.top, attempt |-> answer.attempt, outcome |-> "",
     left |-> Nothing]
Members(call, answers, places) ==
    [n \in 1..Len(places) |-> Member(call.events[places[n]], answers[places[n]])]
Alone(call, places) == [n \in 1..Len(places) |-> [events |-> <<call.events[places[n]]>>, alone |-> TRUE]]
PlacesOf(answers, kinds) == Sorted({i \in 1..Len(answers) : answers[i].kind \in kinds})
Heard(k, found, answers) ==
    LET call == k.calls[1]
        members == Members(call, answers, PlacesOf(answers, {"new", "again"}))
        lonely == Alone(call, Turned(PlacesOf(answers, {"alone"})))
        known == {call.events[i] : i \in {j \in 1..Len(answers) : answers[j].kind = "known"}}
        heard == [k EXCEPT !.lost = <<>>, !.acks = @ \cup known]
    IN IF members = <<>> THEN NextCall([heard EXCEPT !.calls = lonely \o Tail(@)])
       ELSE [heard EXCEPT !.members = members, !.base = Base(found[1].own), !.calls = <<call>> \o lonely \o Tail(@)]
\* Deliveries that nobody works on any more are delivered again.
Hidden(kept, taken, after) == IF after = Idle THEN kept \ taken ELSE kept

\* The judge on a claim. What was granted before, in a reply that was lost, must be granted in the same way again.
LastRanOut(e) == last[e].token # 0 /\ last[e].outcome = ""
SpentThen(e) == spent[e] + (IF LastRanOut(e) /\ last[e].alone THEN 1 ELSE 0)
HoldThen(x, mine, answers) ==
    IF mine = {} THEN hold[x]
    ELSE [top |-> answers[Greatest(mine)].token, runs |-> TRUE, open |-> {answers[i].token : i \in mine}]
HoldsThen(events, granted, answers) ==
    [x \in Entities |-> HoldThen(x, {i \in granted : EntityOf(events[i]) = x}, answers)]
LastThen(events, fresh, answers, alone) ==
    [e \in Events |-> IF e \in fresh THEN [token |-> answers[PlaceOf(e, events)].token, alone |-> alone, outcome |-> ""]
                      ELSE last[e]]
SpentsThen(fresh) == [e \in Events |-> IF e \in fresh THEN SpentThen(e) ELSE spent[e]]
IsAbove(i, events, answers, granted) ==
    /\ answers[i].token > hold[EntityOf(events[i])].top
    /\ \A j \in granted : j < i /\ EntityOf(events[j]) = EntityOf(events[i]) => answers[j].token < answers[i].token
JudgeClaim(k, answers) ==
    LET call == k.calls[1]
        events == call.events
        places == 1..Len(events)
        wasLost == {i \in places : k.lost # <<>> /\ k.lost[i].token \in hold[EntityOf(events[i])].open}
        running == {x \in Entities : hold[x].open # {} /\ hold[x].runs}
        begun == \E i \in places : answers[i].kind \in {"new", "alone"}
        granted == {i \in places \ wasLost : answers[i].token # 0}
        fresh == {events[i] : i \in granted}
    IN [hold |-> HoldsThen(events, granted, answers),
        last |-> LastThen(events, fresh, answers, call.alone),
        spent |-> SpentsThen(fresh),
        flaws |-> flaws
            \cup Flaw("repeat", \A i \in wasLost : Said(answers[i]) = k.lost[i])
            \cup Flaw("blocked", begun \/ \A i \in places \ wasLost :
                                     answers[i].kind = "busy" => EntityOf(events[i]) \in running)
            \cup Flaw("two holders", \A i \in granted : EntityOf(events[i]) \notin running)
            \cup Flaw("again", \A e \in fresh : closed[e] = "")
            \cup Flaw("token", \A i \in granted : IsAbove(i, events, answers, granted))
            \cup Flaw("attempts", \A i \in granted : /\ answers[i].attempt = 1 + SpentThen(events[i])
                                                     /\ call.alone \/ ~LastRanOut(events[i]))]

Claimed(w, k, kept, lost, found, answers) ==
    LET nonce == IF lost THEN w ELSE ""
        after == IF lost THEN [k EXCEPT !.lost = AllSaid(answers)] ELSE Heard(k, found, answers)
        records == RecAfterClaim(k.calls[1], answers, nonce)
        entities == EntAfterClaim(found, nonce)
    IN [rec |-> IF lost THEN records ELSE Forgotten(records, w),
        ent |-> IF lost THEN entities ELSE Forgotten(entities, w),
        worker |-> after,
        hidden |-> Hidden(kept, k.taken, after),
        judged |-> JudgeClaim(k, answers)]
AfterCall(w, k, kept, lost) ==
    LET call == k.calls[1]
        found == Found(w, call)
        answers == Answers(w, call, found)
    IN Claimed(w, k, kept, lost, found, answers)
Call(w, k, kept, lost) ==
    /\ UNCHANGED <<gone, shown, effects, closed>>
    /\ \E after \in {AfterCall(w, k, kept, lost)} :
        /\ rec' = after.rec
        /\ ent' = after.ent
        /\ work' = [work EXCEPT ![w] = after.worker]
        /\ hidden' = after.hidden
        /\ hold' = after.judged.hold
        /\ last' = after.judged.last
        /\ spent' = after.judged.spent
        /\ flaws' = after.judged.flaws

FirstsOf(taken) == {d \in taken : \A other \in taken : EventOf[other] = EventOf[d] => d <= other}
CallFor(firsts) == [events |-> [i \in 1..Len(firsts) |-> EventOf[firsts[i]]], alone |-> Len(firsts) = 1]
TakenBy(taken) == [Idle EXCEPT !.taken = taken, !.calls = <<CallFor(Sorted(FirstsOf(taken)))>>]
Takings == {taken \in SUBSET (Deliveries \ (hidden \cup gone)) : taken # {} /\ Cardinality(taken) <= TakenMax}
Take(w, taken, lost) == work[w] = Idle /\ Call(w, TakenBy(taken), hidden \cup taken, lost)
Ask(w, lost) == IsAsking(work[w]) /\ Call(w, work[w], hidden, lost)

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

EchoIsRight(member) ==
    LET x == EntityOf(member.event)
        other == shown[x].event
    IN member.token \in hold[x].open =>
        other # 0 /\ StateOf[other] = StateOf[member.event] /\ <<member.event, other>> \in Near
\* A handler may succeed, fail before its effect, or fail after it. A fenced sink ignores a lower token than the highest.
AfterHandling(k, how, untried) ==
    LET member == k.members[k.turn + 1]
        failed == IF member.attempt >= AttemptsMax THEN "dead" ELSE "retry"
        ended == IF untried # "" THEN untried ELSE IF how = "well" THEN "done" ELSE failed
        x == EntityOf(member.event)
        reaches == untried = "" /\ how # "before" /\ member.token >= shown[x].token
    IN [worker |-> Ending(k, ended),
        shown |-> IF reaches THEN [shown EXCEPT ![x] = [token |-> member.token, event |-> member.event]] ELSE shown,
        effects |-> IF reaches THEN effects \cup {member.event} ELSE effects,
        flaws |-> flaws \cup Flaw("echo", ended = "echo" => EchoIsRight(member))]
HasTurn(k) == Works(k) /\ k.turn < Len(k.members)
Handle(w, how) ==
    /\ HasTurn(work[w])
    /\ how = "well" \/ Untried(work[w]) = ""
    /\ UNCHANGED <<rec, ent, hidden, gone, judged>>
    /\ \E after \in {AfterHandling(work[w], how, Untried(work[w]))} :
        /\ work' = [work EXCEPT ![w] = after.worker]
        /\ shown' = after.shown
        /\ effects' = after.effects
        /\ flaws' = after.flaws

\* Give back the members that are left, untried.
ReleasedFrom(k, left) ==
    [i \in 1..Len(k.members) |-> IF i <= k.turn THEN k.members[i]
                                 ELSE [k.members[i] EXCEPT !.outcome = "release", !.left = left]]
AfterStop(k) ==
    [k EXCEPT !.members = ReleasedFrom(k, After(Copy(k), k.members[k.turn + 1].event, "release")), !.turn = Len(k.members)]
Stop(w) ==
    /\ HasTurn(work[w])
    /\ UNCHANGED <<rec, ent, hidden, gone, shown, effects, judged, flaws>>
    /\ work' = [work EXCEPT ![w] = AfterStop(work[w])]

(* ---- extend and settle ---- *)

SettledUp(k) == IF k.settled < Len(k.members) THEN k ELSE NextCall([k EXCEPT !.calls = Tail(@)])
\* The lease of a chain is one, and any member that is not settled extends it; each fact has its own.
MayExtend(m) ==
    LET x == EntityOf(m.event) IN ent[x].lease # "free" /\ (ent[x].top = m.top \/ ~Kept("extend by top token"))
IsInForce(m) == LET x == EntityOf(m.event) IN hold[x].open # {} /\ hold[x].top = m.top
Only(members, places) == [n \in 1..Len(places) |-> members[places[n]]]
LeasesThen(extended) == [x \in Entities |-> IF x \in extended THEN [ent[x] EXCEPT !.lease = "runs"] ELSE ent[x]]
RunningThen(running) == [x \in Entities |-> IF x \in running THEN [hold[x] EXCEPT !.runs = TRUE] ELSE hold[x]]
AfterExtend(k) ==
    LET members == k.members
        first == k.settled + 1
        left == IF Chained THEN {first} ELSE first..Len(members)
        ok == {i \in left : MayExtend(members[i])}
        inForce == {i \in left : IsInForce(members[i])}
        keeps == {i \in 1..Len(members) : i <= k.turn \/ (IF Chained THEN first \in ok ELSE i \notin left \/ i \in ok)}
    IN [worker |-> SettledUp([k EXCEPT !.overdue = FALSE, !.members = Only(members, Sorted(keeps))]),
        ent |-> LeasesThen({EntityOf(members[i].event) : i \in ok}),
        hold |-> RunningThen({EntityOf(members[i].event) : i \in inForce}),
        flaws |-> flaws \cup Flaw("late", ok \subseteq inForce) \cup Flaw("refused", inForce \subseteq ok)]
Extend(w) ==
    /\ Works(work[w]) /\ work[w].overdue
    /\ UNCHANGED <<rec, gone, shown, effects, last, closed, spent>>
    /\ \E after \in {AfterExtend(work[w])} :
        /\ ent' = after.ent
        /\ work' = [work EXCEPT ![w] = after.worker]
        /\ hidden' = Hidden(hidden, work[w].taken, after.worker)
        /\ hold' = after.hold
        /\ flaws' = after.flaws

\* A write is compared with the event's token, and a state's with its entity's top token. Who finds its own outcome is answered ok.
MayWrite(m) == /\ rec[m.event].token = m.token \/ ~Kept("token")
               /\ rec[m.event].status = "claimed"
               /\ ~Chained \/ ent[EntityOf(m.event)].top = m.top \/ ~Kept("top token")
IsRepeat(m) == Kept("own outcome") /\ rec[m.event].token = m.token /\ rec[m.event].status = m.outcome
Frees(k, i) == \/ ~Chained
               \/ i = Len(k.members) /\ Kept("freed at the end")
               \/ ~Kept("last end frees")
Counts(outcome) == \/ outcome \in {"retry", "dead"} /\ Kept("failure counts")
                   \/ outcome = "release" /\ ~Kept("release does not count")
RecSettled(e, outcome) ==
    [rec[e] EXCEPT !.status = outcome, !.nonce = "", !.attempts = @ + (IF Counts(outcome) THEN 1 ELSE 0)]
RecsSettled(m, writes) ==
    [e \in Events |-> IF \E i \in writes : m[i].event = e
                      THEN RecSettled(e, m[CHOOSE i \in writes : m[i].event = e].outcome) ELSE rec[e]]
EntSettled(x, k, mine) ==
    LET data == IF Kept("data with the end") THEN k.members[Greatest(mine)].left ELSE ent[x].data
        left == [ent[x] EXCEPT !.data = data, !.ranOut = FALSE]
    IN IF \E i \in mine : Frees(k, i) THEN [left EXCEPT !.lease = "free", !.nonce = ""] ELSE left
EntsSettled(k, writes) ==
    [x \in Entities |-> IF \E i \in writes : EntityOf(k.members[i].event) = x
                        THEN EntSettled(x, k, {i \in writes : EntityOf(k.members[i].event) = x}) ELSE ent[x]]

\* The judge on a settle.
StandingThen(then) == {e \in Events : then[e] \in {"done", "echo"} /\ e \notin Ahead}
HasNewer(e, standing) == \E other \in standing : <<e, other>> \in Older
WasRepeated(m) == last[m.event].token = m.token /\ last[m.event].outcome = m.outcome
OutcomeIn(e, m, places) == IF \E i \in places : m[i].event = e THEN m[CHOOSE i \in places : m[i].event = e].outcome ELSE "none"
OpenWithout(tokens) == [x \in Entities |-> [hold[x] EXCEPT !.open = @ \ {t[2] : t \in {s \in tokens : s[1] = x}}]]
OutcomesOf(m, places) == [e \in Events |-> OutcomeIn(e, m, places)]
LastSettled(o) == [e \in Events |-> IF o[e] = "none" THEN last[e] ELSE [last[e] EXCEPT !.outcome = o[e]]]
SpentSettled(o) == [e \in Events |-> IF o[e] \in {"retry", "dead"} THEN spent[e] + 1 ELSE spent[e]]
ClosedSettled(o) ==
    [e \in Events |-> IF o[e] = "none" THEN closed[e] ELSE IF o[e] \in Settled THEN o[e] ELSE ""]
JudgeSettle(m, ends, ok) ==
    LET inForce == {i \in ends : m[i].token \in hold[EntityOf(m[i].event)].open}
        repeated == {i \in ends \ inForce : WasRepeated(m[i])}
        outcomes == OutcomesOf(m, inForce)
        spentThen == SpentSettled(outcomes)
        closedThen == ClosedSettled(outcomes)
        standing == StandingThen(closedThen)
    IN [hold |-> OpenWithout({<<EntityOf(m[i].event), m[i].token>> : i \in inForce}),
        last |-> LastSettled(outcomes),
        spent |-> spentThen,
        closed |-> closedThen,
        flaws |-> flaws
            \cup Flaw("late", ok \ inForce \subseteq repeated)
            \cup Flaw("repeat", repeated \subseteq ok)
            \cup Flaw("refused", inForce \subseteq ok)
            \cup Flaw("lost", \A i \in inForce : m[i].outcome = "done" => m[i].event \in effects)
            \cup Flaw("stale", \A i \in inForce : m[i].outcome = "stale" => HasNewer(m[i].event, standing))
            \cup Flaw("attempts", \A i \in inForce : m[i].outcome = "dead" => spentThen[m[i].event] >= AttemptsMax)]

\* Settle the members that have ended. The first that is refused tells that the rest of the chain is lost.
AfterSettle(k, lost) ==
    LET members == k.members
        ends == (k.settled + 1)..k.turn
        writes == {i \in ends : MayWrite(members[i])}
        ok == writes \cup {i \in ends : IsRepeat(members[i])}
        known == {members[i].event : i \in {j \in ok : members[j].outcome \in Settled}}
        kept == IF Chained /\ ok # ends THEN SubSeq(members, 1, k.turn) ELSE members
    IN [rec |-> RecsSettled(members, writes),
        ent |-> EntsSettled(k, writes),
        worker |-> IF lost THEN k ELSE SettledUp([k EXCEPT !.acks = @ \cup known, !.settled = k.turn, !.members = kept]),
        judged |-> JudgeSettle(members, ends, ok)]
Settle(w, lost) ==
    /\ Works(work[w]) /\ work[w].settled < work[w].turn
    /\ UNCHANGED <<gone, shown, effects>>
    /\ \E after \in {AfterSettle(work[w], lost)} :
        /\ rec' = after.rec
        /\ ent' = after.ent
        /\ work' = [work EXCEPT ![w] = after.worker]
        /\ hidden' = Hidden(hidden, work[w].taken, after.worker)
        /\ hold' = after.judged.hold
        /\ last' = after.judged.last
        /\ spent' = after.judged.spent
        /\ closed' = after.judged.closed
        /\ flaws' = after.judged.flaws

(* ---- the transport, crashes and the clock ---- *)

Acknowledge(w) ==
    /\ Ended(work[w])
    /\ UNCHANGED <<rec, ent, shown, effects, judged, flaws>>
    /\ gone' = gone \cup {d \in work[w].taken : EventOf[d] \in work[w].acks}
    /\ hidden' = hidden \ work[w].taken
    /\ work' = [work EXCEPT ![w] = Idle]

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

\* Each step by the name that a counterexample tells it by. First what goes well, then what may go wrong.
Well == UNCHANGED faults
Takes(w, taken) == Well /\ Take(w, taken, FALSE)
AsksAgain(w) == Well /\ Ask(w, FALSE)
Handles(w) == Well /\ Handle(w, "well")
Extends(w) == Well /\ Extend(w)
Settles(w) == Well /\ Settle(w, FALSE)
Acknowledges(w) == Well /\ Acknowledge(w)
Waits == Well /\ AllIdle /\ Tick

Fault == faults > 0 /\ faults' = faults - 1
TakesUnheard(w, taken) == Fault /\ Take(w, taken, TRUE)     \* the reply is lost, and so on
AsksUnheard(w) == Fault /\ Ask(w, TRUE)
SettlesUnheard(w) == Fault /\ Settle(w, TRUE)
FailsBefore(w) == Fault /\ Handle(w, "before")
FailsAfter(w) == Fault /\ Handle(w, "after")
Stops(w) == Fault /\ Stop(w)
Crashes(w) == Fault /\ Crash(w)
Pauses == Fault /\ ~AllIdle /\ Tick

Goes == \/ \E w \in Workers : \E taken \in Takings : Takes(w, taken)
        \/ \E w \in Workers : AsksAgain(w)
        \/ \E w \in Workers : Handles(w)
        \/ \E w \in Workers : Extends(w)
        \/ \E w \in Workers : Settles(w)
        \/ \E w \in Workers : Acknowledges(w)
        \/ Waits
Errs == \/ \E w \in Workers : \E taken \in Takings : TakesUnheard(w, taken)
        \/ \E w \in Workers : AsksUnheard(w)
        \/ \E w \in Workers : SettlesUnheard(w)
        \/ \E w \in Workers : FailsBefore(w)
        \/ \E w \in Workers : FailsAfter(w)
        \/ \E w \in Workers : Stops(w)
        \/ \E w \in Workers : Crashes(w)
        \/ Pauses
Next == Goes \/ Errs
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
