"""Receiver settings: what is wrong is said in one line, with the name, the fix and no secret."""

import base64
import ipaddress
import traceback

import pytest
from pydantic import BaseModel

from contract.errors import ConfigError
from stream.receivers import Receiver, check_unique, is_public

KEY = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
SECRET = f"whsec_{KEY}"
GOOD = {"name": "runner", "url": "https://hooks.example.org/T0/token123", "secret": SECRET}


def make(**change):
    return Receiver.model_validate({**GOOD, **change})


def from_file(path):
    return Receiver.model_validate(
        {"name": "x", "url": "https://example.org/", "secret_file": str(path)}
    )


def test_defaults():
    receiver = make()
    assert receiver.timeout_seconds == 15
    assert receiver.wants("migration.requested", "lab", "warning")
    assert receiver.wants("test.ping", "", "info")
    assert receiver.where == "https://hooks.example.org"


def test_types_filter_but_ping_always_goes():
    receiver = make(types=["breaker.opened"])
    assert receiver.wants("breaker.opened", "lab", "critical")
    assert receiver.wants("test.ping", "", "info")
    assert not receiver.wants("migration.requested", "lab", "warning")
    assert make(types="all").wants("device.released", "lab", "warning")
    assert not make(enabled=False).wants("test.ping", "", "info")


def test_sites_and_severity_filter_but_an_end_always_comes():
    receiver = make(sites=["lab-a"], min_severity="critical")
    assert receiver.wants("migration.requested", "lab-a", "critical")
    assert not receiver.wants("migration.requested", "lab-b", "critical")
    assert not receiver.wants("migration.requested", "lab-a", "warning")
    for end in ("migration.withdrawn", "device.released", "breaker.closed"):
        assert receiver.wants(end, "lab-a", "warning")
        assert not receiver.wants(end, "lab-b", "warning")
    assert receiver.wants("test.ping", "", "info")


def test_two_secrets_while_one_replaces_the_other(tmp_path):
    other = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
    assert make(secret=f"{SECRET} {other}").secrets == (SECRET, other)
    path = tmp_path / "secret"
    path.write_text(f"{other}\n{SECRET}\n")
    assert from_file(path).secrets == (other, SECRET)
    with pytest.raises(ConfigError, match="3 secrets"):
        make(secret=f"{SECRET} {other} {SECRET}")
    with pytest.raises(ConfigError, match="does not start with whsec_"):
        make(secret=f"{SECRET} oops")


@pytest.mark.parametrize("name", ["alertmanager", "slack"])
def test_who_verifies_no_signature_needs_no_secret(name):
    url = "https://alerts.example.org/api/v2/alerts"
    receiver = Receiver.model_validate({"name": "x", "url": url, "format": name})
    assert receiver.secrets == ()


def test_neither_secret_nor_url_path_is_shown():
    receiver = make()
    assert KEY not in repr(receiver) + str(receiver) + str(receiver.model_dump())
    assert KEY not in receiver.model_dump_json()
    assert "token123" not in repr(receiver) + str(receiver) + receiver.where


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"secret": ""}, "secret is missing"),
        ({"secret": KEY}, "does not start with whsec_"),
        ({"secret": "whsec_" + base64.b64encode(b"short").decode()}, "decodes to 5 bytes"),
        ({"secret": "whsec_" + base64.b64encode(b"x" * 65).decode()}, "decodes to 65 bytes"),
        ({"secret": "whsec_not-base64!"}, "not base64"),
        ({"url": "ftp://example.org/x"}, "must be http"),
        ({"url": "https://exa mple.org/x"}, "space"),
        ({"url": "https:///x"}, "must be http"),
        ({"url": "https://example.org:99999/x"}, "no URL"),
        ({"url": "https://me:pass@example.org/x"}, "user or password"),
        ({"url": "https://example.org/#x"}, "fragment"),
        ({"url": "http://127.0.0.1:8080/"}, "allow_private = true"),
        ({"url": "http://localhost:8080/"}, "allow_private = true"),
        ({"url": "http://[::1]/"}, "allow_private = true"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "allow_private = true"),
        ({"types": ["migration.begun"]}, "no webhook type"),
        ({"types": "some"}, "a list of"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 3600}, "timeout_seconds"),
        ({"name": "a b"}, "letters"),
        ({"secert": "whsec_x"}, "secert"),
        ({"format": "xml"}, "format"),
        ({"format": "alertmanager"}, "/api/v2/alerts"),
        ({"sites": ["a b"]}, "no site's name"),
        ({"min_severity": "fatal"}, "min_severity"),
        ({"max_per_second": 0}, "max_per_second"),
        ({"secret_file": "/nonexistent/file"}, "keep one"),
    ],
)
def test_wrong_settings_say_what_and_where(change, says):
    with pytest.raises(ConfigError) as caught:
        make(**change)
    line = str(caught.value)
    assert line.startswith(f"receiver {change.get('name', 'runner')!r}: ")
    assert says in line
    assert "\n" not in line
    printed = "".join(traceback.format_exception(caught.value))
    for hidden in (KEY, "token123", "not-base64!", "me:pass"):
        assert hidden not in printed.replace("is not base64 after", "")


def test_missing_key_inside_other_settings_does_not_print_the_secret():
    class Settings(BaseModel):
        receivers: tuple[Receiver, ...]

    with pytest.raises(ConfigError) as caught:
        Settings.model_validate({"receivers": [{"name": "x", "secret": SECRET}]})
    assert str(caught.value) == "receiver 'x': url: Field required"


def test_secret_from_a_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    receiver = from_file(path)
    assert receiver.secret.get_secret_value() == SECRET
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text"):
        from_file(path)
    path.write_text("x" * 5_000)
    with pytest.raises(ConfigError, match="over 4096 bytes"):
        from_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "none")


def test_names_are_unique():
    receiver = make()
    with pytest.raises(ConfigError, match="there twice"):
        check_unique((receiver, receiver))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("172.16.0.1", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("192.0.0.192", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("2001:0:808:808::f7f7:f7f7", True),
        ("2001:0:808:808::f5ff:fffe", False),
        ("fec0::1", False),
        ("64:ff9b:1::a00:1", False),
        ("2001:db8::1", False),
        ("2002:808:808::1", True),
        ("64:ff9b::808:808", True),
    ],
)
def test_public_addresses(address, public):
    assert is_public(ipaddress.ip_address(address)) is public
