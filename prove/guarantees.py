"""What is promised, and which parts of the proof attack it; and what none of them shows."""

from __future__ import annotations

from typing import Final

#: Title, promise, parts.
GUARANTEES: Final = (
    (
        "Nothing is lost when workers die",
        "A delivery is acknowledged only when its event is settled for good, whatever kills or stops its worker.",
        ("kill", "stop", "ways-in", "interrupts", "forks"),
    ),
    (
        "Nothing is lost or doubled when replies are",
        "A reply that is lost, late, cut or dripped changes nothing: the call is repeated under the same nonce.",
        ("network", "restarts", "redis", "failover", "outage"),
    ),
    (
        "One worker at a time",
        "Of many that want an event or an entity one has it; a late one changes nothing.",
        (
            "contenders",
            "clocks",
            "schedules",
            "exploration",
            "specification",
            "conformance",
            "conformance-echoes",
            "conformance-returns",
        ),
    ),
    (
        "Nothing is acknowledged in vain",
        "A full disk, a full server, a file that is gone: it recovers by itself or says what to do.",
        ("resources", "soak"),
    ),
    (
        "Hostile input does no harm",
        "No input crashes it, goes unaccounted, is slow beyond its size, hides a real event, or shows what is private.",
        ("fuzz", "poison", "canaries"),
    ),
)

NOT_SHOWN: Final = (
    "AWS itself. DynamoDB, SQS and Lambda ran as emulators, which were not compared with the originals.",
    "A power cut. Processes and servers were killed; the machine, its disk and its cache kept running.",
    "Several machines. All workers and servers shared one clock, unless a part moved it, and one network stack.",
    "Hours of every fault at once. Parts run one after another, most with faults of one kind.",
    "Exact schedules. A seed repeats the stream and the plan of faults; who comes first is the machine's choice.",
    "Zero. A bound of 3/N says that a rate above it would have shown itself with 95 % certainty in as many tries.",
    "Receivers. That yours honours a key or compares tokens is for you to test.",
)

#: Wrong programs that tests try against a part: what each of them does, and where.
CONTROLLED_BY_TESTS: Final = {
    "ways-in": ("calls events done before their effect", "tests/prove/test_ways_in.py"),
    "interrupts": ("acknowledges what was interrupted, or waits for ever", "tests/prove/test_interrupts.py"),
    "forks": ("does not look at the process", "tests/prove/test_forks.py"),
    "network": ("takes no answer for a duplicate", "tests/prove/test_network.py"),
    "redis": ("runs on a server without its append-only file", "tests/prove/test_servers.py"),
    "outage": ("acknowledges without a ledger", "tests/prove/test_outage.py"),
    "clocks": ("goes by its workers' clocks", "tests/prove/test_clocks.py"),
    "resources": ("acknowledges what could not be written", "tests/prove/test_resources.py"),
    "soak": ("keeps what it was asked", "tests/prove/test_soak.py"),
    "fuzz": ("crashes, hides an event, or takes long", "tests/prove/test_fuzz.py"),
    "poison": ("ignores the org, or believes every time or version", "tests/prove/test_poison.py"),
    "canaries": ("logs a payload", "tests/prove/test_canaries.py"),
    "schedules": ("lacks a rule of the protocol", "tests/prove/test_schedules.py"),
    "exploration": ("lacks any one rule of the protocol", "tests/exploration/test_rules_removed.py"),
    "specification": ("lacks any one of its rules", "tests/prove/test_specification.py"),
    "conformance": ("takes a step that is none of the specification's", "tests/prove/test_specification.py"),
    "conformance-echoes": ("takes a step that is none of the specification's", "tests/prove/test_specification.py"),
    "conformance-returns": ("takes a step that is none of the specification's", "tests/prove/test_specification.py"),
}
