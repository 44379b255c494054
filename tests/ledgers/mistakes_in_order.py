"""Mistakes that a worker can make: each is one rule of order in `claim.py` done wrong, and the rules that notice.

A wrong function is given the right one first, then its arguments.
"""

from msgspec.structs import replace

from oncebridge.claim import Outcome


def compare_milliseconds(right, one, other):
    """Compare moments more coarsely than they are."""

    def coarse(moment):
        return replace(moment, times=tuple(None if time is None else time // 1_000_000 for time in moment.times))

    return right(coarse(one), coarse(other))


def be_content_with_one_time(right, one, other, window_ns):
    """Look for any time within the window."""
    pairs = zip(one.times, other.times, strict=False)
    return any(right(replace(one, times=(a,)), replace(other, times=(b,)), window_ns) for a, b in pairs)


def echo_moves_the_window(right, newest, ask, now_us):
    """Let an echo move the window."""
    after = right(newest, ask, now_us)
    return replace(after, moment=after.line)


def stale_makes_unsure(right, newest, ask, outcome, now_us):
    """Let a stale state make the newest unsure."""
    after = right(newest, ask, outcome, now_us)
    return replace(after, unsure=True) if outcome is Outcome.STALE else after


def failed_is_newest(right, newest, ask, outcome, now_us):
    """Let a failed event be the newest."""
    failed = outcome in (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)
    return right(newest, ask, Outcome.DONE if failed else outcome, now_us)


def failed_is_nothing(right, newest, ask, outcome, now_us):
    """Let a failed event leave the newest as sure as before."""
    return replace(right(newest, ask, outcome, now_us), unsure=newest.unsure and outcome is not Outcome.DONE)


def forget_a_time(right, newest, ask, now_us):
    """Let an echo that moves the line take away the times that it does not say."""
    after = right(newest, ask, now_us)
    return after if after.line == newest.line else replace(after, line=ask.moment)


def first_of_equals(right, newest, ask, now_us):
    """Let the first of two equals stay the newest."""
    return newest if newest.state and ask.moment == newest.line else right(newest, ask, now_us)


def always_newest(right, newest, ask, now_us):
    """Make every done event the newest."""
    return replace(newest, state=ask.state, moment=ask.moment, key=ask.key, line=ask.moment, unsure=False)


# --- what goes wrong, in which function, and which rules notice -----------------------------------------------------

MISTAKES_IN_ORDER = [
    ("a tie is older", "older", lambda right, a, b: right(a, b) or bool(a.times and a == b), "a_tie_loses_nothing"),
    (
        "one time only",
        "older",
        lambda right, a, b: right(replace(a, times=a.times[:1]), replace(b, times=b.times[:1])),
        "several_times_are_compared",
    ),
    (
        "no version",
        "older",
        lambda right, a, b: right(replace(a, version=None), replace(b, version=None)),
        "a_version_orders_instead_of_time",
    ),
    ("milliseconds", "older", compare_milliseconds, "what_is_strictly_older_is_stale"),
    ("exclusive window", "within_window", lambda right, a, b, ns: right(a, b, ns - 1), "is_inclusive own_window"),
    ("no window", "within_window", lambda *_: True, "window_is_inclusive echo_does_not_move_the_window"),
    ("one time in the window", "within_window", be_content_with_one_time, "every_time_must_lie_within"),
    (
        "envelope times echo",
        "within_window",
        lambda right, a, b, ns: right(replace(a, echoes=True), replace(b, echoes=True), ns),
        "envelope_times_give_no_echo",
    ),
    ("no echo", "_is_echo", lambda *_: False, "an_echo_is_recorded echoes_again_after echo_comes_before_stale"),
    (
        "any state echoes",
        "_is_echo",
        lambda right, ask, newest: right(replace(ask, state=newest.state), newest),
        "an_echo_has_the_same_state",
    ),
    (
        "never unsure",
        "_is_echo",
        lambda right, ask, newest: right(ask, replace(newest, unsure=False)),
        "no_echo_after_an_end_other_than_done no_echo_after_a_stamp_from_the_future",
    ),
    (
        "sure after a run-out",
        "newest_of",
        lambda right, chain: right(replace(chain, ran_out=False)),
        "no_echo_after_an_end_other_than_done",
    ),
    (
        "nothing stale",
        "judge",
        lambda right, ask, newest: right(replace(ask, stale=False), newest),
        "what_is_strictly_older_is_stale a_redrive_may_be_stale a_failed_event_may_turn_stale",
    ),
    (
        "always stale",
        "judge",
        lambda right, ask, newest: right(replace(ask, stale=True), newest),
        "a_topic_may_have_nothing_stale",
    ),
    (
        "stale by the newest done",
        "judge",
        lambda right, ask, newest: right(ask, replace(newest, line=newest.moment)),
        "an_echo_moves_the_stale_line",
    ),
    (
        "no force",
        "judge",
        lambda right, ask, newest: right(replace(ask, force=False), newest),
        "a_redrive_may_be_stale",
    ),
    ("every stamp", "is_believable", lambda *_: True, "future_is_never_the_newest echo_from_the_future_moves_no_line"),
    ("no stamp", "is_believable", lambda *_: False, "future_is_never_the_newest a_tie_loses_nothing"),
    ("echo moves no line", "_after_echo", lambda right, newest, *_: newest, "an_echo_moves_the_stale_line"),
    (
        "echo moves it back",
        "_after_echo",
        lambda right, newest, ask, now_us: replace(newest, line=ask.moment),
        "an_early_echo_does_not_move_the_stale_line_back",
    ),
    ("echo forgets a time", "_after_echo", forget_a_time, "an_echo_sets_back_no_time_that_it_does_not_say"),
    ("echo moves the window", "_after_echo", echo_moves_the_window, "an_echo_does_not_move_the_window"),
    ("always newest", "_after_done", always_newest, "a_topic_may_have_nothing_stale without_a_time_everything"),
    ("first of equals", "_after_done", first_of_equals, "a_tie_loses_nothing"),
    ("stale makes unsure", "newest_after", stale_makes_unsure, "a_stale_event_changes_nothing"),
    ("failed is newest", "newest_after", failed_is_newest, "only_done_events_make_others_stale"),
    ("failed is nothing", "newest_after", failed_is_nothing, "no_echo_after_an_end_other_than_done"),
]
