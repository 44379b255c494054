"""The topics of Genesys by name: which of them a pattern takes, and which a wrong one may have meant.

Genesys adds topics now and then, so a topic that is not in this list may be right: that is a warning, and no error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oncebridge.handlers import overlap
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Every topic that Genesys' own client libraries know.
TOPICS: Final = tuple(
    """
    v2.analytics.conversation.{id}.metrics
    v2.analytics.conversations.details.jobs.availability
    v2.analytics.flow.{id}.aggregates
    v2.analytics.flow.{id}.metrics
    v2.analytics.flowoutcome.{id}.aggregates
    v2.analytics.queues.{id}.activity
    v2.analytics.queues.{id}.observations
    v2.analytics.users.details.jobs.availability
    v2.analytics.users.{id}.aggregates
    v2.analytics.wrapup.{id}.aggregates
    v2.architect.dependencytracking.build
    v2.architect.prompts.{id}
    v2.architect.prompts.{id}.resources.{id}
    v2.architect.systemprompts.{id}.resources.{id}
    v2.audits.entitytype.{id}.entityid.{id}
    v2.bot.conversation.{id}.conversations.summaries
    v2.businessunits.{id}.workforcemanagement.intraday
    v2.coaching.scheduleslots.jobs.{id}
    v2.contentmanagement.documents.{id}
    v2.contentmanagement.workspaces.{id}.documents
    v2.conversations.{id}.agentchecklist
    v2.conversations.{id}.suggestions.intent
    v2.conversations.{id}.suggestions.knowledge.article
    v2.conversations.{id}.suggestions.knowledge.search
    v2.conversations.{id}.suggestions.response
    v2.conversations.{id}.suggestions.script
    v2.conversations.{id}.suggestions.thirdpartyaction
    v2.conversations.{id}.transcription
    v2.detail.events.agent.{id}.state
    v2.detail.events.collaboratechat.adhoc.{id}.messages
    v2.detail.events.collaboratechat.group.{id}.messages
    v2.detail.events.conversation.{id}.acd.end
    v2.detail.events.conversation.{id}.acd.start
    v2.detail.events.conversation.{id}.acw
    v2.detail.events.conversation.{id}.attributes
    v2.detail.events.conversation.{id}.contact
    v2.detail.events.conversation.{id}.customer.end
    v2.detail.events.conversation.{id}.customer.start
    v2.detail.events.conversation.{id}.flow.end
    v2.detail.events.conversation.{id}.flow.outcome
    v2.detail.events.conversation.{id}.flow.start
    v2.detail.events.conversation.{id}.outbound
    v2.detail.events.conversation.{id}.user.end
    v2.detail.events.conversation.{id}.user.start
    v2.detail.events.conversation.{id}.voicemail.end
    v2.detail.events.conversation.{id}.voicemail.start
    v2.detail.events.conversation.{id}.wrapup
    v2.employeeperformance.externalmetrics.definitions
    v2.externalcontacts.contacts.{id}
    v2.externalcontacts.contacts.{id}.journey.segments
    v2.externalcontacts.contacts.{id}.journey.sessions
    v2.externalcontacts.contacts.{id}.notes.{id}
    v2.externalcontacts.contacts.{id}.unresolved
    v2.externalcontacts.organizations.{id}
    v2.externalcontacts.organizations.{id}.notes.{id}
    v2.externalcontacts.relationships.{id}
    v2.flows.instances.flow.{id}
    v2.flows.outcomes.{id}
    v2.flows.{id}
    v2.gamification.scorecards.users.{id}
    v2.groups.{id}.greetings
    v2.integrations.inbound.webhook.{id}.invocation
    v2.journey.sessions.{id}.action.events
    v2.journey.sessions.{id}.app.events
    v2.journey.sessions.{id}.outcome.events
    v2.journey.sessions.{id}.web.events
    v2.journey.views.jobs.{id}.notification
    v2.managementunits.{id}.workforcemanagement.intraday
    v2.operations.events.{id}
    v2.outbound.attemptlimits.{id}
    v2.outbound.callabletimesets.{id}
    v2.outbound.campaignrules.{id}
    v2.outbound.campaigns.{id}
    v2.outbound.campaigns.{id}.progress
    v2.outbound.campaigns.{id}.skillstats
    v2.outbound.campaigns.{id}.stats
    v2.outbound.contactlistfilters.{id}
    v2.outbound.contactlists.{id}
    v2.outbound.contactlists.{id}.importstatus
    v2.outbound.dnclists.{id}
    v2.outbound.dnclists.{id}.importstatus
    v2.outbound.email.campaigns.contact.postContact
    v2.outbound.email.campaigns.contact.preContact
    v2.outbound.emailcampaigns.{id}
    v2.outbound.emailcampaigns.{id}.progress
    v2.outbound.importtemplates.{id}.importstatus
    v2.outbound.messaging.campaigns.contact.postContact
    v2.outbound.messaging.campaigns.contact.preContact
    v2.outbound.messagingcampaigns.{id}
    v2.outbound.messagingcampaigns.{id}.progress
    v2.outbound.preview.campaigns.contact.postContact
    v2.outbound.preview.campaigns.contact.preContact
    v2.outbound.responsesets.{id}
    v2.outbound.rulesets.{id}
    v2.outbound.schedules.campaigns.{id}
    v2.outbound.schedules.emailcampaigns.{id}
    v2.outbound.schedules.messagingcampaigns.{id}
    v2.outbound.schedules.sequences.{id}
    v2.outbound.schedules.whatsappcampaigns.{id}
    v2.outbound.sequences.{id}
    v2.outbound.settings
    v2.outbound.voice.campaigns.contact.postContact
    v2.outbound.voice.campaigns.contact.preContact
    v2.outbound.whatsapp.campaigns.contact.postContact
    v2.outbound.whatsapp.campaigns.contact.preContact
    v2.outbound.whatsappcampaigns.{id}
    v2.outbound.whatsappcampaigns.{id}.progress
    v2.outbound.wrapupcodemappings.{id}
    v2.quality.evaluations
    v2.routing.queues.{id}.conversations
    v2.routing.queues.{id}.conversations.callbacks
    v2.routing.queues.{id}.conversations.calls
    v2.routing.queues.{id}.conversations.chats
    v2.routing.queues.{id}.conversations.cobrowseSessions
    v2.routing.queues.{id}.conversations.emails
    v2.routing.queues.{id}.conversations.messages
    v2.routing.queues.{id}.conversations.screenshares
    v2.routing.queues.{id}.conversations.socialexpressions
    v2.routing.queues.{id}.conversations.videos
    v2.routing.queues.{id}.users
    v2.speechandtextanalytics.conversation.{id}.empathy
    v2.speechandtextanalytics.conversation.{id}.sentiment
    v2.speechandtextanalytics.conversation.{id}.topics
    v2.speechandtextanalytics.conversations.{id}.categories
    v2.speechandtextanalytics.programs.general.jobs.{id}
    v2.speechandtextanalytics.programs.publishjobs.{id}
    v2.speechandtextanalytics.programs.topiclinks.jobs.{id}
    v2.speechandtextanalytics.reprocessing.jobs.{id}
    v2.speechandtextanalytics.topics.generatedphrases.jobs.{id}
    v2.speechandtextanalytics.topics.publishjobs.{id}
    v2.speechandtextanalytics.topics.testphrase.jobs.{id}
    v2.subscription.updated
    v2.system.no_longer_subscribed.{id}
    v2.system.socket_closing
    v2.system.token_revoked.{id}
    v2.system.{id}.{id}
    v2.taskmanagement.workitems.queues.{id}
    v2.taskmanagement.workitems.users.{id}
    v2.taskmanagement.workitems.{id}
    v2.telephony.providers.edges.phones.{id}
    v2.telephony.providers.edges.trunks.{id}
    v2.telephony.providers.edges.trunks.{id}.metrics
    v2.telephony.providers.edges.{id}
    v2.telephony.providers.edges.{id}.logicalinterfaces
    v2.telephony.providers.edges.{id}.metrics
    v2.telephony.providers.edges.{id}.softwareupdate
    v2.users.{id}.activity
    v2.users.{id}.alerting.alerts
    v2.users.{id}.alerting.rules
    v2.users.{id}.analytics.reporting.exports
    v2.users.{id}.badges.chats
    v2.users.{id}.callforwarding
    v2.users.{id}.conversations
    v2.users.{id}.conversations.callbacks
    v2.users.{id}.conversations.calls
    v2.users.{id}.conversations.chats
    v2.users.{id}.conversations.cobrowseSessions
    v2.users.{id}.conversations.emails
    v2.users.{id}.conversations.inbound.typing.event
    v2.users.{id}.conversations.messages
    v2.users.{id}.conversations.screenshares
    v2.users.{id}.conversations.socialexpressions
    v2.users.{id}.conversations.summaries
    v2.users.{id}.conversations.summaries.settings.preview
    v2.users.{id}.conversations.videos
    v2.users.{id}.conversations.{id}.recordings
    v2.users.{id}.conversations.{id}.recordings.{id}
    v2.users.{id}.conversationsummary
    v2.users.{id}.employeeengagement.celebrations
    v2.users.{id}.fax.documents
    v2.users.{id}.geolocation
    v2.users.{id}.greetings
    v2.users.{id}.integrationpresence
    v2.users.{id}.integrations.calendar.teams
    v2.users.{id}.outbound.contactlists.{id}.export
    v2.users.{id}.outbound.dnclists.{id}.export
    v2.users.{id}.outofoffice
    v2.users.{id}.persistentconnection
    v2.users.{id}.presence
    v2.users.{id}.recordings
    v2.users.{id}.routingStatus
    v2.users.{id}.station
    v2.users.{id}.tokens
    v2.users.{id}.userrecordings
    v2.users.{id}.voicemail.messages
    v2.users.{id}.wem.coaching.notification
    v2.users.{id}.wem.learning.assignment
    v2.users.{id}.workforcemanagement.adherence
    v2.users.{id}.workforcemanagement.adherence.explanations.jobs
    v2.users.{id}.workforcemanagement.adherence.historical.agent
    v2.users.{id}.workforcemanagement.adherence.historical.bulk
    v2.users.{id}.workforcemanagement.agentschedules.managementunit.search.complete
    v2.users.{id}.workforcemanagement.alternative.shift.jobs
    v2.users.{id}.workforcemanagement.historicaladherencequery
    v2.users.{id}.workforcemanagement.integrations.hris.timeofftypes.jobs
    v2.users.{id}.workforcemanagement.notifications
    v2.users.{id}.workforcemanagement.performanceprediction.schedules.recalculations
    v2.users.{id}.workforcemanagement.schedules
    v2.users.{id}.workforcemanagement.shift.trading.jobs
    v2.users.{id}.workforcemanagement.shrinkage.jobs
    v2.users.{id}.workforcemanagement.timeoffbalance.jobs
    v2.users.{id}.workforcemanagement.timeoffrequests
    v2.video.conferences.{id}
    v2.webdeployments.configurations.{id}
    v2.webdeployments.deployments.{id}
    v2.webmessaging.deployments.{id}.undelivered.messages
    v2.wem.learning.assignments.modules.{id}
    v2.workflows.{id}.conversations.inbound.typing.event
    v2.workforcemanagement.agents
    v2.workforcemanagement.agents.{id}.adherence.explanations
    v2.workforcemanagement.businessunits.{id}.activityplans.jobs
    v2.workforcemanagement.businessunits.{id}.activityplans.runs.jobs
    v2.workforcemanagement.businessunits.{id}.adherence.explanations
    v2.workforcemanagement.businessunits.{id}.capacityplans.{id}.staffingrequirements
    v2.workforcemanagement.businessunits.{id}.forecasts.staffingrequirement
    v2.workforcemanagement.businessunits.{id}.main.forecast.export.forecast
    v2.workforcemanagement.businessunits.{id}.main.forecast.export.historical
    v2.workforcemanagement.businessunits.{id}.main.forecast.export.snapshot
    v2.workforcemanagement.businessunits.{id}.schedules
    v2.workforcemanagement.businessunits.{id}.scheduling.runs
    v2.workforcemanagement.businessunits.{id}.shorttermforecasts
    v2.workforcemanagement.businessunits.{id}.shorttermforecasts.copy
    v2.workforcemanagement.businessunits.{id}.shorttermforecasts.generate
    v2.workforcemanagement.businessunits.{id}.shorttermforecasts.import
    v2.workforcemanagement.businessunits.{id}.workplanbids.{id}
    v2.workforcemanagement.historicaldata.delete.jobs
    v2.workforcemanagement.historicaldata.deletejob
    v2.workforcemanagement.historicaldata.status
    v2.workforcemanagement.managementunits.{id}
    v2.workforcemanagement.managementunits.{id}.adherence
    v2.workforcemanagement.managementunits.{id}.agents.sync
    v2.workforcemanagement.managementunits.{id}.schedules
    v2.workforcemanagement.managementunits.{id}.shifttrades.state.bulk
    v2.workforcemanagement.performanceprediction.schedules.{id}
    v2.workforcemanagement.teams.{id}.adherence
    v2.workforcemanagement.users.{id}.schedules.query
    v2.workforcemanagement.users.{id}.schedules.search
    """.split()  # noqa: SIM905 - a line each reads better
)

_PART: Final = re.compile(r"\{[^{}.]*\}")
_ID: Final = "{id}"
_ALIKE: Final = 0.8  # as difflib measures it: a letter wrong in a short topic


def is_known(pattern: str, own: Iterable[str] = ()) -> bool:
    """Return whether a pattern takes any topic of Genesys, or any of the user's own.

    An id in the topic may be a name in the pattern, as in `v2.audits.entitytype.User.entityid.{id}`.
    """
    takes, written = topic_pattern(pattern), _PART.sub(_ID, pattern)
    of_genesys = any(takes.fullmatch(topic) or _names_one(written, topic) for topic in TOPICS)
    return of_genesys or any(overlap(pattern, topic) for topic in own)


def looks_like_one(pattern: str) -> bool:
    """Return whether a pattern is meant for a topic of Genesys, and not for one of the user's own."""
    return pattern.lower().startswith("v2.") or nearest(pattern) is not None


def nearest(pattern: str) -> str | None:
    """Return the topic that a pattern which takes none may have meant; None if none is near."""
    written = _PART.sub(_ID, pattern).lower()
    if not written.endswith("*"):
        return _most_alike(written.replace("*", _ID), TOPICS)
    # By as many parts as come before the first wildcard.
    depth = written.partition("*")[0].count(".")
    starts = [".".join([*topic.split(".")[:depth], "*"]) for topic in TOPICS if topic.count(".") >= depth]
    return _most_alike(".".join([*written.split(".")[:depth], "*"]), starts)


def _names_one(pattern: str, topic: str) -> bool:
    """Return whether a pattern is a topic with names for some of its ids, or the beginning of one before a last `*`."""
    there, (start, *rest) = topic.split("."), pattern.split("*", 1)
    parts = start.split(".")
    if not rest:
        return len(parts) == len(there) and all(map(_fits, parts, there))
    if not pattern.endswith("*") or len(there) < len(parts):
        return False
    *parts, last = parts
    return all(map(_fits, parts, there)) and (there[len(parts)] == _ID or there[len(parts)].startswith(last))


def _fits(part: str, there: str) -> bool:
    return there in (part, _ID)


def _most_alike(written: str, topics: Iterable[str]) -> str | None:
    import difflib  # only for a warning: programs start without it

    by_lower = {topic.lower(): topic for topic in topics}
    found = difflib.get_close_matches(written, by_lower, n=1, cutoff=_ALIKE)
    return by_lower[found[0]] if found else None
