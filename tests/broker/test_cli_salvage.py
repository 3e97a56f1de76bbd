"""`pulsar-txn salvage` as a user has it: it names the command for each fault, says what that loses, and asks."""

from __future__ import annotations

from pathlib import Path

from command_line import pulsar_txn

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.frame import ALIGNMENT


async def damaged(folder: Path) -> tuple[Path, int]:
    """Two logs; the frame with the third entry of one of them is unreadable. Its segment and offset."""
    async with JournalStore(folder, segment_bytes=1 << 20) as store:
        good, bad = await store.open("good"), await store.open("bad")
        await bad.open_cursor("sub")
        for number in range(6):
            (bad if number < 5 else good).append(b"%d" % number * 100)
            await store.durable()
    return spoiled(folder)


def spoiled(folder: Path) -> tuple[Path, int]:
    """Flip a bit in the directory of the frame with the third entry."""
    segment = min(path for path in folder.glob("segment-*.journal") if b"2" * 100 in path.read_bytes())
    content = bytearray(segment.read_bytes())
    offset = content.index(b"2" * 100) // ALIGNMENT * ALIGNMENT
    content[offset + 20] ^= 1
    segment.write_bytes(content)
    return segment, offset


async def test_each_fault_is_listed_with_its_repair_and_nothing_happens_without_a_yes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    segment, offset = await damaged(folder)
    place = f"{int(segment.name[8:18])}:{offset}"
    told = pulsar_txn("salvage", folder)
    assert told.returncode == 74
    assert f"pulsar-txn salvage {folder} --frame {place}" in told.stdout
    before = segment.read_bytes()
    asked = pulsar_txn("salvage", folder, "--frame", place, stdin="n\n")
    assert asked.returncode == 1
    assert "this loses 1 commit group, 4096 bytes" in asked.stdout
    assert "log 'bad' is damaged" in asked.stdout
    assert "Repair it? [y/N]" in asked.stdout
    assert segment.read_bytes() == before

    done = pulsar_txn("salvage", folder, "--frame", place, stdin="y\n")
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "set-aside").iterdir())) == 1
    told = pulsar_txn("salvage", folder)
    assert "--log 'bad'" in told.stdout
    asked = pulsar_txn("salvage", folder, "--log", "bad", stdin="n\n")
    assert asked.returncode == 1
    assert "this loses 5 entries, 0 to 4" in asked.stdout
    assert "cursors go on after them: sub" in asked.stdout
    assert "bad" in pulsar_txn("check", folder).stdout
    assert pulsar_txn("salvage", folder, "--log", "bad", "--yes").returncode == 0
    told = pulsar_txn("salvage", folder)
    assert (told.returncode, "nothing is wrong" in told.stdout) == (0, True)
    async with JournalStore(folder, segment_bytes=1 << 20) as store:
        assert len(await (await store.open("good", create=False)).read((0, 0))) == 1
        done = pulsar_txn("salvage", folder, "--index", "0", "--yes")
        assert (done.returncode, "is in use" in done.stderr) == (73, True)


async def test_wrong_wishes_are_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    segment, offset = await damaged(folder)
    assert pulsar_txn("salvage", tmp_path / "nothing").returncode == 2
    assert pulsar_txn("salvage", folder, "--frame", "here").returncode == 2
    assert pulsar_txn("salvage", folder, "--frame", "0:0", "--log", "x").returncode == 2
    done = pulsar_txn("salvage", folder, "--frame", f"{int(segment.name[8:18])}:{offset + 1}", "--yes")
    assert (done.returncode, "no damaged frame is at" in done.stderr) == (1, True)
    done = pulsar_txn("salvage", folder, "--index", "0", "--yes")
    assert (done.returncode, "set those aside first" in done.stderr) == (1, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert pulsar_txn("salvage", empty, "--log", "x").returncode == 2
