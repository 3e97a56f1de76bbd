"""A seed says what a run of the chain does, and the comparison of what came out with what went in sees every fault."""

from __future__ import annotations

import itertools
import json
import os
import signal

import pytest
from chain_judge import compare, refused
from chain_recorder import HopRecorder
from chain_run import PhaseRun
from chain_schedule import CLIENTS, MODES, Fault, draw, phase_of
from chain_zombies import Zombie
from check_history import judge
from history_format import HistoryWriter, make_payload
from history_reader import History, Op, read_history
from other_languages import go_program

SEEDS = range(50)


@pytest.mark.parametrize("seed", [0, 7, 123_456])
def test_equal_seeds_give_equal_schedules_and_other_seeds_others(seed):
    assert draw(seed, 40) == draw(seed, 40)
    assert draw(seed, 40) != draw(seed + 1, 40)


def test_every_seed_has_all_types_batched_and_unbatched_with_and_without_kills():
    for seed in SEEDS:
        calm, kills = draw(seed, 40)
        for phase in (calm, kills):
            hops = {(hop.mode, hop.batched) for chain in phase.chains for hop in chain.hops}
            assert hops == set(itertools.product(MODES, (True, False)))
        faults = [{fault.what for fault in phase.faults} for phase in (calm, kills)]
        assert "kill-broker" not in faults[0]
        assert "kill-broker" in faults[1]
        assert all(found & {"kill-worker", "close-worker"} for found in faults)
        assert all(found & {"replace-worker", "pause-worker"} for found in faults)


def test_only_workers_with_a_transactional_id_have_successors_beside_them():
    for seed in SEEDS:
        for phase in draw(seed, 40):
            fenced = {worker.name for worker in phase.workers if worker.beats}
            assert len(fenced) == len(phase.chains)
            taken = {fault.target for fault in phase.faults if fault.what in ("replace-worker", "pause-worker")}
            assert taken <= fenced


def test_a_server_that_fences_nobody_has_no_take_overs():
    for phase in draw(1, 40, fences=False):
        assert not any(worker.beats for worker in phase.workers)
        assert {fault.what for fault in phase.faults} <= {"kill-worker", "close-worker", "kill-broker"}


def test_without_batches_no_chain_has_batched_input_and_every_type_is_there():
    for seed in SEEDS:
        for phase in draw(seed, 40, batches=False, clients=CLIENTS):
            assert {(hop.mode, hop.batched) for chain in phase.chains for hop in chain.hops} == {
                (mode, False) for mode in MODES
            }


def test_official_clients_work_beside_ours_on_every_type_batched_and_unbatched():
    for seed in SEEDS:
        for phase in draw(seed, 40, clients=CLIENTS):
            on = {hop for worker in phase.workers if worker.client == "java" for hop in phase.chain_of(worker).hops}
            on |= {hop for worker in phase.workers if worker.client == "go" for hop in phase.chain_of(worker).hops}
            assert {(hop.mode, hop.batched) for hop in on} == set(itertools.product(MODES, (True, False)))
            for chain in phase.chains:
                (kinds,) = [tuple(each.client for each in phase.workers if each.chain == chain.name)]
                assert kinds in {("ours", "java"), ("ours", "go"), ("go", "go")}


def test_nobody_else_takes_a_part_of_the_batches_of_go():
    """Its client acknowledges the whole entry, which conflicts for ever."""
    for seed, clients in itertools.product(SEEDS, (("go",), CLIENTS, ("java", "go"))):
        for phase in draw(seed, 40, clients=clients):
            batched = {chain.name for chain in phase.chains if chain.hops[0].batched}
            with_go = {worker.chain for worker in phase.workers if worker.client == "go"} & batched
            assert with_go
            assert {worker.client for worker in phase.workers if worker.chain in with_go} == {"go"}


def test_only_our_workers_have_transactional_ids():
    assert not any(worker.beats for phase in draw(1, 40, clients=("java", "go")) for worker in phase.workers)
    assert all(worker.client == "ours" for phase in draw(1, 40, clients=CLIENTS) for worker in phase.workers if worker.beats)


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("cc,go", pytest.fail.Exception)])
def test_without_a_go_its_workers_are_skipped_or_missed_where_they_are_required(monkeypatch, tmp_path, required, outcome):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PULSAR_TXN_REQUIRE", required)
    with pytest.raises(outcome, match="there is no Go"):
        go_program(tmp_path)


def test_a_go_that_cannot_fetch_a_newer_one_is_none(monkeypatch, tmp_path):
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n", encoding="utf-8")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PULSAR_TXN_REQUIRE", "")
    with pytest.raises(pytest.skip.Exception, match=r"no Go 1\.21 or newer"):
        go_program(tmp_path)


def test_fifty_seeds_have_every_style_on_every_type():
    phases = [phase for seed in SEEDS for phase in draw(seed, 40)]
    drawn = {
        (hop.mode, style)
        for phase in phases
        for worker in phase.workers
        for hop, style in zip(phase.chain_of(worker).hops, worker.styles, strict=True)
    }
    assert drawn == set(itertools.product(MODES, ("single", "interleaved", "batch", "received", "pipeline", "sync")))


def test_the_processes_read_the_schedule_that_was_drawn():
    for phase in draw(3, 40):
        assert phase_of(json.loads(phase.as_json())) == phase


class Story:
    """The final reads of a phase in which everything went well, except for what a test changes."""

    def __init__(self, folder):
        self.folder = folder
        self.phase = draw(1, 0, phases=["calm"])[0]
        self.sent = HistoryWriter(folder, "source")
        self.writers = {}

    def send(self, chain, seq, answered=True):
        topic = chain.hops[0].source
        payload = make_payload(chain.name, seq) | {"root": [chain.name, seq]}
        asked = {"topic": topic, "partition": -1, "producer": chain.name, "seq": seq, "txn": None, "payload": payload}
        op = self.sent.invoke("send", **asked)
        if answered:
            self.sent.ok(op, position=[1, seq, -1])

    def find(self, process, topic, root):
        writer = self.writers.get(process) or self.writers.setdefault(process, HistoryWriter(self.folder, process))
        payload = make_payload("p", 0) | {"root": list(root)}
        where = {"topic": topic, "partition": -1, "subscription": None, "consumer": None, "reader": process}
        writer.event("deliver", **where, position=[1, 0, -1], payload=payload, redeliveries=0)

    def through(self, chain, seq):
        self.send(chain, seq)
        self.find("final-a", chain.hops[0].source, (chain.name, seq))
        self.find("final-d", chain.hops[-1].target, (chain.name, seq))

    def verdict(self):
        return compare(self.phase, read_history(self.folder))


@pytest.fixture
def story(tmp_path):
    story = Story(tmp_path)
    for chain in story.phase.chains:
        for seq in range(3):
            story.through(chain, seq)
    return story


def test_what_came_through_once_is_right(story):
    verdict = story.verdict()
    assert verdict.is_right
    assert verdict.sent == 12
    assert str(verdict) == "12 messages: each is at the end once"


def test_what_was_answered_and_is_not_at_the_end_is_lost(story):
    chain = story.phase.chains[0]
    story.send(chain, 3)
    story.send(chain, 4, answered=False)
    assert story.verdict().lost == ((chain.name, 3),)


def test_what_is_at_the_beginning_without_an_answer_has_to_come_through(story):
    chain = story.phase.chains[0]
    story.send(chain, 4, answered=False)
    story.find("final-a", chain.hops[0].source, (chain.name, 4))
    assert story.verdict().lost == ((chain.name, 4),)


def test_a_second_copy_at_the_end_is_doubled(story):
    chain = story.phase.chains[1]
    story.find("final-d", chain.hops[-1].target, (chain.name, 2))
    assert story.verdict().doubled == ((chain.name, 2),)


def test_what_never_went_in_is_foreign(story):
    chain = story.phase.chains[2]
    story.find("final-d", chain.hops[-1].target, (chain.name, 99))
    assert story.verdict().foreign == ((chain.name, 99),)


def test_what_is_left_on_a_subscription_is_a_fault(story):
    hop = story.phase.chains[0].hops[1]
    story.find("rest-b", hop.source, ("x", 1))
    assert not story.verdict().is_right
    assert "1 left" in str(story.verdict())


def test_what_a_predecessor_asks_for_in_vain_is_counted(tmp_path):
    first, second = HistoryWriter(tmp_path, "w.0"), HistoryWriter(tmp_path, "w.1")
    identity = {"identity": ["transactional_id", "w", 0]}
    for name in ("early", "late"):
        if name == "late":
            second.ok(second.invoke("open", transactional_id="w"), identity=["transactional_id", "w", 1])
        first.ok(first.invoke("begin", txn=name, timeout_ms=1000, **identity))
        first.fail(first.invoke("commit", txn=name))
    first.info(first.invoke("begin", txn="refused", timeout_ms=1000, **identity))
    assert refused(read_history(tmp_path)) == 2


def test_the_numbers_of_a_lane_go_on_when_its_style_begins_again(tmp_path):
    hop = draw(1, 0)[0].chains[0].hops[0]
    recorder = HopRecorder(HistoryWriter(tmp_path, "w.0"), hop, "a0")
    source = make_payload("p", 1) | {"root": ["p", 1], "key": "k"}
    made = [lane.outputs("x", [source])[0].payload for lane in (recorder, recorder.part(1), recorder.part(1), recorder.part(2))]
    assert len({(each["producer"], each["seq"]) for each in made}) == len(made)


class Sleeper:
    """The process of a zombie that remembers its signals."""

    def __init__(self):
        self.signals = []

    def send_signal(self, number):
        self.signals.append(number)


@pytest.mark.parametrize("slept", [True, False])
def test_a_predecessor_goes_when_it_was_refused_after_its_successor_came(monkeypatch, slept):
    now, seen, ended = [0.0], set(), []
    monkeypatch.setattr("chain_zombies.time.monotonic", lambda: now[0])
    zombie = Zombie(
        "w.0",
        Sleeper(),
        slept=slept,
        succeeded=lambda: "succeeded" in seen,
        refused=lambda: "refused" in seen,
        end=lambda each: ended.append(each.in_time),
    )
    assert zombie.process.signals == [signal.SIGSTOP] * slept
    now[0] = 100
    assert not zombie.step()
    seen.add("succeeded")
    assert not zombie.step()
    assert zombie.process.signals[slept:] == [signal.SIGCONT]
    seen.add("refused")
    assert not zombie.step()
    assert not ended
    now[0] = 200
    assert zombie.step()
    assert ended == [True]


def test_a_predecessor_that_is_never_refused_is_told_of():
    ended = []
    zombie = Zombie("w.0", Sleeper(), slept=False, succeeded=lambda: True, refused=lambda: False, end=ended.append)
    assert not zombie.step()
    zombie._since -= 1000
    assert zombie.step()
    assert not ended[0].in_time


class Ended:
    """A process that a signal ends at once."""

    def kill(self):
        pass

    def send_signal(self, _signal):
        pass

    def wait(self, _seconds):
        return 0

    def poll(self):
        return 0


@pytest.mark.parametrize("how", ["kill-worker", "close-worker"])
def test_requests_of_a_worker_that_was_killed_need_no_answer(tmp_path, monkeypatch, how):
    """The kill named the worker, and its history is written under names of its incarnation: a slow drain was a failure."""
    phase = draw(1, 40, phases=["calm"])[0]
    run = PhaseRun(phase, None, tmp_path, seed=1, command="", python="")
    monkeypatch.setattr(run, "_spawn", lambda *_: Ended())
    worker = phase.workers[0]
    run._start_worker(worker)
    asked = {"txn": "t", "timeout_ms": 4000}
    for process in (f"{worker.name}.0", f"{worker.name}.0-b"):
        HistoryWriter(run.history, process).invoke("begin", **(asked | {"txn": process}))
    run._inflict(Fault(at=0.0, what=how, target=worker.name))
    HistoryWriter(run.history, f"{worker.name}.1").invoke("begin", **asked)
    run._nemesis.event("heal")
    ops = read_history(run.history).ops
    later = max(op.start for op in ops) + 10**11
    ops.append(Op("harness", "metrics", "info", {"source": "broker", "values": {}}, later, later))
    (verdict,) = judge(History(ops), ["K15"])
    assert f"begin of {worker.name}.1 was never answered" in str(verdict)
    assert "in all" not in str(verdict), "no other"
