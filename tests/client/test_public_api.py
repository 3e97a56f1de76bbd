"""Nothing of the public API leaves, comes or changes unnoticed."""

import difflib

import public_api


def test_the_public_api_is_the_stored_one():
    stored, now = public_api.STORED.read_text(encoding="utf-8"), public_api.text()
    changes = list(difflib.unified_diff(stored.splitlines(), now.splitlines(), "stored", "now", n=0, lineterm=""))
    assert not changes, "\n".join([*changes, "If this is meant: CHANGELOG.md, and python tests/support/public_api.py"])


def test_a_changed_default_is_noticed():
    def send(value, *, timeout=1.0):
        pass

    before = list(public_api._entry("send", send))
    send.__kwdefaults__ = {"timeout": 2.0}
    assert before == ["send(value, *, timeout=1.0)"]
    assert list(public_api._entry("send", send)) != before
