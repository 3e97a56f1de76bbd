"""Order of what is handed out on Exclusive and Failover: one test for each fault that the models of brokers have found.

Each one plays the moves of `delivery_world` that showed the fault, and judges what the program has got then.
"""

from __future__ import annotations

import attrs
import pytest
from delivery_world import OPTIONS, Move, World
from dispatcher_models import MARKER, NEW, OLD, OURS, OrderedDispatcher

from pulsar_txn.client.state.delivery import DeliveryMachine, Start
from pulsar_txn.client.state.effects import DropQueued, Timer
from pulsar_txn.client.state.rewinds import Turn
from pulsar_txn.wire.ids import EARLIEST, MessageId, TxnAction

pytestmark = pytest.mark.quick


def play(world: World, *moves: Move) -> None:
    """Let these happen; each of them is possible then."""
    for move in moves:
        assert move in list(world.moves()), move
        world.do(move)


def delivered(
    kind: str, sizes: list[int], *, chunks: dict[int, tuple[str, int, int]] | None = None, published: int | None = None
) -> World:
    """A world in which entries were published, sent and received, and wait for the program: all, or what one read brings."""
    world = World(OrderedDispatcher(kind, sizes, published or len(sizes)), chunks=chunks)
    world.goes()
    for _ in sizes[:published]:
        world.do(("publish",))
    arrives(world)
    assert [message[:2] for message in world.queue] == [each for each in world.messages() if each[0] < world.broker.published]
    return world


def arrives(world: World) -> None:
    """Frames arrive, and reads end, until none is under way."""
    while True:
        if world.to_broker:
            world.goes()
        elif world.broker.to_client:
            world.comes()
        elif moves := list(world.broker.moves()):
            world.broker.move(moves[-1])
        else:
            return


def refuses(world: World) -> None:
    """A stock broker refuses an acknowledgement in a unit that is sent again, so that the unit is given up."""
    while ("ack in", world.works[0]) not in [move[:2] for move in world.to_broker]:
        world.goes()
    play(world, ("go",), ("cut",))
    arrives(world)


def test_what_follows_messages_of_a_unit_that_acknowledged_and_then_aborts_waits_for_them():
    world = delivered(OURS, [0, 0, 0])
    play(world, ("work", -1), ("ack in", 0))
    arrives(world)
    play(world, ("abort", 0))
    assert ("ack",) not in list(world.moves()), "the second message would be handed out before the first one"
    world.heal()
    world.judge()


def test_an_earlier_message_that_the_program_put_off_does_not_end_the_waiting_for_those_of_a_unit():
    world = delivered(NEW, [0, 0, 0])
    play(world, ("nack",), ("work", -1), ("commit", 0))
    refuses(world)
    play(world, ("wait",), ("wait",))
    arrives(world)
    play(world, ("ack",))
    assert ("ack",) not in list(world.moves()), "the third message would be handed out before the second one"
    world.heal()
    world.judge()


def test_an_earlier_message_of_the_same_batch_does_not_end_the_waiting_for_those_of_a_unit():
    world = delivered(OLD, [3])
    play(world, ("nack",), ("work", -1), ("ack in", 0))
    arrives(world)
    play(world, ("abort", 0), ("tell",))
    arrives(world)
    assert ("ack",) not in list(world.moves()), "the third message would be handed out before the second one"
    world.heal()
    world.judge()


def test_what_was_kept_back_comes_again_behind_what_it_waited_for():
    world = delivered(NEW, [0, 0, 0])
    play(world, ("work", -1), ("commit", 0))
    refuses(world)
    play(world, ("wait",), ("tell",))
    world.heal()
    world.judge()


def test_what_was_kept_back_comes_again_although_only_a_read_under_way_had_brought_it():
    world = World(OrderedDispatcher(OLD, [0, MARKER, 3, 0, MARKER], 2), chunks={0: ("message", 0, 2), 3: ("message", 1, 2)})
    read: list[Move] = [("broker", step, 0) for step in ("begin", "land", "handle")]
    play(world, ("go",), ("publish",), ("publish",), *read, read[0], ("come",), *read[1:], ("come",))
    play(world, ("work", -1), ("ack in", 0), ("go",), ("abort", 0), ("come",), ("tell",))
    world.heal()
    world.judge()


def test_a_message_in_chunks_that_waits_in_the_queue_comes_whole_after_a_rewind_without_a_word():
    world = delivered(OURS, [0, 0, 0, 0], chunks={1: ("message", 0, 2), 2: ("message", 1, 2)})
    play(world, ("work", -1), ("commit", 0))
    arrives(world)
    play(world, ("leave",), ("elsewhere", TxnAction.ABORT, False))
    world.heal()
    world.judge()


def test_what_a_server_brings_before_the_end_of_a_unit_is_told_waits_for_that():
    world = delivered(OURS, [0, 0])
    play(world, ("work", -1), ("ack in", 0))
    arrives(world)
    play(world, ("ack",), ("abort", 0), ("apply",))
    arrives(world)  # the server has gone back without a word, and knows nothing of the acknowledgement that is collected
    assert not world.queue
    world.heal()
    world.judge()


def test_a_request_of_the_program_is_not_taken_for_calm():
    world = World(OrderedDispatcher(NEW, [0] * 6, 3))
    play(world, ("publish",), ("ask",), ("publish",), ("wait",))
    for _ in range(4):
        play(world, ("publish",))
    play(world, ("broker", "begin", 0), ("ask",))
    world.heal()
    world.judge()


def test_a_request_of_the_program_leaves_holes_doubted_that_were_asked_about():
    world = delivered(NEW, [0, 0, 0], published=1)
    play(world, ("work", -1), ("publish",), ("broker", "begin", 0), ("ask",))
    arrives(world)  # the second message is passed over
    play(world, ("publish",))
    arrives(world)
    play(world, ("wait",), ("broker", "land", 0), ("broker", "handle", 0), ("broker", "begin", 0), ("ask",))
    world.heal()
    world.judge()


def comes(machine: DeliveryMachine, entry: int, live: int = 1, count: int = 1) -> Turn:
    """An entry comes, and is admitted if it is its turn."""
    turn = machine.came((7, entry), live, count, 10, machine.redelivery.epoch, 0.0)
    if turn is Turn.NOW:
        machine.admit((7, entry), count if count > 1 else 0, live)
    return turn


def opened(*, is_durable: bool = True) -> DeliveryMachine:
    """A machine of a consumer that the broker knows."""
    start = None if is_durable else Start(MessageId(*EARLIEST))
    machine = DeliveryMachine("t", -1, attrs.evolve(OPTIONS, is_durable=is_durable, start=start))
    machine.subscribes_again(None)
    machine.opened()
    return machine


def test_messages_of_an_entry_that_others_gave_back_are_missed_when_they_do_not_come():
    machine = opened()
    comes(machine, 0, 0b100, 3)  # the others are acknowledged in transactions, which other programs end
    machine.redelivery.everything(0.0)
    assert comes(machine, 0, 0b110, 3) is Turn.NOW
    machine.acknowledge([((7, 0), 2, 3)])
    machine.redelivery.everything(0.0)
    assert comes(machine, 1) is Turn.LATER, "the second message of the entry before would be overtaken"


def test_what_has_shown_in_a_doubted_hole_has_to_come_first():
    machine = opened()
    comes(machine, 0)
    machine.redelivery.everything(0.0)
    assert comes(machine, 0) is Turn.NOW
    assert comes(machine, 2) is Turn.LATER
    assert comes(machine, 1) is Turn.LATER
    asked = machine.redelivery.epoch
    while machine.redelivery.epoch == asked:
        machine.expire(Timer.REWIND, 1.0, has_queued=False)
    assert comes(machine, 2) is Turn.LATER, "the entry before it has not come again"


def test_what_was_being_read_when_others_aborted_is_asked_for():
    world = delivered(NEW, [0, 0, 0, 0], published=2)
    play(world, ("work", -1), ("commit", 0))
    arrives(world)
    play(world, ("leave",), ("publish",), ("publish",), ("broker", "begin", 0), ("elsewhere", TxnAction.ABORT, False))
    world.heal()
    world.judge()


def test_a_rewind_of_a_subscription_without_memory_is_no_reason_to_ask():
    machine = opened(is_durable=False)
    assert comes(machine, 2) is Turn.NOW
    machine.effects.clear()
    assert comes(machine, 1) is Turn.REWOUND
    assert machine.effects == [DropQueued()]


def test_what_is_acknowledged_soon_after_a_request_is_not_handed_out_again_by_another_read():
    world = delivered(OLD, [0, 0])
    play(world, ("work", -1), ("ack in", 0))
    arrives(world)
    play(world, ("abort", 0), ("tell",))
    while world.to_broker:
        world.goes()
    play(world, ("broker", "land", 0), ("late",), ("broker", "handle", 0), ("come",), ("ack",))
    arrives(world)  # the read that began at the abort brings it as well, in the same consumer epoch
    world.heal()
    world.judge()
