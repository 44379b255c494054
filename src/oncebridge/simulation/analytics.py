"""What is heard and measured during a conversation: transcriptions and analytics metrics."""

from typing import Final

from oncebridge.simulation.dice import Dice
from oncebridge.simulation.publishing import Body, Publisher, iso_ms

_METRICS: Final = "v2.analytics.conversation.{id}.metrics"
_TRANSCRIPTION: Final = "v2.conversations.{id}.transcription"

_SAID: Final = (
    "hello this is a made up caller",
    "my invented order number is zero zero seven",
    "the parcel that never existed did not arrive",
    "could you please look into it",
    "thank you that is all i wanted to pretend",
)


def publish_metric(publisher: Publisher, dice: Dice, *, name: str, value: int, shared: Body, happened_ms: int) -> None:
    """Publish one metric record of a conversation."""
    body = {
        "metric": name,
        "metricDate": iso_ms(happened_ms),
        "value": value,
        "recordId": dice.uuid(),
        **shared,
    }
    publisher.fact(_METRICS, shared["conversationId"], body, happened_ms)


def publish_transcription(
    publisher: Publisher, dice: Dice, *, conversation_id: str, session_id: str, began_ms: int, ended_ms: int
) -> None:
    """Publish what was said from beginning to end: each utterance in part, then as a whole."""
    shared: Body = {
        "organizationId": publisher.org,
        "conversationId": conversation_id,
        "communicationId": session_id,
        "sessionStartTimeMs": began_ms,
        "transcriptionStartTimeMs": began_ms + dice.between(5, 40),
    }

    def publish(moment_ms: int, status: str, **more: list[Body]) -> None:
        body = {"eventTime": iso_ms(moment_ms), **shared, **more}
        body["status"] = {"offsetMs": moment_ms - began_ms, "status": status}
        publisher.fact(_TRANSCRIPTION, conversation_id, body, moment_ms)

    moment_ms = began_ms + dice.between(800, 3000)
    for _ in range(dice.between(1, 4)):
        part, whole = _utterance(dice, moment_ms - began_ms)
        if moment_ms + 3000 > ended_ms:
            break
        publish(moment_ms, "SESSION_ONGOING", transcripts=[part])
        publish(moment_ms + dice.between(300, 1500), "SESSION_ONGOING", transcripts=[whole])
        moment_ms += dice.between(3000, 12_000)
    publish(ended_ms, "SESSION_ENDED")


def _utterance(dice: Dice, offset_ms: int) -> tuple[Body, Body]:
    """Return an utterance as first heard and as finally understood, under one utterance id."""
    words = dice.pick(_SAID).split()
    utterance_id, channel = dice.uuid(), dice.pick(("INTERNAL", "EXTERNAL"))

    def heard(words: list[str], *, final: bool) -> Body:
        alternative = {
            "confidence": dice.between(60, 99) / 100,
            "offsetMs": offset_ms,
            "durationMs": 280 * len(words),
            "transcript": " ".join(words),
        }
        return {
            "utteranceId": utterance_id,
            "isFinal": final,
            "channel": channel,
            "alternatives": [alternative],
            "engineProvider": "GENESYS",
            "dialect": "en-US",
        }

    return heard(words[:3], final=False), heard(words, final=True)
