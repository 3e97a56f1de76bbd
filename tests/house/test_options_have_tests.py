"""Every option is named by a test: of the broker, the coordinator, the client, Spark and functions."""

import ast

import named_options
import pytest


def test_every_option_is_named_by_a_test():
    assert named_options.unnamed() == [], "write a test that shows what it does, or drop it: tests/support/named_options.py"


@pytest.mark.parametrize(
    ("group", "option"),
    [
        ("broker", "max_producers_per_topic"),
        ("coordinator", "ledger_lease_in_millis"),
        ("cluster", "tls_enable_hostname_verification"),
        ("client", "memory_limit"),
        ("producer", "send_timeout"),
        ("consumer", "ack_timeout"),
        ("reader", "receiver_queue_bytes"),
        ("pipeline", "max_aborts"),
        ("spark", "pollTimeoutMs"),
        ("function", "maxPendingAsyncRequests"),
        ("window", "maxLagMs"),
        ("input", "regexPattern"),
    ],
)
def test_the_list_has_the_options_of(group, option):
    assert option in named_options.options()[group]


def test_a_keyword_and_the_words_of_a_text_name_an_option_and_prose_does_not():
    tree = ast.parse(
        '"""About docs_only."""\n# comment_only\nmake(by_keyword=1)\nload("inText=1", {"aKey": 2})\nread.attribute\n'
    )
    assert {"by_keyword", "inText", "aKey"} <= set(named_options._words(tree))
    assert not {"docs_only", "comment_only", "attribute"} & set(named_options._words(tree))
