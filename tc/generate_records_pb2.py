"""Write `records_pb2.py` and `records_pb2.pyi` anew from `records.proto`: `python tc/generate_records_pb2.py [folder]`.

Needs grpcio-tools in the version that the `dev` extra pins (see `wire/generate_pulsar_pb2.py` for why).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOM = Path(__file__).resolve().parent
PROTO = Path("pulsar_txn/tc/records.proto")


def generate(target: Path) -> list[Path]:
    """Write both files into the folder `target` and return their paths; CalledProcessError when protoc refuses."""
    written = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOM}", f"--python_out={folder}", f"--pyi_out={folder}", str(PROTO)]
        subprocess.run(command, check=True, cwd=ROOM)  # noqa: S603 - our own interpreter and our own file
        for suffix in (".py", ".pyi"):
            text = (Path(folder) / PROTO.parent / f"records_pb2{suffix}").read_text()
            path = target / f"records_pb2{suffix}"
            path.write_text(text.replace("_Mapping]", "_Mapping[str, object]]"))  # mypy --strict asks for it
            written.append(path)
    return written


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOM / PROTO.parent):
        sys.stdout.write(f"{path}\n")
