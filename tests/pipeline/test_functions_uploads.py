"""What `create` says of a file before it is uploaded."""

from __future__ import annotations

import pytest

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions._loading import check_upload


@pytest.fixture
def file(tmp_path):
    def written(text):
        (tmp_path / "f.py").write_text(text, encoding="utf-8")
        return str(tmp_path / "f.py")

    return written


@pytest.mark.parametrize(
    ("class_name", "text"),
    [
        ("f.F", "class F: pass"),
        ("f.F", "if True:\n    from elsewhere import G as F"),
        ("f.F", "F = object()"),
        ("f.F", "from elsewhere import *"),
        ("f.F", "def __getattr__(name): return print"),
        ("f.F", "globals()['F'] = print"),
        ("f", "def process(input): return input"),
        ("installed.F", ""),
        ("f.inner.F", ""),
    ],
)
def test_what_may_work_is_accepted(file, class_name, text):
    check_upload(class_name, file(text))


@pytest.mark.parametrize(
    ("class_name", "text", "said"),
    [
        (None, "class F: pass", "className is missing"),
        ("f.G", "class F: pass", "f.py has no G"),
        ("f", "class F: pass", "f.py has no process"),
        ("f.F", "class F pass", "f.py is no Python"),
    ],
)
def test_what_can_never_work_is_refused_without_running_the_file(file, class_name, text, said):
    with pytest.raises(InvalidConfiguration, match=said):
        check_upload(class_name, file(text))


def test_an_archive_is_not_looked_into(tmp_path):
    check_upload("f.F", str(tmp_path / "f.zip"))
