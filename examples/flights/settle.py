"""Settlement of one flight, as the worker does it (rules.md). Whole cents; no pandas, no Spark."""

from __future__ import annotations

from typing import Any

import attrs
from data import Flight

SEAT_CENTS = 3_900
FREE_MINUTES = 15

NO_ARRIVAL = "departed, and no arrival is recorded"
NO_FLIGHT = "not a flight: a field that the rules need is missing"
"""Why a flight, or a message that holds none, is refused."""


@attrs.frozen
class Settlement:
    """What a flight earned and cost."""

    id: int
    carrier: str
    route: str
    day: str
    fare_cents: int
    penalty_cents: int
    refund_cents: int

    @property
    def net_cents(self) -> int:
        """What stays with the carrier."""
        return self.fare_cents - self.penalty_cents - self.refund_cents

    def message(self) -> dict[str, Any]:
        """The JSON value for topic `settlements`."""
        return {**attrs.asdict(self), "net_cents": self.net_cents}

    def posting(self) -> dict[str, Any]:
        """The JSON value for topic `postings`."""
        return {"id": self.id, "carrier": self.carrier, "net_cents": self.net_cents}


def stepped(amount: int, steps: tuple[tuple[int | None, int], ...]) -> int:
    """Charge `amount` units by steps of (units in this step, cents per unit); None: all that is left."""
    cents = 0
    for width, price in steps:
        units = amount if width is None else min(amount, width)
        cents += units * price
        amount -= units
    return cents


def fare_cents(distance_miles: int) -> int:
    """The fare of a seat."""
    return SEAT_CENTS + stepped(distance_miles, ((500, 14), (1_000, 11), (None, 9)))


def penalty_cents(arr_delay_minutes: int | None, fare: int) -> int:
    """The penalty of a flight that departed."""
    if arr_delay_minutes is None:
        return fare // 2
    late = max(0, arr_delay_minutes - FREE_MINUTES)
    return min(fare, stepped(late, ((60 - FREE_MINUTES, 25), (120, 50), (None, 100))))


@attrs.frozen
class Refusal:
    """A flight that no rule settles: a person has to look at it."""

    id: int
    carrier: str
    reason: str

    def message(self) -> dict[str, Any]:
        """The JSON value for topic `refused`."""
        return attrs.asdict(self)


def settle(flight: Flight) -> Settlement | Refusal:
    """Settle one flight, or say why that cannot be."""
    if flight.dep_time is not None and flight.arr_time is None:
        return Refusal(flight.id, flight.carrier, NO_ARRIVAL)
    fare = fare_cents(flight.distance_miles)
    cancelled = flight.dep_time is None
    return Settlement(
        id=flight.id,
        carrier=flight.carrier,
        route=f"{flight.origin}-{flight.dest}",
        day=flight.day,
        fare_cents=fare,
        penalty_cents=0 if cancelled else penalty_cents(flight.arr_delay_minutes, fare),
        refund_cents=fare if cancelled else 0,
    )
