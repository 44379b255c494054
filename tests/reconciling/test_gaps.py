"""What never came is found, with its cause, and nothing else is called missing."""

import json
import random
from collections import Counter

import pytest

import genesys_day
from genesys_day import BEGAN_MS, HOUR_MS, MINUTE_MS, conversations, stream, truth
from oncebridge.attendance import NUMBERS
from oncebridge.errors import ConfigurationError
from oncebridge.genesys.conversations import read_conversation
from oncebridge.reconciling.expected import Due, due_of
from oncebridge.reconciling.page import BYTES_MAX, page
from oncebridge.reconciling.place import place_of
from oncebridge.reconciling.silences import ALL, Activity, Cause, Silences
from oncebridge.reconciling.words import balance
from oncebridge.testing.clock import ManualClock

DAY_SECONDS = 86_400


def missing(gaps):
    """Return what is missing of each conversation."""
    return {gap.conversation: sorted(gap.missing) for gap in gaps}


def test_nothing_is_missing_of_a_whole_day(installation):
    """Of conversations that came whole none is called missing, whatever order their events came in, and how often."""
    talks = conversations(120)
    deliveries = stream(talks)
    installation.get(deliveries[::-1])
    installation.get(deliveries[::7])
    run, gaps = installation.read(talks)
    assert (run.counts.ended, run.counts.whole, gaps, run.is_complete) == (120, 120, [], True)


def test_every_gap_is_found_with_its_cause(installation):
    """A bus, a topic and single conversations that were silent are told apart, and every gap is found."""
    talks = conversations(300)
    bus, topic = (BEGAN_MS + 62 * MINUTE_MS, 67), (BEGAN_MS + 180 * MINUTE_MS, 195)
    never, no_end = {talks[20].id, talks[120].id, talks[250].id}, {talks[40].id, talks[280].id}

    def left_out(talk, family, at_ms):
        return (
            bus[0] <= at_ms < BEGAN_MS + bus[1] * MINUTE_MS
            or (family == "acd.end" and topic[0] <= at_ms < BEGAN_MS + topic[1] * MINUTE_MS)
            or talk.id in never
            or (talk.id in no_end and family == "customer.end")
        )

    installation.get(stream(talks, left_out))
    run, gaps = installation.read(talks)
    assert missing(gaps) == truth(talks, left_out)

    def cause(talk):
        times = {(family, at_ms) for family, _, at_ms in talk.events() if left_out(talk, family, at_ms)}
        if talk.id in never | no_end:
            return Cause.SINGLE
        is_bus = any(bus[0] <= at_ms < BEGAN_MS + bus[1] * MINUTE_MS for _, at_ms in times)
        return Cause.EVERYTHING if is_bus else Cause.TOPIC

    by_id = {talk.id: talk for talk in talks}
    assert {gap.conversation: gap.cause for gap in gaps} == {one: cause(by_id[one]) for one in missing(gaps)}
    counts = run.counts
    assert counts.ended == counts.whole + counts.partial + counts.missing == 300
    assert counts.missing == sum(gap.never for gap in gaps)
    silent = Counter(one.cause for one in run.silences)
    assert silent == {Cause.EVERYTHING: 1, Cause.TOPIC: 1}
    assert {one.topic for one in run.silences} == {"", "v2.detail.events.conversation.{id}.acd.end"}


@pytest.mark.parametrize("family", ["customer.end", "user.start", "flow.end", "wrapup"])
def test_a_topic_that_is_silent_all_day_is_found(installation, family):
    """A topic that came before, and not at all on this day, is missing of every conversation that should have it."""
    earlier = conversations(4, began_ms=BEGAN_MS - 30 * HOUR_MS, seed=9)
    installation.get(stream(earlier))
    talks = conversations(80)

    def left_out(_talk, which, _at_ms):
        return which == family

    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    assert missing(gaps) == truth(talks, left_out)
    assert {gap.cause for gap in gaps} == {Cause.TOPIC}


def test_a_conversation_that_never_came_is_no_silent_topic(installation):
    """While one topic is silent, a conversation of which nothing came is a single one: the topic explains little."""
    talks = conversations(200)
    topic = (BEGAN_MS + 60 * MINUTE_MS, BEGAN_MS + 90 * MINUTE_MS)
    never = talks[75]

    def left_out(talk, family, at_ms):
        return talk is never or (family == "acd.end" and topic[0] <= at_ms < topic[1])

    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    causes = {gap.conversation: gap.cause for gap in gaps}
    assert missing(gaps) == truth(talks, left_out)
    assert causes.pop(never.id) == Cause.SINGLE
    assert set(causes.values()) == {Cause.TOPIC}


def test_a_single_loss_beside_a_silence_is_none_of_it(installation):
    """What is lost just after everything was silent is single, though its family came again only later."""
    talks = conversations(60, every_ms=10 * MINUTE_MS)
    after = next(talk for talk in talks[30:] if len(talk.sessions) == 4)
    first = talks.index(after)
    began_ms, ended_ms = talks[first - 6].began_ms, after.began_ms

    def left_out(talk, family, at_ms):
        return began_ms <= at_ms < ended_ms or (talk is after and family == "user.start")

    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    causes = {gap.conversation: gap.cause for gap in gaps}
    assert missing(gaps) == truth(talks, left_out)
    assert causes.pop(after.id) == Cause.SINGLE
    assert set(causes.values()) == {Cause.EVERYTHING}


@pytest.mark.parametrize("seed", range(3))
def test_single_losses_are_no_silence_however_many(installation, seed):
    """Where each tenth event is lost, some are neighbours by chance: that is no topic that was silent."""
    talks, dice = conversations(400, seed=seed), random.Random(seed)
    lost = {(talk.id, place) for talk in talks for place in range(20) if dice.random() < 0.1}

    def left_out(talk, family, at_ms):
        place = [(event[0], event[2]) for event in talk.events()].index((family, at_ms))
        return (talk.id, place) in lost

    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    assert missing(gaps) == truth(talks, left_out)
    assert {gap.cause for gap in gaps} == {Cause.SINGLE}


def test_a_conversation_is_one_in_a_silence():
    """Two conversations are no silent topic, though each misses two events there with others between them."""
    activity = Activity()
    for second in (0, 100, 200, 300, 400, 500, 9000):
        activity.mark(ALL, second)
    for second in (0, 9000):
        activity.mark("acd.start", second)
    silences = Silences(activity, 50, several=True)
    lost = [[Due("acd.start", f"{talk}-{at}", at * 1000) for at in (150, 450)] for talk in range(2)]
    for missing in lost:
        silences.count(missing)
    assert [silences.cause(missing, never=False) for missing in lost] == [Cause.SINGLE] * 2


def test_one_family_alone_is_not_everything(installation):
    """Where only one family had anything to say for a while, and did not, it was that topic, and not everything."""
    talks = conversations(12)
    for place, talk in enumerate(talks[5:10]):  # they end together, and are wrapped up one after the other
        for session in talk.sessions:
            session.began_ms, session.ended_ms = BEGAN_MS + 2 * HOUR_MS, BEGAN_MS + 2 * HOUR_MS + 60_000
        talk.sessions[-1].wrapped_ms = BEGAN_MS + 2 * HOUR_MS + (place + 2) * MINUTE_MS

    def left_out(talk, family, _at_ms):
        return talk in talks[5:10] and family == "wrapup" and talk.sessions[-1].wrapped_ms

    for talk in talks[5:10]:
        for session in talk.sessions[:-1]:
            session.wrapped_ms = None
    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    assert [gap.cause for gap in gaps] == [Cause.TOPIC] * 5


def test_a_day_on_which_nothing_came_is_silence(installation):
    """If nothing came at all, though it did before, everything was silent."""
    installation.get(stream(conversations(4, began_ms=BEGAN_MS - 30 * HOUR_MS, seed=9)))
    talks = conversations(30)
    run, gaps = installation.read(talks)
    assert (run.counts.missing, {gap.cause for gap in gaps}) == (30, {Cause.EVERYTHING})


def test_what_is_not_subscribed_to_is_not_missing(installation):
    """A topic that never came here is not expected; one that a person names is, or that a handler does."""
    talks = conversations(20)

    def left_out(_talk, family, _at_ms):
        return family in ("wrapup", "flow.start")

    installation.get(stream(talks, left_out))
    assert installation.read(talks)[1] == []
    _, gaps = installation.read(talks, expect=["flow.*"])
    assert {tuple(gap.missing) for gap in gaps} == {("flow.start",)}
    installation.bridge.register("v2.detail.events.conversation.{id}.wrapup", lambda event: None, name="wrap-ups")
    _, gaps = installation.read(talks)
    assert {tuple(dict.fromkeys(gap.missing)) for gap in gaps} == {("wrapup",)}


def test_each_session_is_compared(installation):
    """Of a conversation with two agents, the session whose end did not come is missing, though the other's came."""
    talks = [talk for talk in conversations(40) if len(talk.sessions) == 5][:5]
    second = talks[2].sessions[4]

    def left_out(talk, family, at_ms):
        return talk is talks[2] and family == "user.end" and at_ms == second.ended_ms

    installation.get(stream(talks, left_out))
    _, gaps = installation.read(talks)
    assert missing(gaps) == {talks[2].id: ["user.end"]}


def test_either_wrap_up_will_do(installation):
    """After-call work brings a wrap-up or an acw: one of them is enough, and if neither came both names are missing."""
    talks = conversations(30)

    def renamed(raw):
        name = genesys_day.DETAIL + "wrapup"
        if raw["detail-type"] != name:
            return raw
        detail = {**raw["detail"], "topicName": raw["detail"]["topicName"].replace("wrapup", "acw")}
        return {**raw, "detail-type": genesys_day.DETAIL + "acw", "detail": detail}

    deliveries = stream(talks, lambda talk, family, _: talk is talks[7] and family == "wrapup")
    half = len(deliveries) // 2
    installation.get([renamed(raw) for raw in deliveries[:half]] + deliveries[half:])
    _, gaps = installation.read(talks)
    assert missing(gaps) == {talks[7].id: ["acw", "wrapup"]}


def test_after_call_work_that_goes_on_is_not_missing():
    """A conversation has ended while its agent still writes: the wrap-up is due once Genesys says when it ended."""
    (talk,) = conversations(1)
    details = talk.details
    segments = [one for who in details["participants"] for one in who["sessions"][0]["segments"]]
    (wrap_up,) = [one for one in segments if one["segmentType"] == "wrapup"]

    def families():
        conversation = read_conversation(json.dumps(details).encode())
        return {one.family for one in due_of(conversation, frozenset(NUMBERS))}

    assert {"user.end", "wrapup", "acw"} <= families()
    del wrap_up["segmentEnd"]
    assert "user.end" in families()
    assert not {"wrapup", "acw"} & families()


def test_sessions_are_counted_where_their_ids_differ(installation):
    """Where Genesys names sessions otherwise than events do, the sessions of each family are counted."""
    talks = conversations(20)
    installation.get(stream(talks, lambda talk, family, _: talk is talks[3] and family == "acd.end"))
    for talk in talks:
        for session in talk.sessions:
            session.id = f"other-{session.id}"
    _, gaps = installation.read(talks)
    assert missing(gaps) == {talks[3].id: ["acd.end"]}


def test_only_what_ended_before_the_watermark_is_judged(installation):
    """What ended later is provisional, what has not ended is counted by itself, and neither is ever a gap."""
    talks = conversations(60)
    mark_ms = BEGAN_MS + 30 * MINUTE_MS
    installation.get(stream(talks, lambda talk, *_: talk.ended_ms >= mark_ms))
    run, gaps = installation.read(talks, watermark_ms=mark_ms)
    late = sum(talk.ended_ms >= mark_ms for talk in talks)
    assert (run.counts.ended, run.counts.provisional, gaps) == (60 - late, late, [])
    assert run.watermark == "2026-03-02T08:30:00Z"
    assert f"complete up to {run.watermark}, later is provisional ({late} conversations)" in balance(run)
    asked_until_ms = mark_ms - MINUTE_MS
    run, _ = installation.read(talks, watermark_ms=mark_ms, window=installation.window(until_ms=asked_until_ms))
    assert balance(run).endswith("complete up to 2026-03-02T08:29:00Z")  # nobody asked what was later


def test_conversations_from_before_attendance_are_not_judged(installation):
    """A worker that has kept attendance only since noon is not asked about the morning, whatever straggled in."""
    talks = conversations(60)
    noon_ms = talks[30].began_ms
    (straggler,) = conversations(1, began_ms=BEGAN_MS - 70 * HOUR_MS, seed=5)
    installation.clock = ManualClock((noon_ms + 1000) * 1000)
    installation.bridge = installation.made_bridge()
    installation.get(stream([straggler])[:1] + stream(talks, lambda talk, family, at_ms: at_ms < noon_ms))
    installation.clock.advance(DAY_SECONDS)
    run, gaps = installation.read(talks, window=installation.window(from_ms=BEGAN_MS - 71 * HOUR_MS))
    assert gaps == []
    assert run.counts.ended + run.counts.before == 60
    assert 0 < sum(talk.ended_ms < noon_ms for talk in talks) <= run.counts.before < 33


def test_attendance_that_is_forgotten_is_not_missing(installation):
    """Conversations older than the retention are not judged, once the ledger has begun to forget."""
    talks = conversations(30)
    installation.get(stream(conversations(3, began_ms=BEGAN_MS - 5 * HOUR_MS, seed=2)))
    installation.clock.advance(20 * DAY_SECONDS)
    installation.get(stream(conversations(1, began_ms=BEGAN_MS + 20 * DAY_SECONDS * 1000, seed=4)))
    installation.clock.advance(20 * DAY_SECONDS)
    later_ms = BEGAN_MS + int(40.5 * DAY_SECONDS * 1000)
    today = conversations(5, began_ms=later_ms, seed=3)
    installation.clock.advance(DAY_SECONDS)
    installation.get(stream(today))
    window = installation.window(until_ms=later_ms + 24 * HOUR_MS)
    run, gaps = installation.read(talks + today, window=window)
    assert (gaps, run.counts.before, run.counts.ended) == ([], 30, 5)


def test_a_ledger_without_attendance_is_refused(installation):
    """Where nothing was kept, nothing is called missing: the run is refused with what to do."""
    with pytest.raises(ConfigurationError, match="attendance"):
        installation.read(conversations(3))
    with pytest.raises(ConfigurationError, match=r"customer\.end"):
        installation.read(conversations(3), expect=["customer.over"])


def test_a_second_run_says_what_changed(installation):
    """Late is not lost: a second run says which gaps came since, which did not, and which Genesys has made since."""
    talks = conversations(50)
    held_back = {talks[5].id, talks[6].id, talks[30].id}

    def left_out(talk, family, _at_ms):
        return talk.id in held_back or (talk is talks[40] and family in ("acd.end", "user.end"))

    installation.get(stream(talks, left_out))
    assert installation.read(talks)[0].changes == []
    installation.clock.advance(3600)
    came_late = [raw for talk in talks[5:7] for *_, raw in talk.deliveries()]
    installation.get(came_late + [raw for family, *_, raw in talks[40].deliveries() if family == "acd.end"])
    installation.read(talks)
    changes = installation.changes
    assert (changes.came, changes.in_part, changes.still, changes.new) == (2, 1, 1, 0)
    assert set(changes.late) == {talks[5].id, talks[6].id}
    installation.clock.advance(3600)
    talks[20].sessions.append(genesys_day.Session("agent", "corrected", talks[20].began_ms, talks[20].began_ms + 9000))
    run, _ = installation.read(talks)
    assert installation.changes.new == 1
    assert any("corrected" in line for line in run.changes)


def test_what_genesys_takes_back_did_not_come_late(installation):
    """A gap that is none any more, because Genesys corrected its data, is not called late: nothing came of it."""
    talks = conversations(50)
    never, other = talks[5], talks[20]
    installation.get(stream(talks, lambda talk, family, _: talk is never or (talk is other and family == "user.end")))
    installation.read(talks)
    installation.clock.advance(3600)
    other.sessions = [one for one in other.sessions if one.purpose != "agent"]
    run, gaps = installation.read([talk for talk in talks if talk is not never])
    changes = installation.changes
    assert (gaps, changes.came, changes.corrected, changes.late) == ([], 0, 2, [])
    assert any("corrected" in line for line in run.changes)


def test_only_what_is_expected_again_is_compared(installation):
    """A run that expects less than the one before says nothing of the rest; one that expects more invents no change."""
    talks = conversations(50)
    installation.get(
        stream(talks, lambda talk, family, _: talk is talks[5] or (talk is talks[9] and family == "acd.end"))
    )
    installation.read(talks)
    installation.clock.advance(60)
    installation.read(talks, expect=["customer.*"])
    changes = installation.changes
    assert (changes.came, changes.in_part, changes.still, changes.corrected, changes.new) == (0, 0, 1, 0, 0)
    installation.clock.advance(60)
    installation.read(talks)
    changes = installation.changes
    assert (changes.came, changes.in_part, changes.still, changes.corrected, changes.new) == (0, 0, 1, 0, 0)


def test_a_run_survives_in_the_ledger(installation):
    """Runs are kept in the ledger, the latest first, with their gaps."""
    talks = conversations(10)
    installation.get(stream(talks, lambda talk, *_: talk is talks[4]))
    run, gaps = installation.read(talks)
    (kept,) = place_of(installation.bridge, None).runs.latest()
    assert kept == run
    assert kept.gaps == gaps


def test_a_page_holds_a_run_whatever_it_holds(installation):
    """The page of a run is complete in itself and at most 300 kB long; hostile ids are escaped."""
    talks = conversations(900, every_ms=4000)
    for talk in talks[::2]:
        talk.id = f"<script>alert(1)</script>{talk.id}" + "x" * 150
    installation.get(stream(talks[:30]))
    run, gaps = installation.read(talks)
    assert len(gaps) == 870
    written = page(run, "1.0")
    assert 150_000 < len(written) <= BYTES_MAX
    assert "<script>alert" not in written
    assert "30 came whole" in written
    assert written.count("<script") == 2


def test_a_page_without_gaps_is_short(installation):
    """The page of a complete run says so, and nothing about causes."""
    talks = conversations(5)
    installation.get(stream(talks))
    run, _ = installation.read(talks)
    written = page(run, "1.0")
    assert "5 conversations ended; 5 came whole" in written
    assert "Causes</h2>" not in written
