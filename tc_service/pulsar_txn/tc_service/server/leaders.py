"""Leaders of the coordinators: this instance, another one, or none at this moment."""

from __future__ import annotations

from typing import Final, Protocol, Self

import attrs

from pulsar_txn.broker.serving import Coordinators

_TLS: Final = ("pulsar+ssl://", "https://")
_FRONT: Final = "front="
_WEB: Final = "web="


@attrs.frozen
class Address:
    """The service URLs of an instance, without and with TLS; empty where it has no such port.

    `front`: those of its front; `web`: those of its HTTP side.
    """

    plain: str = ""
    tls: str = ""
    front: Address | None = None
    web: Address | None = None

    @classmethod
    def parse(cls, advertised: str) -> Self:
        """Parse what `advertised` gave."""
        urls = advertised.split()
        parts = {mark: " ".join(url.removeprefix(mark) for url in urls if url.startswith(mark)) for mark in (_FRONT, _WEB)}
        urls = [url for url in urls if not url.startswith((_FRONT, _WEB))]
        tls = [url for url in urls if url.startswith(_TLS)]
        plain = [url for url in urls if not url.startswith(_TLS)]
        front, web = (cls.parse(each) if each else None for each in parts.values())
        return cls("".join(plain[:1]), "".join(tls[:1]), front, web)

    @property
    def advertised(self) -> str:
        """One text for the other instances."""
        urls = [url for url in (self.plain, self.tls) if url]
        of_parts = [(mark, each) for mark, each in ((_FRONT, self.front), (_WEB, self.web)) if each is not None]
        return " ".join([*urls, *(mark + url for mark, each in of_parts for url in each.advertised.split())])

    def with_front_and_web(self, *, front: Address, web: Address) -> Address:
        """The same instance, with the URLs of its front and of its HTTP side."""
        return attrs.evolve(self, front=front if front.advertised else None, web=web if web.advertised else None)


NO_ADDRESS: Final = Address()


class Instance(Protocol):
    """One instance of the service."""

    coordinators: Coordinators
    service_url: str
    service_url_tls: str


class Leaders:
    """Answers who leads, as far as this instance knows.

    `is_shared`: whether there may be other instances at all. `of_fronts`: where their fronts are, and not they themselves.
    """

    def __init__(self, instance: Instance, *, is_shared: bool, of_fronts: bool = False) -> None:
        self.is_shared = is_shared
        self._of_fronts = of_fronts
        self._instance = instance

    @property
    def here(self) -> Address:
        """This instance."""
        return Address(self._instance.service_url, self._instance.service_url_tls)

    def find(self, tc_id: int) -> Address | None:
        """Address of a coordinator's leader; None while nobody is known to lead it. Without other instances: this one."""
        coordinators = self._instance.coordinators
        if not self.is_shared or not coordinators.is_elsewhere(tc_id):
            return self.here
        leader = coordinators.leader(tc_id)
        if leader is None:
            return None
        address = Address.parse(leader)
        return address.front if self._of_fronts else address

    def all(self) -> dict[int, Address | None]:
        """Address of each coordinator's leader; None while nobody is known to lead it."""
        return {tc_id: self.find(tc_id) for tc_id in range(len(self._instance.coordinators))}
