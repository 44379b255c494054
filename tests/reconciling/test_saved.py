"""Saved answers of Genesys are read whatever their form, and nothing else is taken for one."""

import json

import pytest

from genesys_day import conversations
from oncebridge.genesys.conversations import AnswerUnreadable, read_conversation
from oncebridge.genesys.saved import SavedAnswers

DETAILS = [talk.details for talk in conversations(3)]
IDS = [one["conversationId"] for one in DETAILS]
PAGE = json.dumps({"totalHits": 3, "conversations": DETAILS})


def found(text, size=100):
    """Return the ids of the conversations in a file that is read in blocks, and up to when it is complete."""
    answers, data = SavedAnswers(), text.encode()
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    ids = [read_conversation(one).id for one in answers.conversations(blocks)]
    return ids, answers.available_ms


@pytest.mark.parametrize(
    "text",
    [
        PAGE,
        json.dumps(DETAILS, indent=1),
        "\n".join(map(json.dumps, DETAILS)),
        PAGE + json.dumps({"totalHits": 3, "conversations": []}),
        json.dumps({"conversations": DETAILS[:2]}) + "\n" + json.dumps([DETAILS[2]]),
    ],
    ids=["page", "list", "lines", "with an empty page", "two"],
)
@pytest.mark.parametrize("size", [7, 4096])
def test_every_conversation_is_found(text, size):
    """Answers, lists and lines hold the same conversations, wherever a block of the file ends."""
    assert found(text, size)[0] == IDS


@pytest.mark.parametrize("text", ['{"conversations": []}', '{"totalHits": 0}', "[]"])
def test_an_answer_without_conversations_is_one(text):
    """In a quiet night nothing ended: that is an answer, too."""
    assert found(text) == ([], None)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", '{"hello": 1}', '[{"id": "x"}]', json.dumps({"id": "x", "participants": []}), "{}"]
)
def test_what_is_no_answer_is_refused(text):
    """A file of another kind says nothing of what never came, least of all that nothing is missing."""
    with pytest.raises(AnswerUnreadable, match="details/query"):
        found(text)


def test_the_earliest_time_is_the_watermark():
    """Of several answers the one that knows least decides, however their times are written; one may know none."""
    texts = ("2026-03-03T06:12:00.500Z", "2026-03-03T08:12:00+02:00", None)
    pages = [json.dumps({"dataAvailabilityDate": text, "conversations": DETAILS[:1]}) for text in texts]
    assert found("\n".join(pages))[1] == 1_772_518_320_000
