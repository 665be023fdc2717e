"""Messages that no sane rig sends: a seeded source of them, by kind."""

import json
import random
from collections.abc import Callable
from typing import Any

from contract.deadletter import MAX_PAYLOAD_BYTES
from contract.signals import SIGNALS
from stream.edge.bridge_packer import Incoming

Message = dict[str, Any]

HUGE = ["1e400", "-1e400", "9" * 400, str(2**63), str(2**64), "-1", "1e308", "5e-324", "0.1e1"]
SENTINELS = [9223372036854775794, 65536, -2147483648, 4294967295, 255, -1, 1e300, 2**53 + 1]
ODD: list[Any] = [None, True, False, "", "x", [], {}, [[]], {"a": 1}, -1, 0, 1.5, "9" * 300, "\x00"]
JUMPS = [-3.2e8, -3600, -700, -601, -599, -61, 0.0005, 59, 240, 299.9, 301, 3.2e7, 1e12, -2e9]
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7", "latin-1"]


def message(rng: random.Random, site: str, node: str, seq: int, now_ms: int) -> Message:
    """A good message of two cards with some of the sensors."""
    devices = []
    for index in range(2):
        device: Message = {
            "device": f"GPU-{node}-{index}", "index": index, "vendor": "nvidia", "state": "ok",
        }  # fmt: skip
        for signal in rng.sample(SIGNALS, 6):
            high = min(signal.high, 1e6)
            value = rng.uniform(signal.low, high)
            device[signal.name] = round(value, 3) if signal.kind == "gauge" else int(value)
        devices.append(device)
    return {
        "schema": "rigcanary.telemetry/1", "site": site, "node": node, "boot_id": "boot-1",
        "seq": seq, "ts": now_ms / 1000, "interval_seconds": 5.0, "devices": devices,
    }  # fmt: skip


def _text(found: Message) -> bytes:
    return json.dumps(found).encode()


def _nest(depth: int, rng: random.Random) -> str:
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    return opening * depth + "1" + closing * depth


def _put(found: Message, rng: random.Random, raw: str) -> bytes:
    """``raw`` JSON text in place of some key, or under one that nobody knows."""
    place = rng.choice([found, rng.choice(found["devices"]) if found["devices"] else found])
    key = rng.choice([*place, "extra", rng.choice(SIGNALS).name])
    place[key] = "@@"
    return _text(found).replace(b'"@@"', raw.encode("utf-8", "surrogatepass"), 1)


def _truncated(found: Message, rng: random.Random) -> bytes:
    text = _text(found)
    return text[: rng.randrange(len(text))]


def _flipped(found: Message, rng: random.Random) -> bytes:
    text = bytearray(_text(found))
    for _ in range(rng.randint(1, 4)):
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    return bytes(text)


def _noise(found: Message, rng: random.Random) -> bytes:
    return rng.choice([
        b"", b"\x00", b"null", b"[]", b'"x"', b"1", b"true", b"{}", b"{", b"\xff\xfe", b"NaN", b" ",
        b'{"schema":"rigcanary.telemetry/1"}', b"[" * 5000, rng.randbytes(rng.randrange(200)),
    ])  # fmt: skip


def _nested(found: Message, rng: random.Random) -> bytes:
    return _put(found, rng, _nest(rng.choice([5, 100, 253, 254, 300, 900, 1019, 1023, 9000]), rng))


def _nested_and_late(found: Message, rng: random.Random) -> bytes:
    found["ts"] -= rng.choice([700, 3600])
    found["extra"] = "@@"
    deep = _nest(rng.choice([100, 240, 260, 800, 1000, 1015]), rng).encode()
    return _text(found).replace(b'"@@"', deep, 1)


def _huge_number(found: Message, rng: random.Random) -> bytes:
    return _put(found, rng, rng.choice(HUGE))


def _wrong_type(found: Message, rng: random.Random) -> bytes:
    return _put(found, rng, json.dumps(rng.choice(ODD)))


def _not_finite(found: Message, rng: random.Random) -> bytes:
    return _put(found, rng, rng.choice(["NaN", "Infinity", "-Infinity"]))


def _twice_a_key(found: Message, rng: random.Random) -> bytes:
    key = rng.choice(list(found))
    first = json.dumps({key: rng.choice([found[key], rng.choice(ODD)])})
    return first[:-1].encode() + b"," + _text(found)[1:]


def _surrogate(found: Message, rng: random.Random) -> bytes:
    return _put(found, rng, rng.choice(['"\\ud800"', '"\\udfff\\ud800"', '"\ud800"', '"\\u0000"']))


def _other_encoding(found: Message, rng: random.Random) -> bytes:
    found["devices"][0]["model"] = "Grüße"
    return json.dumps(found, ensure_ascii=False).encode(rng.choice(ENCODINGS))


def _many_devices(found: Message, rng: random.Random) -> bytes:
    count = rng.choice([0, 50, 256, 257, 1000])
    found["devices"] = [
        {"device": f"D{rng.randrange(300)}-{i}", "state": "ok"} for i in range(count)
    ]
    return _text(found)


def _clock(found: Message, rng: random.Random) -> bytes:
    found["ts"] += rng.choice(JUMPS)
    found["boot_id"] = rng.choice(["boot-1", "boot-2", "b" * 128, "b" * 129])
    return _text(found)


def _missing(found: Message, rng: random.Random) -> bytes:
    place = rng.choice([found, found["devices"][0]])
    del place[rng.choice(list(place))]
    return _text(found)


def _sentinel(found: Message, rng: random.Random) -> bytes:
    for device in found["devices"]:
        device[rng.choice(SIGNALS).name] = rng.choice(SENTINELS)
    return _text(found)


def _too_large(found: Message, rng: random.Random) -> bytes:
    found["extra"] = "x" * rng.choice([MAX_PAYLOAD_BYTES - 5_000, MAX_PAYLOAD_BYTES + 1])
    return _text(found)


def _odd_text(found: Message, rng: random.Random) -> bytes:
    key = rng.choice(["boot_id", "site", "node", "schema"])
    text = rng.choice(["\x1b[31m", "a/b", "+", "#", "$", "\u202e", "x" * 200, " ", "é"])
    if rng.random() < 0.5:
        found[key] = text
    else:
        found["devices"][0][rng.choice(["device", "model", "serial", "state"])] = text * 20
    return _text(found)


def _same_device(found: Message, rng: random.Random) -> bytes:
    found["devices"].append(found["devices"][0])
    return _text(found)


def _plain(found: Message, rng: random.Random) -> bytes:
    return _text(found)


KINDS: tuple[Callable[[Message, random.Random], bytes], ...] = (
    _truncated, _flipped, _noise, _nested, _nested_and_late, _huge_number, _wrong_type, _not_finite,
    _twice_a_key, _surrogate, _other_encoding, _many_devices, _clock, _missing, _sentinel,
    _too_large, _odd_text, _same_device, _plain,
)  # fmt: skip
_RARE: dict[Any, float] = {_too_large: 0.05, _many_devices: 0.2}
_WEIGHTS = [_RARE.get(kind, 1.0) for kind in KINDS]


def _as_event(found: Message, rng: random.Random) -> Message:
    event: Message = {key: found[key] for key in ("site", "node", "boot_id", "seq", "ts")}
    kind = rng.choice(["xid", "device_lost", "ecc_uncorrected", "party", 7, None])
    code = rng.choice([79, None, "79", 2**70, [1]])
    # "devices" keeps the other kinds' hands busy; nobody reads it in an event.
    return {
        **event, "schema": "rigcanary.event/1", "device": rng.choice([None, "GPU-1", ""]),
        "type": kind, "code": code, "message": "m", "raw": "r", "devices": found["devices"],
    }  # fmt: skip


def _as_status(found: Message, rng: random.Random) -> Message:
    state = rng.choice(["online", "offline", "asleep"])
    return {
        "state": state, "boot_id": found["boot_id"], "ts": found["ts"], "devices": found["devices"],
        "site": found["site"], "node": found["node"], "schema": "",
    }  # fmt: skip


def hostile(rng: random.Random, site: str, seq: int, now_ms: int) -> Incoming:
    """One message of a node ``bad0`` … ``bad3``, most of them unusable in some way."""
    node = f"bad{rng.randrange(4)}"
    found = message(rng, site, node, seq, now_ms - rng.randrange(5_000))
    kind = "telemetry"
    if rng.random() < 0.1:
        kind, make = rng.choice([("events", _as_event), ("status", _as_status)])
        found = make(found, rng)
    payload = rng.choices(KINDS, _WEIGHTS)[0](found, rng)
    topic = f"rigcanary/v1/{site}/{node}/{kind}"
    if rng.random() < 0.03:
        topic = rng.choice([
            "", "x", "rigcanary/v1/a b/c/telemetry", f"rigcanary/v1/{site}/other/telemetry",
            f"rigcanary/v2/{site}/{node}/telemetry", f"rigcanary/v1/{site}/{node}/telemetry/x",
            "é" * 3000,
        ])  # fmt: skip
    return Incoming(topic, payload, now_ms)
