"""What is derived from a key for TLS, as RFC 8446 and the NVMe/TCP specification have it.

Written apart from the program's own derivation, so that both are judged by each other and by
the kernel's peer. The nvme-cli of most releases derives in another way: keys that it inserts
say nothing about this one.
"""

import base64
import hashlib
import hmac
import itertools

# Hash functions by their code in a key.
HASHES = {"01": "sha256", "02": "sha384"}
CRC_LENGTH = 4


def _extract(name, secret):
    return hmac.new(bytes(hashlib.new(name).digest_size), secret, name).digest()


def _expand_label(name, prk, label, context, length):
    label, out, block = b"tls13 " + label, b"", b""
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    for number in itertools.count(1):
        block = hmac.new(prk, block + info + bytes([number]), name).digest()
        out += block
        if len(out) >= length:
            return out[:length]


def derive(key, host, subsystem, version):
    """`(identity, psk)` of a key in the interchange format, for a host and a subsystem."""
    _, code, encoded, _ = key.split(":")
    name = HASHES[code]
    configured = base64.b64decode(encoded)[:-CRC_LENGTH]
    retained = _expand_label(name, _extract(name, configured), b"HostNQN", host.encode(), len(configured))
    identity = context = f"NVMe{version}R{code} {host} {subsystem}"
    if version == 1:
        bound = f"{host} {subsystem} NVMe-over-Fabrics".encode()
        digest = base64.b64encode(hmac.new(retained, bound, name).digest()).decode()
        identity, context = f"{identity} {digest}", f"{code} {digest}"
    length = hashlib.new(name).digest_size
    return identity, _expand_label(name, _extract(name, retained), b"nvme-tls-psk", context.encode(), length)
