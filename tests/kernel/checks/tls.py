"""TLS with the kernel's host and the kernel's target, whose handshakes tlshd goes through.

Two derivations of a key are in use: that of RFC 8446, and that of libnvme before 1.16, which most
releases have. The first is computed here, the second comes from nvme-cli, and each has identities of
two versions.
"""

import json

from peer.psk import derive
from peer.suite import GUEST_PORTS, NewerKernel, Skip, check, require

HOST = "nqn.2014-08.org.example:guest"
HOST_ID = "4c554e47-4841-554c-0000-000000000001"
NQN = "nqn.2014-08.org.example:kernel"
MARK = b"longhaul: written in the clear? "

NVME_CLI, RFC_8446 = "nvme-cli", "RFC 8446"
# Who derives, and the version of the identity.
KINDS = ((RFC_8446, 1), (NVME_CLI, 1), (RFC_8446, 0), (NVME_CLI, 0))


def needed(bench, option="tls", missing="TLS"):
    """Skips the check where the guest has no tlshd, its kernel no such option of a connection, or the program no TLS."""
    there = bench.guest.run(f"""
        test ! -x /opt/tls/tlshd || echo tlshd
        for option in tls {option}; do ! grep -qw $option /dev/nvme-fabrics || echo $option; done
    """).split()
    if "tlshd" not in there or "tls" not in there:
        raise Skip("the guest has no tlshd, or its kernel no TLS")
    if option not in there:
        raise NewerKernel(f"the guest's kernel has no {missing}")
    said = bench.longhaul.run("info", f"nvme+tcp://127.0.0.1:1/a?{option}=true", status=None)
    if "--features tls" in said:
        raise Skip("the program is built without TLS")


def keys(bench, host, hash_name="sha256"):
    """Makes a key for TLS of a host: its directory, and its text."""
    directory = bench.new_file("keys")
    directory.mkdir(mode=0o700)
    bench.longhaul.run("key", "make", host, "--keys", directory, "--tls", "--hash", hash_name)
    return directory, (directory / "hosts" / host / "tls_key").read_text().strip()


def added(key, host, nqn, by=NVME_CLI, version=1):
    """Words for the guest that add a key to the keyring of its kernel."""
    if by == NVME_CLI:
        names = f"--hostnqn={host} --subsysnqn={nqn}"
        return f"nvme check-tls-key --keydata={key} --identity={version} {names} --insert > /dev/null"
    identity, psk = derive(key, host, nqn, version)
    return f"add_psk '{identity}' {psk.hex()}"


def identity(host=HOST):
    return f"--hostnqn={host} --hostid={HOST_ID}"


def served(bench, directory):
    """A target that takes TLS alone: itself, its NQN, its audit log."""
    log = bench.new_file("audit")
    target = bench.target("disk=mem:64MiB", options=("--keys", directory, "--tls", "required", "--audit", log))
    return target, target.export("disk")["nqn"], log


def verifies(bench, by, version, options):
    """The kernel's host writes and reads over TLS, and nothing that it writes is in the clear."""
    needed(bench)
    directory, key = keys(bench, HOST)
    target, nqn, log = served(bench, directory)
    pcap = bench.new_file("tls.pcap")
    stop = bench.guest.record(pcap)
    try:
        out = bench.guest.run(f"""
            with_tls
            {added(key, HOST, nqn, by, version)}
            attach {nqn} {target.port} {identity()} --tls {options} || {{ tail -n 20 /tmp/tlshd.log; exit 1; }}
            [ -n "$(cat /sys/class/nvme/${{CTRL##*/}}/tls_key)" ]
            yes '{MARK.decode()}' | dd of=$DEV bs=4k count=64 iflag=fullblock oflag=direct 2> /dev/null || true
            dd if=$DEV bs=4k count=64 iflag=direct 2> /dev/null | grep -c '{MARK.decode()}'
            fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --randseed=7 \\
                --name=small --rw=randwrite --bs=4k --size=2m --iodepth=32 \\
                --name=large --rw=write --bs=1m --offset=16m --size=8m --iodepth=4 --group_reporting
            detach {nqn}
        """)
    finally:
        stop()
    require("err= 0" in out, out)
    sent = pcap.read_bytes()
    require(f"NVMe{version}R01 {HOST} {nqn}".encode() in sent, "the capture has no identity of the key")
    require(MARK not in sent, "the capture has data in the clear")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    connected = [line for line in lines if line["event"] == "connected"]
    require(connected and all(line["tls"] is True for line in connected), str(lines))


DIGESTS = ("--hdr-digest --data-digest", "", "--data-digest", "--hdr-digest")
for kind, digests in zip(KINDS, DIGESTS, strict=True):
    check(f"tls: the kernel's host, key of {kind[0]}, identity {kind[1]} {digests}".rstrip())(
        lambda bench, k=kind, d=digests: verifies(bench, *k, d)
    )


@check("tls: the kernel's host with a key of SHA-384 gets in, or is told why not")
def long_key(bench):
    needed(bench)
    directory, key = keys(bench, HOST, "sha384")
    target, nqn, _ = served(bench, directory)
    out = bench.guest.run(f"""
        with_tls
        {added(key, HOST, nqn)}
        attach {nqn} {target.port} {identity()} --tls 2>&1 || exit 0
        fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 \\
            --name=small --rw=randwrite --bs=4k --size=1m --iodepth=32
        detach {nqn}
    """)
    if "err= 0" in out:
        return "it gets in"
    # GnuTLS before it could be told the hash function of a key proves every key with SHA-256.
    said = target.said()
    require("of SHA-384, and proves it with SHA-256" in said, f"{out}\n{said}")
    return "its GnuTLS proves keys with SHA-256 alone"


@check("tls: a host with another key, no key or no TLS does not get in, and the target says why")
def strangers(bench):
    needed(bench)
    directory, key = keys(bench, HOST)
    _, other = keys(bench, HOST)
    target, nqn, log = served(bench, directory)
    unknown = HOST + "-2"
    connect = f"nvme connect -t tcp -a 10.0.2.2 -s {target.port} -n {nqn}"
    attempts = (
        (added(other, HOST, nqn), f"{identity()} --tls", "has another key for TLS", "wrong_secret"),
        (added(other, HOST, nqn, RFC_8446, 0), f"{identity()} --tls", "has another key for TLS", "wrong_secret"),
        (added(key, unknown, nqn), f"{identity(unknown)} --tls", "has no key for TLS here", "no_key"),
        ("true", identity(), "takes TLS only", "no_tls"),
    )
    for insert, options, why, _ in attempts:
        said = bench.guest.run(f"with_tls; {insert}; {connect} {options} 2>&1 && echo CONNECTED; without_tls")
        require("CONNECTED" not in said, f"{options}: {said}")
        require(why in target.said(), f"{options}: the target says: {target.said()}")
    # A host whose kernel has no key does not even begin.
    said = bench.guest.run(f"with_tls; {connect} {identity()} --tls 2>&1 && echo CONNECTED; without_tls")
    require("CONNECTED" not in said, said)
    said = bench.guest.run(f"with_tls; {added(key, HOST, nqn)}; {connect} {identity()} --tls && echo CONNECTED")
    require("CONNECTED" in said, said)
    bench.guest.run(f"detach {nqn}")
    # The log is whole once the target has ended; lines of one reason may be summed up.
    target.term()
    refusals = {line["why"] for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "refused"}
    require(refusals == {reason for *_, reason in attempts}, str(refusals))


@check("tls: the kernel's target takes our initiator with every kind of key, and no other")
def on_nvmet(bench):
    needed(bench)
    host, port = bench.longhaul.hostnqn(), GUEST_PORTS[0]
    directory, key = keys(bench, host)
    other, _ = keys(bench, host)
    uri = f"nvme+tcp://127.0.0.1:{bench.port_to_guest(port)}/{NQN}"
    load = ("--rw", "randwrite", "--bs", "4k", "--iodepth", "16", "--size", "4m", "--verify", "crc32c")
    bench.guest.run(f"nvmet serve {NQN} 64 {port} '' tls")
    for by, version in KINDS:
        bench.guest.run(f"with_tls; {added(key, host, NQN, by, version)}")
        result = bench.longhaul.json("bench", uri, *load, "--keys", directory, "--tls")
        require(result["jobs"][0]["error"] == 0, f"{by}, version {version}: {result['jobs'][0]}")
        said = refused(bench, uri, "--keys", other, "--tls")
        # tlshd closes the connection, whether it has no such key or another one.
        require(f"NVMe1R01 {host} {NQN} " in said and "libnvme before 1.16" in said, said)
        require("keyring .nvme lacks the key or has another one" in said, said)
        bench.guest.run("without_tls")
    plain = refused(bench, uri, "--keys", directory)
    require("127.0.0.1" in plain, plain)


@check("tls: the kernel's target with a key of SHA-384 lets our initiator in, or this says why not")
def long_key_on_nvmet(bench):
    needed(bench)
    host, port = bench.longhaul.hostnqn(), GUEST_PORTS[0]
    directory, key = keys(bench, host, "sha384")
    bench.guest.run(f"nvmet serve {NQN} 64 {port} '' tls; with_tls; {added(key, host, NQN)}")
    uri = f"nvme+tcp://127.0.0.1:{bench.port_to_guest(port)}/{NQN}"
    said = bench.longhaul.run("info", uri, "--keys", directory, "--tls", status=None)
    if "TLS 1.3" in said:
        return "it gets in"
    require("NVMe1R02" in said and "--hash sha256" in said, said)
    return "its GnuTLS proves keys with SHA-256 alone"


def refused(bench, uri, *options):
    """What the initiator says that does not get in."""
    said = bench.longhaul.run("info", uri, *options, status=None)
    require("namespace" not in said, said)
    return said


@check("tls: keys of nvme-cli are read by the program, and its keys by nvme-cli")
def formats(bench):
    needed(bench)
    directory, _ = keys(bench, HOST)
    place = directory / "hosts" / HOST / "tls_key"
    for code, hash_name in ((1, "sha256"), (2, "sha384")):
        theirs = bench.guest.run(f"with_tls; nvme gen-tls-key --hmac={code}").strip()
        place.write_text(theirs + "\n")
        place.chmod(0o600)
        # It is read when a host connects; what is shown of a key that is damaged says so.
        target, nqn, _ = served(bench, directory)
        bench.longhaul.run("info", target.export("disk")["uri"], "--keys", directory, "--hostnqn", HOST, "--tls")
        ours = keys(bench, HOST, hash_name)[1]
        for text, good in ((ours, True), (changed(ours), False)):
            said = bench.guest.run(f"""
                with_tls
                nvme check-tls-key --keydata={text} --hostnqn={HOST} --subsysnqn={nqn} 2>&1 && echo ACCEPTED || true
            """)
            require(("ACCEPTED" in said) == good, f"{hash_name}, {'whole' if good else 'changed'}: {said}")


def changed(key):
    """The same with another character in its middle."""
    at = len(key) // 2
    return key[:at] + ("A" if key[at] != "A" else "B") + key[at + 1 :]
