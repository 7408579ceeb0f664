"""Secure channel concatenation with the kernel's host and the kernel's target: an authentication makes the key for TLS.

Linux has it from 6.15 on, and commands that do not belong on the queue of the exchange until 6.17:
`LONGHAUL_KERNEL_SUITE=trixie-backports` is a kernel that is newer.
"""

import json
from pathlib import Path

from peer.suite import GUEST_PORTS, check, require

from checks import auth, tls

HOST, HOST_ID, NQN, MARK = tls.HOST, auth.HOST_ID, auth.NQN, tls.MARK


def needed(bench):
    """Skips the check where the guest has no such kernel, or the program no TLS."""
    tls.needed(bench, "concat", "secure channel concatenation")


def place(directory, host):
    """Where a directory of keys has those of a host."""
    return Path(directory) / "hosts" / host


def served(bench, directory, policy="concatenated"):
    log = bench.new_file("audit")
    target = bench.target("disk=mem:64MiB", options=("--keys", directory, "--tls", policy, "--audit", log))
    return target, target.export("disk")["nqn"], log


@check("concat: the kernel's host makes a key for TLS by its secret, again after a loss, and sends no data in the clear")
def on_target(bench):
    needed(bench)
    directory, secret, _ = auth.keys(bench, HOST)
    target, nqn, log = served(bench, directory)
    pcap = bench.new_file("concat.pcap")
    stop = bench.guest.record(pcap)
    try:
        out = bench.guest.run(f"""
            with_tls
            attach {nqn} {target.port} {tls.identity()} --dhchap-secret={secret} --concat 2>&1 ||
                {{ tail -n 20 /tmp/tlshd.log; dmesg | tail -n 20; exit 1; }}
            yes '{MARK.decode()}' | dd of=$DEV bs=4k count=64 iflag=fullblock oflag=direct 2> /dev/null || true
            dd if=$DEV bs=4k count=64 iflag=direct 2> /dev/null | grep -c '{MARK.decode()}'
            fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --randseed=7 \\
                --name=small --rw=randwrite --bs=4k --size=2m --iodepth=32
            nvme reset $CTRL
            until_true 60 state_is {nqn} live
            fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --randseed=8 \\
                --name=again --rw=randwrite --bs=4k --size=1m --iodepth=8
            detach {nqn}
        """)
    finally:
        stop()
    require(out.count("err= 0") == 2, out)
    sent = pcap.read_bytes()
    require(f"NVMe1G01 {HOST} {nqn}".encode() in sent, "the capture has no identity of a generated PSK")
    require(MARK not in sent, "the capture has data in the clear")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    connected = [line for line in lines if line["event"] == "connected"]
    require(len(connected) >= 2 and all(line["tls"] is True for line in connected), str(lines))


@check("concat: a kernel's host with another secret, or without TLS, does not get in")
def strangers(bench):
    needed(bench)
    directory, secret, _ = auth.keys(bench, HOST)
    _, other, _ = auth.keys(bench, HOST)
    target, nqn, _ = served(bench, directory)
    connect = f"nvme connect -t tcp -a 10.0.2.2 -s {target.port} -n {nqn} {tls.identity()}"
    for wrong in (f"--dhchap-secret={other} --concat", f"--dhchap-secret={secret}", ""):
        said = bench.guest.run(f"with_tls; {connect} {wrong} 2>&1 && echo CONNECTED; without_tls")
        require("CONNECTED" not in said, f"{wrong}: {said}")


@check("concat: the kernel's target makes a key for TLS with our initiator, and with no other")
def on_nvmet(bench):
    needed(bench)
    host, port = bench.longhaul.hostnqn(), GUEST_PORTS[0]
    directory, secret, controller = auth.keys(bench, host)
    wants_proof, _, _ = auth.keys(bench, host)
    for name in ("dhchap_key", "dhchap_ctrl_key"):
        (place(wants_proof, host) / name).write_text((place(directory, host) / name).read_text())
    # nvmet loses the challenge of a host that wants a proof of it, and makes no PSK then.
    (place(directory, host) / "dhchap_ctrl_key").unlink()
    bench.guest.run(f"""
        with_tls
        nvmet serve {NQN} 64 {port} '' allowed
        nvmet admit {NQN} {host} {secret} {controller} 'hmac(sha256)' ffdhe2048
    """)
    uri = f"nvme+tcp://127.0.0.1:{bench.port_to_guest(port)}/{NQN}"
    load = ("--rw", "randwrite", "--bs", "4k", "--iodepth", "16", "--size", "4m", "--verify", "crc32c")
    said = bench.longhaul.run("info", uri, "--keys", directory, "--concat")
    require("TLS 1.3" in said, said)
    result = bench.longhaul.json("bench", uri, *load, "--keys", directory, "--concat")
    require(result["jobs"][0]["error"] == 0, str(result["jobs"][0]))
    said = bench.longhaul.run("info", uri, "--keys", wants_proof, "--concat", status=None)
    proves = "TLS 1.3" in said
    require(proves or "TLS handshake" in said, said)
    wrong, _, _ = auth.keys(bench, host)
    auth.is_refused(bench, uri, "--keys", wrong, "--concat")
    return "it proves what it is, too" if proves else "it makes no PSK for a host that wants its proof"
