"""Configuration is read as Pulsar's users know it, and a mistake is named with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.broker.base import config
from pulsar_txn.broker.base.settings import BrokerConfig


def written(tmp_path, text):
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return path


def test_the_shipped_file_holds_every_key_at_its_default():
    loaded = config.load(None, {})
    assert loaded.config == BrokerConfig()
    assert loaded.warnings == ()
    assert set(loaded.origins.values()) != {"default"}
    assert not [field for field, origin in loaded.origins.items() if origin == "default"]


def test_keys_are_pulsars_camel_case():
    assert config.conf_key("default_retention_size_in_mb") == "defaultRetentionSizeInMB"
    assert config.conf_key("transaction_buffer_provider_class_name") == "transactionBufferProviderClassName"


def test_a_value_says_where_it_came_from(tmp_path):
    path = written(tmp_path, "# a comment\n\nbrokerServicePort = 7000\n")
    loaded = config.load(path, {})
    assert loaded.config.broker_service_port == 7000
    assert loaded.origins["broker_service_port"] == f"{path}:3"
    assert loaded.origins["bind_address"] == "default"


def test_the_environment_is_above_the_file_and_the_command_line_above_both(tmp_path):
    path = written(tmp_path, "brokerServicePort=1\nclusterName=file\nbindAddress=file\n")
    environ = {"brokerServicePort": "2", "PULSAR_PREFIX_clusterName": "env", "HOME": "/root"}
    loaded = config.load(path, environ, {"brokerServicePort": "3"})
    assert (loaded.config.broker_service_port, loaded.config.cluster_name) == (3, "env")
    assert loaded.config.bind_address == "file"
    assert loaded.warnings == ()


def test_a_repeated_key_warns_and_the_last_one_counts(tmp_path):
    path = written(tmp_path, "clusterName=a\nclusterName=b\n")
    loaded = config.load(path, {})
    assert loaded.config.cluster_name == "b"
    assert loaded.warnings == (f"{path}:2: clusterName is repeated (first at {path}:1); this one counts",)


def test_an_unknown_key_warns_with_its_place(tmp_path):
    path = written(tmp_path, "brokerServicePrt=7000\n")
    (warning,) = config.load(path, {}).warnings
    assert f"brokerServicePrt ({path}:1)" in warning


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("brokerServicePort=many", "a whole number is expected"),
        ("brokerServicePort=-1", "a number from 0 on is expected"),
        ("transactionCoordinatorEnabled=yes", "true or false is expected"),
    ],
)
def test_a_bad_value_is_an_error_with_file_and_line(tmp_path, line, expected):
    path = written(tmp_path, f"# first\n{line}\n")
    with pytest.raises(config.ConfigError) as error:
        config.load(path, {})
    assert str(error.value).startswith(f"{path}:2: {line}: ")
    assert expected in str(error.value)


def test_retention_may_be_unlimited(tmp_path):
    path = written(tmp_path, "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n")
    loaded = config.load(path, {}).config
    assert (loaded.default_retention_time_in_minutes, loaded.default_retention_size_in_mb) == (-1, -1)


def test_an_empty_value_means_the_default(tmp_path):
    path = written(tmp_path, "advertisedAddress=\nmaxMessageSize=\nclusterName=\n")
    assert config.load(path, {}).config == BrokerConfig()


@given(st.dictionaries(st.sampled_from(sorted(config.FIELDS)), st.text(max_size=12), max_size=4))
def test_whatever_the_environment_says_it_is_a_configuration_or_a_typed_error(environ):
    try:
        outcome = config.load(None, environ).config
    except config.ConfigError as error:
        outcome = error
    assert isinstance(outcome, BrokerConfig) or any(key in str(outcome) for key in environ)
