"""Dead letters are bounded where that is asked for: how many a request leaves, how many there are."""

import json

import pytest

from lambda_function import Function, fact, text
from oncebridge import Bridge, PermanentError
from shapes import url_request

UNREADABLE = [{"number": number} for number in range(300)]


def letters(bridge):
    """Return the dead letters, with what they hold."""
    return [shown for letter in bridge.dead_letters.list() for shown in bridge.dead_letters.show(letter.key)]


# --- one request ------------------------------------------------------------------------------------------------


def test_the_unreadable_ones_of_a_request_are_one_letter():
    """Each is in the books, all are in the letter, and the readable ones beside them take effect."""
    with Function() as function:
        body = [*UNREADABLE[:150], fact(1), "hello", *UNREADABLE[150:], fact(2)]
        answer = function(url_request(json.dumps(body)))
        assert answer["statusCode"] == 400
        assert "301 of 303 kept as dead letters" in json.loads(answer["body"])["detail"]
        assert function.done == [1, 2]
        assert function.books == {"received": 303, "processed": 2, "dead": 301}
        (letter,) = letters(function.bridge)
        assert json.loads(letter.raw) == [*UNREADABLE[:150], "hello", *UNREADABLE[150:]]
        assert "301 unreadable ones of one request" in letter.reason
        assert function(url_request(json.dumps(body)))["statusCode"] == 400
        assert len(letters(function.bridge)) == 1


def test_the_unreadable_ones_of_a_request_are_one_ask():
    """The ledger is asked once for the letter that they share, and told once that it is dead."""
    with Function() as function:
        ledger, asked, settled = function.bridge.ledger, [], []
        claim, settle = ledger.claim, ledger.settle
        ledger.claim = lambda asks, **options: asked.append(len(asks)) or claim(asks, **options)
        ledger.settle = lambda ends: settled.append(len(ends)) or settle(ends)
        assert function(url_request(json.dumps(UNREADABLE)))["statusCode"] == 400
    assert (asked, settled) == ([1], [1])


def test_each_request_has_its_own_letter_and_large_ones_have_several():
    """What every ledger takes fits into each; nothing is left out."""
    with Function() as function:
        large = [{"number": number, "fill": "x" * 50_000} for number in range(20)]
        for body in (UNREADABLE, UNREADABLE[:2], large, ["hello", "hello"], ["one"]):
            function(url_request(json.dumps(body)))
        kept = [json.loads(letter.raw) for letter in letters(function.bridge) if letter.raw.startswith(b"[")]
        assert sorted(map(len, kept)) == [2, 5, 5, 5, 5, 300]
        texts = {letter.raw for letter in letters(function.bridge) if not letter.raw.startswith(b"[")}
        assert texts == {b"hello", b"one"}


def test_a_letter_of_several_is_redriven_one_by_one(tmp_path, monkeypatch):
    """Once they can be read, each takes effect once, and the letter is gone."""
    monkeypatch.chdir(tmp_path)
    transformed = [{"what": "Call", "payload": {"n": n, "conversationId": "c"}} for n in range(3)]
    with Function() as function:
        function(url_request(json.dumps(transformed)))
        (letter,) = function.bridge.dead_letters.list()
        assert function.bridge.dead_letters.redrive(letter).outcome == "dead"
        (tmp_path / "oncebridge.toml").write_text("[envelope]\ndetail_type = 'what'\ndetail = 'payload'\n")
        done = []
        later = Bridge(
            function.ledger, settings=Bridge.from_settings(ledger="memory://").settings, clock=function.clock
        )
        later.on("*")(lambda event: done.append(event.key))
        assert later.dead_letters.redrive(letter).acknowledged
        assert len(set(done)) == len(done) == 3
        assert not list(later.dead_letters.list())
        later.close()


# --- all of them ------------------------------------------------------------------------------------------------


class Context:
    """What Lambda tells a function of itself."""

    function_name = "events"


def test_beyond_the_bound_nothing_is_acknowledged(capsys, caplog):
    """What would be a letter too many comes again, with a reason, a metric and a warning; nothing is lost."""
    with Function(dead_letters_max=2) as function:
        bridge = function.bridge

        function.does = {number: PermanentError("never") for number in range(1, 5)}
        first = bridge.process_many([text(1), "unreadable"])
        assert [result.outcome for result in first] == ["dead", "dead"]
        beyond = bridge.process_many([text(2), "unreadable too"])
        assert [result.acknowledged for result in beyond] == [False, False]
        assert all("dead_letters_max = 2" in result.reason for result in beyond)
        assert len(letters(bridge)) == 2
        assert "dead_letters_max = 2" in caplog.text
        assert bridge.process(text(5)).verdict == "fresh"
        with pytest.raises(Exception, match="dead_letters_max"):
            bridge.lambda_handler(fact(3), Context())
        metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert sum(line.get("RefusedDeadLetters", 0) for line in metrics) == 1
        for letter in list(bridge.dead_letters.list()):
            bridge.dead_letters.discard(letter)
        function.clock.advance(61)
        assert [result.outcome for result in bridge.process_many([text(2), "unreadable too"])] == ["dead", "dead"]


def test_a_letter_that_is_redriven_needs_no_room():
    """It was counted when it came."""
    with Function(dead_letters_max=1) as function:
        function.does[1] = PermanentError("never")
        function.bridge.process(text(1))
        (letter,) = function.bridge.dead_letters.list()
        assert function.bridge.dead_letters.redrive(letter).outcome == "dead"
        assert len(letters(function.bridge)) == 1
