"""Hosts and targets of several makers over one emulated link within the guest.

The target's end of the link is in a network namespace of its own. The host's
end is in the guest's initial one, for the kernel's iSCSI initiator takes its
sockets from no other.
"""

import contextlib
import json
import shlex

from .guest import ScriptFailed

# The name of the emulated path, and the target's address on it.
PATH, SERVER = "peers", "10.77.1.2"
INSIDE = f"nsenter --net=/run/netns/{PATH}-server"

# Each device, the part of it that is loaded, and what a write may carry along
# unasked: the kernel's target offers no other size without being told.
DEVICE_MIB, REGION_MIB, IN_CAPSULE = 64, 32, 16384

# How long host and target may take to find each other, in seconds.
ATTACH_TIMEOUT = 120

QUEUE_SIZE = 128
CONGESTION = "cubic"

OURS_NQN, KERNEL_NQN = "nqn.2014-08.org.example:ours", "nqn.2014-08.org.example:kernel"
IQN = "iqn.2014-08.org.example:tgt"
OURS_PORT, KERNEL_PORT, ISCSI_PORT = 4420, 4421, 3260


class Column:
    """A target, its host, and how the guest joins them."""

    def __init__(self, name, target, host, attach, detach):
        self.name = name
        self.target = target
        self.host = host
        # Prints what `longhaul bench` loads.
        self.attach = attach
        self.detach = detach


def _ours(nqn, port):
    uri = f"nvme+tcp://{SERVER}:{port}/{nqn}"
    return f"echo {uri} --connections 1 --queue-size {QUEUE_SIZE} --congestion {CONGESTION}"


def _kernel(nqn, port):
    return (
        f"nvme connect -t tcp -a {SERVER} -s {port} -n {nqn} --nr-io-queues=1 --queue-size={QUEUE_SIZE} > /dev/null\n"
        f"until_true 60 block_device {nqn} > /dev/null\n"
        f"no_schedulers; block_device {nqn}"
    )


TARGETS = {
    "ours": (
        f"exec {INSIDE} longhaul target --json --insecure --listen {SERVER}:{OURS_PORT} --discovery none "
        f"--in-capsule {IN_CAPSULE} --congestion {CONGESTION} --export ours=mem:{DEVICE_MIB}MiB,nqn={OURS_NQN}",
        '"ready"',
    ),
    "nvmet": (f"{INSIDE} nvmet serve {KERNEL_NQN} {DEVICE_MIB} {KERNEL_PORT} {IN_CAPSULE} && echo serving", "serving"),
    "tgt": (f"exec {INSIDE} iscsi serve {IQN} {DEVICE_MIB} {SERVER}:{ISCSI_PORT} {IN_CAPSULE}", "serving"),
}

COLUMNS = (
    Column("Longhaul, both ends", "ours", "ours", _ours(OURS_NQN, OURS_PORT), ""),
    Column("Longhaul target, kernel host", "ours", "kernel", _kernel(OURS_NQN, OURS_PORT), f"detach {OURS_NQN}"),
    Column("nvmet, Longhaul initiator", "nvmet", "ours", _ours(KERNEL_NQN, KERNEL_PORT), ""),
    Column("nvmet, kernel host", "nvmet", "kernel", _kernel(KERNEL_NQN, KERNEL_PORT), f"detach {KERNEL_NQN}"),
    Column(
        "iSCSI: tgt, open-iscsi", "tgt", "kernel",
        f"iscsi attach {IQN} {SERVER}:{ISCSI_PORT} {IN_CAPSULE} {QUEUE_SIZE}; no_schedulers",
        f"iscsi detach {IQN} {SERVER}:{ISCSI_PORT}",
    ),
)  # fmt: skip


class Lab:
    """The link and the targets behind it, in a guest that has the program."""

    def __init__(self, guest, rtt, rate, queue):
        self.guest = guest
        self.missing = {}
        self.serving = []
        # What one connection learned of the path is nothing for the next one, here as in the namespace.
        guest.run(f"sysctl -q net.ipv4.tcp_no_metrics_save=1 net.ipv4.tcp_congestion_control={CONGESTION}")
        self.link = guest.start(
            f"exec longhaul wan --json --name {PATH} --via netem --rtt {rtt} --rate {rate} --queue {queue} "
            "--tcp-buffers 0"
        )
        self.link.wait_output('"ready"')
        guest.run(f"""
            ip -n {PATH}-client link set wan1 netns 1
            ip addr add 10.77.1.1/24 dev wan1
            ip link set wan1 up
            {INSIDE} sysctl -q net.ipv4.tcp_no_metrics_save=1 net.ipv4.tcp_congestion_control={CONGESTION}
        """)

    def serve(self):
        """Starts the targets; a column whose target does not start is missing, for the reason it gives."""
        for name, (script, ready) in TARGETS.items():
            job = self.guest.start("set -e\n" + script)
            try:
                job.wait_output(ready)
            except ScriptFailed as why:
                said = why.output.strip().splitlines()
                self.missing[name] = said[-1] if said else "it ended without a word"
            self.serving.append(job)

    def reason(self, column):
        """Why a column cannot be had; nothing if it can."""
        return self.missing.get(column.target, "")

    def attach(self, column):
        """Joins host and target; returns the arguments that name the device to `longhaul bench`."""
        return self.guest.run(column.attach, ATTACH_TIMEOUT).strip().splitlines()[-1]

    def detach(self, column):
        if column.detach:
            self.guest.run(column.detach)

    def bench(self, device, mib, *options):
        """Runs `longhaul bench` on the first `mib` MiB of a device; returns the one job of its result."""
        args = " ".join(map(shlex.quote, map(str, options)))
        out = self.guest.run(
            f"longhaul bench {device} --size {mib}MiB --force --json {args} 2> /tmp/said || "
            "{ cat /tmp/said; exit 1; }"
        )
        job = json.loads(out)["jobs"][0]
        if job["error"]:
            raise ScriptFailed(job["error"], out)
        return job

    def plain(self, seconds, back):
        """Plain TCP of one stream, in bit/s: iperf3 from the target's side (`back`) or to it."""
        if not any(job.status is None and "iperf3" in job.output for job in self.serving):
            job = self.guest.start(f"echo iperf3; exec {INSIDE} iperf3 --server --bind {SERVER} --forceflush")
            job.wait_output("listening")
            self.serving.append(job)
        out = self.guest.run(
            f"iperf3 --client {SERVER} --time {seconds} --omit 2 --congestion {CONGESTION} --length 128K --json "
            + "--reverse" * back
        )
        return json.loads(out)["end"]["sum_received"]["bits_per_second"]

    def ping(self, count=20):
        """Mean round trip of small packets, in ms."""
        out = self.guest.run(f"busybox ping -c {count} -i 0.05 -s 64 {SERVER}")
        return float(next(s for s in out.splitlines() if "min/avg/max" in s).split("=")[1].split("/")[1])

    def end(self):
        """Takes targets and link down."""
        self.guest.run("""
            pkill -KILL -x 'tgtd|iperf3' || true
            pkill -x longhaul || true
            nvmet clear
        """)
        for job in [*self.serving, self.link]:
            with contextlib.suppress(ScriptFailed):
                job.wait()
