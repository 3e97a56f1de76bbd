"""Write `pulsar_pb2.py` and `pulsar_pb2.pyi` anew from `pulsar_txn_wire.proto`: `python wire/generate_pulsar_pb2.py [folder]`.

Needs grpcio-tools in the version that the `dev` extra pins: its protoc (31.1) emits code that runs with
protobuf 6.31.1 and everything newer below 8, which is what the bare install allows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOM = Path(__file__).resolve().parent
PROTO = Path("pulsar_txn/wire/pulsar_txn_wire.proto")


def generate(target: Path) -> list[Path]:
    """Write both files into the folder `target` and return their paths; CalledProcessError when protoc refuses."""
    written = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOM}", f"--python_out={folder}", f"--pyi_out={folder}", str(PROTO)]
        subprocess.run(command, check=True, cwd=ROOM)  # noqa: S603 - our own interpreter and our own file
        for suffix in (".py", ".pyi"):
            # protoc names the module after the file; ours is to be found under the name that readers of Pulsar code expect.
            text = (Path(folder) / PROTO.parent / f"pulsar_txn_wire_pb2{suffix}").read_text()
            text = text.replace("pulsar_txn_wire_pb2", "pulsar_pb2")
            text = text.replace("_Mapping]", "_Mapping[str, object]]")  # mypy --strict asks for it
            path = target / f"pulsar_pb2{suffix}"
            path.write_text(text)
            written.append(path)
    return written


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOM / PROTO.parent):
        sys.stdout.write(f"{path}\n")
