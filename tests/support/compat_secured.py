"""Programs of the official client's users for servers that check who connects; `secured` says where, and with which files."""

from __future__ import annotations

from compat_kit import WAIT, open_client, raised

SECURED = {}


def secured_program(function):
    SECURED[function.__name__] = function
    return function


def round_trip(client, topic):
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    return consumer.receive(WAIT).data()


@secured_program
def tls_with_a_certificate_of_ones_own(pulsar, secured, topic):
    mine = pulsar.AuthenticationTLS(str(secured.certificate), str(secured.key))
    with open_client(pulsar, secured.tls_url, tls_trust_certs_file_path=str(secured.authority), authentication=mine) as client:
        return round_trip(client, topic)


@secured_program
def tls_files_of_the_client(pulsar, secured, topic):
    """The certificate is shown, and who we are is said by a password."""
    options = {
        "tls_trust_certs_file_path": str(secured.authority),
        "tls_private_key_file_path": str(secured.key),
        "tls_certificate_file_path": str(secured.certificate),
        "tls_validate_hostname": True,
        "authentication": pulsar.AuthenticationBasic("ann", "s3cret"),
    }
    with open_client(pulsar, secured.tls_url, **options) as client:
        return round_trip(client, topic)


@secured_program
def tls_with_an_unknown_authority(pulsar, secured, topic):
    who = pulsar.AuthenticationBasic("ann", "s3cret")
    with open_client(pulsar, secured.tls_url, operation_timeout_seconds=3, authentication=who) as client:
        refused = raised(pulsar, client.create_producer, topic)[1]
    lax = {"tls_allow_insecure_connection": True, "tls_validate_hostname": False}
    with open_client(pulsar, secured.tls_url, authentication=who, **lax) as client:
        return refused, round_trip(client, topic)


@secured_program
def tls_and_another_host_name(pulsar, secured, topic):
    """The certificate is that of 127.0.0.1."""
    url = secured.tls_url.replace("127.0.0.1", "localhost")
    options = {"tls_trust_certs_file_path": str(secured.authority), "operation_timeout_seconds": 3}
    options["authentication"] = pulsar.AuthenticationBasic("ann", "s3cret")
    with open_client(pulsar, url, tls_validate_hostname=True, **options) as client:
        return raised(pulsar, client.create_producer, topic)[1]


@secured_program
def tokens_that_are_right_and_wrong(pulsar, secured, topic):
    facts = []
    for token in (secured.token, lambda: secured.token):
        with open_client(pulsar, secured.url, authentication=pulsar.AuthenticationToken(token)) as client:
            facts.append(round_trip(client, topic))
    wrong = [pulsar.AuthenticationToken("wrong"), pulsar.AuthenticationBasic("ann", "wrong")]
    for way in wrong:
        with open_client(pulsar, secured.url, operation_timeout_seconds=3, authentication=way) as client:
            facts.append(raised(pulsar, client.create_producer, topic)[1])
    return facts
