"""The worst texts known to whoever reads events, of any size, beside a usual one: for tests and for the bench."""

import json

from payloads import ACW, envelope, in_envelope, raw

#: Repeated until the text is full.
_UNITS = {
    "escaped quotes": b'\\"',
    "quotes": b'"',
    "quotes and backslashes": b'"\\',
    "backslashes": b"\\",
    "opened lists": b"[",
    "opened objects": b'{"a":',
    "closed lists": b"[]",
    "closed objects": b"{},",
    "texts": b'"a",',
    "cut texts": b'[",',
    "null characters": b"\\u0000",
    "halves of pairs": b"\\ud800",
    "digits": b"9",
    "exponents": b"1e9,",
    "fractions": b"1.10,",
    "long fractions": b"0.1000000000000000055511151231257827e-300,",
    "spaces": b" ",
    "byte order marks": b"\xef\xbb\xbf",
    "no characters": b"\xff",
    "names of wrappers": b'"Records"',
}
_HEAD, _TAIL = raw(envelope(ACW, {"note": "@"})).split(b"@")
#: Around them: what stands before and behind.
_FRAMES = {
    "": (b"", b""),
    " in a text": (_HEAD, _TAIL),
    " in a text that is cut off": (_HEAD, b""),
    " in a list": (_HEAD[:-1] + b"[", b"1]" + _TAIL[1:]),
    " in a list that is cut off": (_HEAD[:-1] + b"[", b""),
    " in records that are cut off": (b'{"Records":[', b""),
    " in a notification that is cut off": (b'{"Type":"Notification","Message":"', b""),
}


def usual(size):
    """Write a usual event of about this size: many small objects."""
    item = {"id": 1_000_000, "name": "some name", "ok": True}
    return raw(envelope(ACW, {"list": [item] * (size // len(raw(item)))}))


def worst(size):
    """Write the worst inputs known of about this size, by name."""
    found = {unit + frame: _filled(_UNITS[unit], *_FRAMES[frame], size=size) for unit in _UNITS for frame in _FRAMES}
    return found | {
        "a key again and again": _filled(b'"k":1,', b'{"detail-type":"x","detail":{', b'"l":1}}', size=size),
        "many keys": raw(envelope(ACW, {f"{number:x}": 1 for number in range(size // 12)})),
        "numbers of 4,300 digits": _filled(b"9" * 4300 + b",", _HEAD[:-1] + b"[", b"1]" + _TAIL[1:], size=size),
        "as deep as allowed": _filled(
            b"[" * 60 + b"1.10" + b"]" * 60 + b",", _HEAD[:-1] + b"[", b"1]" + _TAIL[1:], size=size
        ),
        "a text in a text in a text": _nested(size),
        **{f"a long {what}": raw(made) for what, made in with_long_text("1" * size).items()},
        "a topic of many parts": raw(
            {"detail-type": "{a}." * (size // 4), "detail": {"topicName": "a.", "eventBody": {}}}
        ),
    }


def with_long_text(text):
    """Make events in which this stands where a topic, a source, an id or a time does."""
    source = f"aws.partner/genesys.com/cloud/{text}"
    return {
        "detail-type": in_envelope({"eventId": "1"}, detail_type=text),
        "topicName": envelope(ACW, frame={"topicName": f"v2.{text}"}),
        "eventType": {"eventType": text},
        "type": {"type": text},
        "source": envelope(ACW, source=source),
        "id": envelope(ACW, id=text),
        "time": envelope(ACW, time=text),
        "region": envelope(ACW, region=text),
        "replay-name": envelope(ACW, replay_name=text),
        "timestamp": envelope(ACW, frame={"timestamp": text}),
        "conversationId": envelope(ACW, {"conversationId": text}),
        "userId": envelope(ACW, {"userId": text}),
        "conversation_id": in_envelope({"conversation_id": text, "status": "held"}),
    }


def _filled(unit, before, behind, *, size):
    return before + unit * ((size - len(before) - len(behind)) // len(unit)) + behind


def _nested(size):
    """Write a notification within a notification and so on, as often as fits: each doubles its backslashes."""
    text = '"'
    while len(text) < size // 3:
        text = json.dumps({"Type": "Notification", "Message": text})
    return text.encode()
