"""Options of other Spark sources that people type here: Spark's Kafka source and StreamNative's connector, and our answer."""

from __future__ import annotations

from typing import Final

_TOPIC = 'use "topic" (one or several, with commas between)'
_SECRETS = 'use "tokenFile", "tlsTrustCertsFile", "tlsCertificateFile" and "tlsKeyFile", or "oauth2KeyFile"'

_ANSWERS: Final = {
    # Spark's Kafka source and sink
    "subscribe": _TOPIC,
    "assign": 'use "topic" with full names of partitions, as in "persistent://public/default/t-partition-0"',
    "subscribepattern": 'use "topicsPattern"',
    "startingoffsetsbytimestamp": 'use "startingTimestamp"; by topic partition it is a JSON object of milliseconds',
    "endingoffsetsbytimestamp": 'use "endingTimestamp"; by topic partition it is a JSON object of milliseconds',
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last message means the end of the topic",
    "maxoffsetspertrigger": 'use "maxMessagesPerTrigger"',
    "minoffsetspertrigger": "there is no lower bound: use a processing-time trigger to collect more per micro-batch",
    "maxtriggerdelay": "there is no lower bound: use a processing-time trigger to collect more per micro-batch",
    "maxrecordsperpartition": 'use "minPartitions"',
    "groupidprefix": 'use "subscriptionName"; without it the source needs no subscription',
    "includeheaders": 'leave it out: the column "properties" is always there',
    "kafkaconsumer.polltimeoutms": 'use "pollTimeoutMs"',
    "fetchoffset.numretries": 'use "failAfterMs"',
    "fetchoffset.retryintervalms": 'use "failAfterMs"',
    # StreamNative's connector
    "predefinedsubscription": 'use "subscriptionName"',
    "subscriptionprefix": 'use "subscriptionName"',
    "startingtime": 'use "startingTimestamp"',
    "endingtime": 'use "endingTimestamp"',
    "allowdifferenttopicschemas": "leave it out: every message is read as bytes",
    "waitingfornonexistedtopic": 'use "waitForTopic"',
    "authpluginclassname": f'it is "pulsar.client.authPluginClassName"; or {_SECRETS}',
    "authparams": f'it is "pulsar.client.authParams"; or {_SECRETS}',
    "usetls": 'use a service.url with "pulsar+ssl://"',
}

_PREFIXES: Final = {
    "kafka.bootstrap.servers": 'use "service.url", as in "pulsar://localhost:6650"',
    "kafka.group.id": 'use "subscriptionName"; without it the source needs no subscription',
    "kafka.compression.type": 'use "compression"',
    "kafka.s": _SECRETS,
    "kafka.": "this is a source for Pulsar; arguments of its client are pulsar.client.…",
    "pulsar.reader.": 'only pulsar.client.… is passed through; see "receiverQueueBytes" and "pollTimeoutMs"',
    "pulsar.producer.": 'only pulsar.client.… is passed through; see "compression" and "batchingMaxBytes"',
    "pulsar.consumer.": 'only pulsar.client.… is passed through; see "subscriptionName"',
    "pulsar.admin.": "leave it out: only the binary protocol is used",
}


def answer_to(name: str) -> str | None:
    """Return what to use instead of another source's option; None for a name that no other source has."""
    key = name.lower()
    found = _ANSWERS.get(key)
    if found is None:
        found = next((answer for prefix, answer in _PREFIXES.items() if key.startswith(prefix)), None)
    return found
