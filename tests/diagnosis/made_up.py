"""Made-up diagnoses: plausible ones, empty ones, and hostile ones that no capture gives."""

import random

from msgspec.structs import replace

from oncebridge.diagnosis.diagnosis import (
    Advice,
    Cause,
    CauseFound,
    Diagnosis,
    EchoWindow,
    Example,
    KeyTried,
    Lags,
    LookAlike,
    OverTime,
    TopicFound,
    TopicPair,
)

START_MS = 1_772_438_400_000  # 2026-03-02 08:00 UTC
MINUTE_MS = 60_000
EDGES = [10, 30, 100, 300, 1000, 3000, 10_000, 60_000, 300_000, 3_600_000, 86_400_000, 345_600_000]
TOPICS = [
    "v2.detail.events.conversation.{id}.customer.start",
    "v2.detail.events.conversation.{id}.acw",
    "v2.detail.events.conversation.{id}.user.end",
    "v2.users.{id}.presence",
    "v2.users.{id}.routingStatus",
    "v2.routing.queues.{id}.conversations.calls",
    "v2.analytics.conversation.{id}.metrics",
    "v2.audits.entitytype.{id}.entityid.{id}",
    "Conversation Status Change",
]
FOUND = [
    (
        Cause.OVERLAPPING_RULES,
        "two rules or targets match",
        4210,
        "The same envelope id came in two messages within 40 ms, for 98 % of the envelopes of six topics.",
        "List the rules of the bus (aws events list-rules), and narrow one of each pair that matches the same topics.",
        [0, 0, 1500, 2400, 310, 0, 0, 0, 0, 0, 0, 0],
    ),
    (
        Cause.GENESYS_REPUBLISH,
        "Genesys sent the event again",
        322,
        "The same event came from the same source under a new envelope id, up to 26 hours later.",
        "Nothing to repair: it cannot be switched off. Compare the event itself, for five days at least.",
        [0, 0, 0, 0, 0, 12, 40, 120, 80, 50, 18, 2],
    ),
    (
        Cause.SQS_REDELIVERY,
        "SQS delivered the same message again",
        97,
        "The same message id came up to four times, with a growing receive count, 30 seconds apart.",
        "Make the visibility timeout at least six times the function's timeout.",
        [0, 0, 0, 0, 0, 0, 0, 97, 0, 0, 0, 0],
    ),
    (
        Cause.ECHO,
        "a state was said again within its echo window",
        41,
        "The same state of the same entity was published again within 500 ms, with another time.",
        "Nothing to repair: Oncebridge recognises them.",
        [0, 0, 20, 21, 0, 0, 0, 0, 0, 0, 0, 0],
    ),
    (
        Cause.UNKNOWN,
        "the capture does not tell who repeated it",
        9,
        "The same event came again, but nothing around it says which hop repeated it.",
        "Capture with what AWS writes around the events.",
        [0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
    ),
]
KEYS = [
    ("envelope_id", "Envelope id", "the id of the envelope", None, 372, 0),
    ("conversation_10s", "Conversation, 10 s", "the conversation's id", 10.0, 410, 2118),
    (
        "conversation_state_500ms",
        "Conversation and state, 500 ms",
        "the conversation's id and its state",
        0.5,
        469,
        204,
    ),
    ("conversation_time", "Conversation and timestamp", "the conversation's id and the event's time", None, 41, 87),
    ("content_hash", "Content hash", "all of detail, as it is written", None, 38, 0),
    ("sqs_fifo", "SQS FIFO, 5 min", "the whole message when it is sent", 300.0, 470, 0),
    ("powertools", "Powertools, 1 h", "the whole event", 3600.0, 401, 0),
    ("oncebridge", "Oncebridge, these settings", "the event itself, by its topic's profile", 604_800.0, 0, 0),
]


def example(n=1204, **fields):
    """Make an example up."""
    given = {
        "n": n,
        "place": f"captures/2026-03-02/queue.jsonl.gz:{n}",
        "topic": TOPICS[n % len(TOPICS)],
        "id": f"6a7e8feb-b491-4cf7-a9f1-{n:012x}",
        "time": "2026-03-02T08:20:11.402Z",
        "of_n": n - 14,
        "of_place": f"captures/2026-03-02/queue.jsonl.gz:{n - 14}",
        "of_topic": TOPICS[n % len(TOPICS)],
        "of_time": "2026-03-02T08:20:11.402Z",
        "reason": f"the same envelope as delivery {n - 14:,}, 38 ms apart; two rules or targets match",
    }
    return Example(**(given | fields))


def lags(counts):
    """Make lags up from their counts in classes."""
    filled = [edge for edge, number in zip(EDGES, counts, strict=True) if number]
    last = filled[-1] if filled else 0
    half = filled[len(filled) // 2] if filled else 0
    return Lags(
        count=sum(counts), p50=half, p90=last, p99=last, p999=last, max=last, edges=list(EDGES), counts=list(counts)
    )


def plausible(**fields):
    """Make a diagnosis up as a capture of 10,311 deliveries gives it; fields can be others."""
    dice = random.Random(7)
    duplicates = sum(number for _, _, number, *_ in FOUND)
    found = [
        CauseFound(
            cause=cause,
            title=title,
            count=number,
            share=number / duplicates,
            evidence=evidence,
            advice=advice,
            lags=lags(counts),
            topics=[(TOPICS[at], number // (at + 2)) for at in range(3)],
            examples=[example(1200 + 7 * at) for at in range(3)],
        )
        for cause, title, number, evidence, advice, counts in FOUND
    ]
    steps = 96
    by_cause = {
        cause.value: [max(0, int(dice.gauss(number / steps, 2 + number / steps / 3))) for _ in range(steps)]
        for cause, _, number, *_ in FOUND
    }
    firsts = [int(40 + 30 * (1 - abs(at - 48) / 48) + dice.random() * 12) for at in range(steps)]
    given = {
        "answer": "45 % of your deliveries are duplicates; 90 % of them because two rules or targets match.",
        "chat": "oncebridge diagnose: 4,679 of 10,311 deliveries are duplicates (two rules or targets match 90 %, "
        "Genesys sent the event again 7 %); a key on conversation, 10 s would have lost 2,118 events",
        "deliveries": 10_311,
        "events": 5620,
        "duplicates": duplicates,
        "unreadable": 12,
        "causes": {cause.value: number for cause, _, number, *_ in FOUND},
        "backtest": [_key(at, row) for at, row in enumerate(KEYS)],
        "found": found,
        "topics": [_topic(at, name) for at, name in enumerate(TOPICS)],
        "over_time": OverTime(
            start_ms=START_MS,
            width_ms=5 * MINUTE_MS,
            deliveries=[first + sum(row[at] for row in by_cause.values()) for at, first in enumerate(firsts)],
            duplicates=by_cause,
        ),
        "lags": lags([sum(column) for column in zip(*(row[5] for row in FOUND), strict=True)]),
        "look_alikes": [
            LookAlike(
                name="late",
                title="Late states",
                count=31,
                what="A newer state of the same entity came before. Not a duplicate: disorder.",
                examples=[example(2001)],
            ),
            LookAlike(name="conflict", title="The same id, another content", count=0, what="Never a duplicate."),
        ],
        "advice": _advice(),
        "skipped": ["captures/2026-03-02/queue.jsonl.gz: 12 lines that are no JSON, the first on line 88"],
        "oncebridge": "0.1.0",
        "made": "2026-03-02T17:04:11Z",
        "command": "oncebridge diagnose captures --html report.html",
        "settings": "oncebridge.toml",
        "files": ["captures/2026-03-02/queue.jsonl.gz", "captures/2026-03-02/function.log"],
        "input_digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "first": "2026-03-02T08:00:00.120Z",
        "last": "2026-03-02T15:59:58.004Z",
    }
    return Diagnosis(**(given | fields))


def _key(at, row):
    key, title, compares, seconds, let_through, lost = row
    return KeyTried(
        key=key,
        title=title,
        compares=compares,
        seconds=seconds,
        let_through=let_through,
        lost=lost,
        lost_examples=[example(3000 + at, reason="taken for the other, and lost")] if lost else [],
        let_through_examples=[example(4000 + at, of_n=None, reason="gets through")] if let_through else [],
    )


def _topic(at, name):
    deliveries, duplicates = 3000 // (at + 1), (1800 // (at + 1)) if at < 7 else 0
    return TopicFound(
        topic=name,
        kind="state" if "users" in name else "fact",
        deliveries=deliveries,
        events=deliveries - duplicates,
        duplicates=duplicates,
        causes={"overlapping_rules": duplicates * 9 // 10, "genesys_republish": duplicates // 10} if duplicates else {},
    )


def _advice():
    return Advice(
        retention_days=5,
        retention_text="The longest lag seen is 26 hours; Genesys repeats for four days and EventBridge for one more.",
        forgotten=[(10, 310), (300, 150), (3600, 70), (86_400, 2), (345_600, 0)],
        redis_bytes=48_300_000,
        redis_text="420,000 events a day for five days at 23 bytes each, measured.",
        echo_windows=[
            EchoWindow(topic="v2.users.{id}.presence", window_ms=500, echoes=38, outside=9, advised_ms=1500,
                       text="9 repeats came within 1.5 s."),
            EchoWindow(topic="v2.users.{id}.activity", window_ms=500, echoes=3, outside=0, advised_ms=500,
                       text="None came just outside."),
            EchoWindow(topic="Conversation Status Change", window_ms=500, echoes=0, outside=4, advised_ms=1000,
                       text="4 repeats came within 1 s."),
        ],
        topic_pairs=[
            TopicPair(topic="v2.routing.queues.{id}.conversations", other="v2.routing.queues.{id}.conversations.calls",
                      count=212, text="Unsubscribe from the broad one.")
        ],
    )  # fmt: skip


def empty(**fields):
    """Make a diagnosis of an empty capture up."""
    given = {
        "answer": "There is no delivery in this capture.",
        "chat": "oncebridge diagnose: no deliveries",
        "deliveries": 0,
        "events": 0,
        "duplicates": 0,
        "unreadable": 0,
        "causes": {},
        "backtest": [],
        "found": [],
        "topics": [],
        "over_time": OverTime(),
        "lags": Lags(),
        "look_alikes": [],
        "advice": Advice(retention_days=5, retention_text="Nothing was seen; retries may come for five days."),
        "skipped": [],
        "files": ["empty.jsonl"],
        "first": None,
        "last": None,
    }
    return plausible(**(given | fields))


def unreadable_only():
    """Make a diagnosis of a capture up in which nothing is an event."""
    return empty(
        answer="None of the 40 deliveries can be read.",
        deliveries=40,
        unreadable=40,
        skipped=["notes.txt: 40 lines that are no JSON, the first on line 1"],
        files=["notes.txt"],
    )


def without_duplicates():
    """Make a diagnosis of a capture up in which nothing repeats."""
    usual = plausible()
    over = OverTime(start_ms=START_MS, width_ms=5 * MINUTE_MS, deliveries=[60] * 96)
    return plausible(
        answer="There are no duplicates among 5,620 deliveries of 5,620 events.",
        chat="oncebridge diagnose: 5,620 events in 5,620 deliveries, no duplicates",
        deliveries=5620,
        duplicates=0,
        unreadable=0,
        causes={},
        found=[],
        over_time=over,
        lags=Lags(),
        look_alikes=[],
        skipped=[],
        backtest=[replace(row, let_through=0, let_through_examples=[]) for row in usual.backtest],
        topics=[replace(row, deliveries=row.events, duplicates=0, causes={}) for row in usual.topics],
    )


#: Texts that mean something to HTML, SVG, JSON, TOML, terminals, or to whoever reads them.
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--<script>",
    "]]></title></svg></style><b>",
    "\u2028\u2029\u202e gnp.exe \u2066",
    "\x00\x1b[31m\x07\x9b",
    "javascript:alert(1)//&quot;&#x27;'`${alert(1)}",
    '"\n[topics."*"]\nkind = "fact"\n"',
    "{{constructor.constructor('alert(1)')()}}",
    "\U000e0041\U0001f600é",
)


def hostile(size=400, entries=200, number=10**30):
    """Make a diagnosis up whose texts, lists and numbers are all as bad as can be."""
    texts = iter(lambda: None, 1)
    pool = [(text * (size // len(text) + 1))[:size] for text in HOSTILE]
    turn = [0]

    def text():
        next(texts)
        turn[0] += 1
        return pool[turn[0] % len(pool)]

    def one():
        return Example(n=number, place=text(), topic=text(), id=text(), time=text(), of_n=number, of_place=text(),
                       of_topic=text(), of_time=text(), reason=text())  # fmt: skip

    def some():
        return [one() for _ in range(entries // 20)]

    wild = Lags(count=number, p50=-5, p90=number, p99=number, p999=number, max=number,
                edges=[number - at for at in range(entries)], counts=[number] * entries)  # fmt: skip
    causes = list(Cause)
    found = [
        CauseFound(cause=causes[at % len(causes)], title=text(), count=number, share=float("nan"), evidence=text(),
                   advice=text(), lags=wild, topics=[(text(), -number)] * entries, examples=some())
        for at in range(entries)
    ]  # fmt: skip
    tried = [
        KeyTried(key="oncebridge" if at == 3 else text(), title=text(), compares=text(), seconds=float("inf"),
                 let_through=number, lost=number, lost_examples=some(), let_through_examples=some())
        for at in range(entries)
    ]  # fmt: skip
    windows = [
        EchoWindow(topic=text(), window_ms=number, echoes=number, outside=-1, advised_ms=at, text=text())
        for at in range(entries)
    ]
    return Diagnosis(
        answer=text(), chat=text(), deliveries=number, events=-number, duplicates=number, unreadable=5,
        causes={f"{at}{text()}": number for at in range(entries)}, backtest=tried, found=found,
        topics=[
            TopicFound(topic=f"{at}{text()}", kind=text(), deliveries=number, events=0, duplicates=number,
                       causes={f"{each}{text()}": number for each in range(entries)})
            for at in range(entries)
        ],
        topics_left_out=number,
        over_time=OverTime(start_ms=-number, width_ms=number, deliveries=[number] * entries,
                           duplicates={f"{at}{text()}": [number] * entries * 2 for at in range(entries)}),
        lags=wild,
        look_alikes=[LookAlike(name=text(), title=text(), count=1, what=text(), examples=some())] * entries,
        advice=Advice(retention_days=number, retention_text=text(), forgotten=[(number, -1)] * entries,
                      redis_bytes=number, redis_text=text(), echo_windows=windows,
                      topic_pairs=[TopicPair(topic=text(), other=text(), count=number, text=text())] * entries),
        skipped=[text() for _ in range(entries)], oncebridge=text(), made=text(), command=text(), settings=text(),
        files=[text() for _ in range(entries)], input_digest=text(), first=text(), last=text(),
    )  # fmt: skip
