"""Where each coordinator is: in this instance, in another one, or nowhere at this moment."""

from __future__ import annotations

from typing import Final, Protocol, Self

import attrs

from pulsar_txn.broker.serving import Coordinators

_TLS: Final = "pulsar+ssl://"


@attrs.frozen
class Address:
    """The service URLs of an instance, without and with TLS; empty where it has no such port."""

    plain: str = ""
    tls: str = ""

    @classmethod
    def parse(cls, advertised: str) -> Self:
        """What `advertised` gave."""
        tls = [url for url in advertised.split() if url.startswith(_TLS)]
        plain = [url for url in advertised.split() if not url.startswith(_TLS)]
        return cls("".join(plain[:1]), "".join(tls[:1]))

    @property
    def advertised(self) -> str:
        """One text for the other instances."""
        return " ".join(url for url in (self.plain, self.tls) if url)


class Instance(Protocol):
    """One instance of the service."""

    coordinators: Coordinators
    service_url: str
    service_url_tls: str


class Leaders:
    """Answers who leads, as far as this instance knows. `is_shared`: whether there may be other instances at all."""

    def __init__(self, instance: Instance, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self._instance = instance

    @property
    def here(self) -> Address:
        """This instance."""
        return Address(self._instance.service_url, self._instance.service_url_tls)

    def find(self, tc_id: int) -> Address | None:
        """Where a coordinator is; None while nobody is known to lead it. Without other instances, and if unknown: here."""
        coordinators = self._instance.coordinators
        if not self.is_shared or not coordinators.is_elsewhere(tc_id):
            return self.here
        leader = coordinators.leader(tc_id)
        return None if leader is None else Address.parse(leader)

    def all(self) -> dict[int, Address | None]:
        """Where each coordinator is; None while nobody is known to lead it."""
        return {tc_id: self.find(tc_id) for tc_id in range(len(self._instance.coordinators))}
