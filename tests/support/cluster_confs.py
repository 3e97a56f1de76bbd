"""The configuration of the servers of a small cluster: ZooKeeper, bookies and brokers on one machine, with little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cluster_secrets import SUPERUSERS, ClusterSecrets

HOST: Final = "127.0.0.1"
NAME: Final = "c1"


def zookeeper(folder: Path, port: int) -> str:
    """The text of zoo.cfg."""
    keys = {
        "tickTime": "1000",
        "initLimit": "10",
        "syncLimit": "5",
        "dataDir": str(folder),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "minSessionTimeout": "2000",
        "maxSessionTimeout": "60000",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok",
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def bookie(folder: Path, port: int, zookeeper_port: int, session_ms: int) -> dict[str, str]:
    """What differs from the shipped bookkeeper.conf."""
    return {
        "bookiePort": str(port),
        "advertisedAddress": HOST,
        "allowLoopback": "true",
        "metadataServiceUri": f"metadata-store:zk:{HOST}:{zookeeper_port}",  # with /ledgers the root would be /ledgers/ledgers
        "zkTimeout": str(session_ms),
        "journalDirectory": str(folder / "journal"),
        "ledgerDirectories": str(folder / "ledgers"),
        "journalSyncData": "false",
        "journalMaxSizeMB": "64",
        "journalPreAllocSizeMB": "4",
        "minUsableSizeForIndexFileCreation": "1048576",
        "minUsableSizeForEntryLogCreation": "1048576",
        "minUsableSizeForHighPriorityWrites": "1048576",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "logSizeLimit": "67108864",
        "entryLogFilePreallocationEnabled": "false",
        "numReadWorkerThreads": "1",
        "numAddWorkerThreads": "1",
        "numHighPriorityWorkerThreads": "1",
        "numJournalCallbackThreads": "1",
        "serverNumIOThreads": "2",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "16",
        "dbStorage_rocksDB_blockCacheSize": "8388608",
        "dbStorage_rocksDB_writeBufferSizeMB": "8",
        "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",  # else all want port 8000
        "autoRecoveryDaemonEnabled": "false",
    }


def broker(port: int, http_port: int, zookeeper_port: int, session_ms: int) -> dict[str, str]:
    """What differs from the shipped broker.conf."""
    return {
        "metadataStoreUrl": f"zk:{HOST}:{zookeeper_port}",
        "configurationMetadataStoreUrl": f"zk:{HOST}:{zookeeper_port}",
        "clusterName": NAME,
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "brokerServicePort": str(port),
        "webServicePort": str(http_port),
        "transactionCoordinatorEnabled": "true",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "activeConsumerFailoverDelayTimeMillis": "100",
        "metadataStoreSessionTimeoutMillis": str(session_ms),
        "managedLedgerDefaultEnsembleSize": "2",
        "managedLedgerDefaultWriteQuorum": "2",
        "managedLedgerDefaultAckQuorum": "2",  # of three bookies one may be away
        "managedLedgerCacheSizeMB": "64",
        "loadBalancerSheddingEnabled": "false",  # a bundle moves when a test says so
        "loadBalancerAutoBundleSplitEnabled": "false",
    }


def secured(secrets: ClusterSecrets, tls_port: int) -> dict[str, str]:
    """What a broker needs further to check who connects. Its plain ports want the token as well."""
    return {
        "brokerServicePortTls": str(tls_port),
        "tlsCertificateFilePath": str(secrets.certificate),
        "tlsKeyFilePath": str(secrets.key),
        "tlsTrustCertsFilePath": str(secrets.authority),
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": secrets.secret_key.as_uri(),
        "authorizationEnabled": "true",
        "superUserRoles": ",".join(SUPERUSERS),
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": secrets.token_file("broker").as_uri(),
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(secrets.authority),
    }
