"""In-band authentication with the kernel's host and the kernel's target."""

from pathlib import Path

from peer.suite import GUEST_PORTS, check, require

HOST = "nqn.2014-08.org.example:guest"
HOST_ID = "4c554e47-4841-554c-0000-000000000001"
NQN = "nqn.2014-08.org.example:kernel"
HASHES = ("sha256", "sha384", "sha512")


def keys(bench, host, *options):
    """Makes secrets of a host: their directory, and the two texts."""
    directory = bench.new_file("keys")
    Path(directory).mkdir(mode=0o700)
    bench.longhaul.run("key", "make", host, "--keys", str(directory), *options)
    place = Path(directory) / "hosts" / host
    read = lambda name: (place / name).read_text().strip() if (place / name).exists() else None
    return str(directory), read("dhchap_key"), read("dhchap_ctrl_key")


def verifies(bench, hash_name):
    """The kernel's host proves who it is on every queue, and has our target prove it, too."""
    directory, secret, controller = keys(bench, HOST, "--hash", hash_name)
    target = bench.target("disk=mem:64MiB", options=("--keys", directory))
    nqn = target.export("disk")["nqn"]
    identity = f"--hostnqn={HOST} --hostid={HOST_ID}"
    out = bench.guest.run(f"""
        attach {nqn} {target.port} {identity} --dhchap-secret={secret} --dhchap-ctrl-secret={controller}
        fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --randseed=7 \\
            --name=small --rw=randwrite --bs=4k --size=4m --iodepth=32
        dmesg | grep -c 'qid 0: controller authenticated'
        detach {nqn}
    """)
    require("err= 0" in out, out)


for name in HASHES:
    check(f"auth: the kernel's host, {name}")(lambda bench, n=name: verifies(bench, n))


@check("auth: a host that knows another secret, or none, does not get in")
def strangers(bench):
    directory, secret, controller = keys(bench, HOST)
    _, other, _ = keys(bench, HOST)
    target = bench.target("disk=mem:64MiB", options=("--keys", directory))
    nqn = target.export("disk")["nqn"]
    connect = f"nvme connect -t tcp -a 10.0.2.2 -s {target.port} -n {nqn} --hostid={HOST_ID}"
    for wrong in (
        f"--hostnqn={HOST} --dhchap-secret={other}",
        f"--hostnqn={HOST}",
        f"--hostnqn={HOST}-2 --dhchap-secret={secret}",
        f"--hostnqn={HOST} --dhchap-secret={secret} --dhchap-ctrl-secret={other}",
    ):
        said = bench.guest.run(f"{connect} {wrong} 2>&1 && echo CONNECTED; true")
        require("CONNECTED" not in said, f"{wrong}: {said}")
    said = bench.guest.run(f"{connect} --hostnqn={HOST} --dhchap-secret={secret} 2>&1 && echo CONNECTED")
    require("CONNECTED" in said, said)


def is_refused(bench, uri, *options):
    """The kernel's target does not let our initiator in. It ends the controller before it sends why, so that this host
    may not get the answer."""
    said = bench.longhaul.run("info", uri, *options, status=None)
    require("refused authentication" in said or "the peer closed the connection" in said, said)


def on_nvmet(bench, hash_name, group):
    """Our initiator on the kernel's target, each proves to the other who it is."""
    host = bench.longhaul.hostnqn()
    directory, secret, controller = keys(bench, host, "--hash", hash_name)
    port = GUEST_PORTS[0]
    bench.guest.run(f"""
        nvmet serve {NQN} 64 {port}
        nvmet admit {NQN} {host} {secret} {controller} 'hmac({hash_name})' {group}
    """)
    uri = f"nvme+tcp://127.0.0.1:{bench.port_to_guest(port)}/{NQN}"
    load = ("--rw", "randwrite", "--bs", "4k", "--iodepth", "16", "--size", "8m", "--verify", "crc32c")
    result = bench.longhaul.json("bench", uri, *load, "--keys", directory)
    require(result["jobs"][0]["error"] == 0, str(result["jobs"][0]))
    wrong, _, _ = keys(bench, host)
    is_refused(bench, uri, "--keys", wrong)


for name, group in (("sha256", "ffdhe2048"), ("sha384", "ffdhe3072"), ("sha512", "ffdhe8192")):
    check(f"auth: the kernel's target, {name}, {group}")(
        lambda bench, n=name, g=group: on_nvmet(bench, n, g)
    )
