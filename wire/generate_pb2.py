"""Write the `*_pb2.py` and `.pyi` of every room anew from its definition: `python wire/generate_pb2.py [room [folder]]`.

Needs grpcio-tools in the version that the `dev` extra pins: its protoc (31.1) emits code that runs with
protobuf 6.31.1 and everything newer below 8, which is what the bare install allows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
DEFINITIONS = {
    # room: its definition, and the module's name. Pulsar's is found under the name that readers of Pulsar code expect.
    "wire": ("pulsar_txn/wire/pulsar_txn_wire.proto", "pulsar_pb2"),
    "tc": ("pulsar_txn/tc/records.proto", "records_pb2"),
    "rm_pending_ack": ("pulsar_txn/rm_pending_ack/records.proto", "records_pb2"),
}


def generate(room: str, target: Path | None = None) -> list[Path]:
    """Write both files of a room, into the folder `target` if given; their paths. CalledProcessError when protoc refuses."""
    root = CHECKOUT / room
    definition, module = Path(DEFINITIONS[room][0]), DEFINITIONS[room][1]
    written = []
    with tempfile.TemporaryDirectory() as folder:
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
        command = [*protoc, f"-I{root}", f"--python_out={folder}", f"--pyi_out={folder}", str(definition)]
        subprocess.run(command, check=True, cwd=root)  # noqa: S603 - our own interpreter and our own file
        for suffix in (".py", ".pyi"):
            text = (Path(folder) / definition.parent / f"{definition.stem}_pb2{suffix}").read_text()
            text = text.replace(f"{definition.stem}_pb2", module)
            text = text.replace("_Mapping]", "_Mapping[str, object]]")  # mypy --strict asks for it
            path = (target or root / definition.parent) / f"{module}{suffix}"
            path.write_text(text)
            written.append(path)
    return written


if __name__ == "__main__":
    for each in sys.argv[1:2] or DEFINITIONS:
        for path in generate(each, Path(sys.argv[2]) if len(sys.argv) > 2 else None):
            sys.stdout.write(f"{path}\n")
