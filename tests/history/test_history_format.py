"""Histories are written so that a kill loses one line at most, and read so that nothing foreign passes."""

from __future__ import annotations

import ast
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from history_format import HistoryError, HistoryWriter, decode_payload, encode_payload, make_payload, payload_crc
from history_reader import NEVER, read_history

HERE = Path(__file__).parent


def counted_writer(folder, process, start=0):
    return HistoryWriter(folder, process, clock=itertools.count(start).__next__)


def test_operations_come_back_joined_and_in_the_order_of_their_invocations(tmp_path):
    a, b = counted_writer(tmp_path, "a", 10), counted_writer(tmp_path, "b", 11)
    first = a.invoke("begin", txn="a/0")  # 10
    second = a.invoke("begin", txn="a/1")  # 11
    b.event("heal")  # 11
    a.ok(second, id=[0, 1])  # 12
    a.fail(first)  # 13
    third = a.invoke("status", txn="a/1")  # 14
    a.ok(third, status="open")
    a.invoke("commit", txn="a/1")
    history = read_history(tmp_path)
    assert [(op.process, op.f, op.type, op.start, op.end) for op in history.ops] == [
        ("a", "begin", "fail", 10, 13),
        ("a", "begin", "ok", 11, 12),
        ("b", "heal", "info", 11, 11),
        ("a", "status", "ok", 14, 15),
        ("a", "commit", "info", 16, NEVER),
    ]
    assert history.ops[1].value == {"txn": "a/1", "id": [0, 1]}
    assert [op.index for op in history.ops] == [0, 1, 2, 3, 4]


def test_a_kill_loses_at_most_the_line_under_way(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from history_format import HistoryWriter\n"
        "writer = HistoryWriter(sys.argv[1], 'killed')\n"
        "for number in range(10**9):\n"
        "    writer.event('kill', target='x', how=str(number))\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(HERE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        told = [child.stdout.readline() for _ in range(50)]
        os.kill(child.pid, signal.SIGKILL)
        told += child.stdout.readlines()
    whole = [line for line in told if line.endswith(b"\n")]
    assert len(read_history(tmp_path).ops) >= len(whole) >= 50


def test_a_torn_last_line_is_dropped_and_reported(tmp_path):
    writer = counted_writer(tmp_path, "a")
    op = writer.invoke("commit", txn="t")
    writer.ok(op)
    path = tmp_path / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    history = read_history(tmp_path)
    assert history.torn == ("a.jsonl",)
    assert [(op.f, op.type, op.end) for op in history.ops] == [("commit", "info", NEVER)]


GOOD = {"t_mono_ns": 5, "process": "a", "f": "begin", "type": "invoke", "op": 0, "value": {"txn": "t"}}
DONE = {**GOOD, "type": "ok", "value": {}}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b"hello"], "no line of a history"),
        ([b"\xff\xfe"], "no line of a history"),
        ([b"17"], "no line of a history"),
        ([b""], "no line of a history"),
        ([GOOD | {"process": "b"}], "of process 'b'"),
        ([GOOD | {"f": "dance"}], "KeyError 'dance'"),
        ([GOOD | {"value": {}}], r"begin lacks \['txn'\]"),
        ([GOOD | {"value": None}], "no line of a history"),
        ([GOOD | {"t_mono_ns": "5"}], "no number of nanoseconds"),
        ([GOOD, DONE | {"t_mono_ns": 4}], "lower than that of the line before"),
        ([DONE], "not under way"),
        ([GOOD, DONE, DONE], "not under way"),
        ([GOOD, GOOD], "was invoked before"),
        ([GOOD, DONE | {"type": "perhaps"}], "'perhaps' is not known"),
        ([GOOD, DONE | {"f": "commit"}], "not under way"),
        ([{**GOOD, "f": "status"}, {**DONE, "f": "status"}], r"status lacks \['status'\]"),
        ([{"t_mono_ns": 5, "process": "a", "f": "heal", "type": "ok", "value": {}}], "has the type info"),
    ],
)
def test_a_foreign_line_is_an_error_that_names_file_and_line(tmp_path, lines, reason):
    good = {"t_mono_ns": 1, "process": "a", "f": "heal", "type": "info", "value": {}}
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in [good, *lines]]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(encoded) + b"\n")
    with pytest.raises(HistoryError, match=reason) as caught:
        read_history(tmp_path)
    assert f"a.jsonl:{len(encoded)}:" in str(caught.value)


def test_a_folder_without_histories_is_an_error(tmp_path):
    with pytest.raises(HistoryError, match="there is no history file"):
        read_history(tmp_path)


def test_two_meta_events_are_an_error(tmp_path):
    for name in ("a", "b"):
        counted_writer(tmp_path, name).event("meta", seed=1)
    with pytest.raises(HistoryError, match="one run"):
        read_history(tmp_path)


def test_a_process_name_is_used_once(tmp_path):
    HistoryWriter(tmp_path, "worker-1.0").close()
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path, "worker-1.0")
    with pytest.raises(ValueError, match="no file name"):
        HistoryWriter(tmp_path, "../worker")


def test_the_writer_refuses_what_the_reader_would(tmp_path):
    writer = HistoryWriter(tmp_path, "a")
    with pytest.raises(ValueError, match="send needs"):
        writer.invoke("send", topic="t")
    with pytest.raises(ValueError, match="deliver needs"):
        writer.event("deliver", topic="t")
    op = writer.invoke("status", txn="t")
    with pytest.raises(ValueError, match="ok of status needs"):
        writer.ok(op)


def test_a_payload_comes_back_with_its_crc():
    payload = make_payload("p", 7, txn="p/1", i=1, n=2, parts=[("t", -1)], inputs=[("q", 3)])
    assert decode_payload(encode_payload(payload, padding=1000)) == payload
    assert payload["crc"] == payload_crc(payload) != payload_crc({**payload, "seq": 8})
    with pytest.raises(ValueError, match="not sent by a workload"):
        decode_payload(b'{"a": 1}')


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_checkers_import_nothing_of_the_product(path):
    own = {other.stem for other in HERE.glob("*.py")}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names) | own | {"hypothesis", "pytest"}
