"""Emulated links on a stock kernel, which has netem beside TUN devices."""

import json

from peer.suite import check, require

# Round trips in ms that are set, and what a loaded emulator adds at most.
RTT, LONGER, SLACK = 60, 160, 400


def round_trips(text):
    """Least round trip of busybox's ping, in ms, and packets that came back."""
    least = next((float(s.split("=")[1].split("/")[0]) for s in text.splitlines() if s.startswith("round-trip")), None)
    received = next(int(s.split(",")[1].split()[0]) for s in text.splitlines() if "packets received" in s)
    return least, received


def ping(bench, count=5):
    return round_trips(
        bench.guest.run(f"ip netns exec t-client busybox ping -c {count} -W 2 -i 0.3 10.77.1.2 || true")
    )


def emulate(bench, via):
    """A path by `via`: its delay, changed, cut and restored, and its end."""
    bench.install(bench.longhaul.binary)
    job = bench.guest.start(f"exec longhaul wan --json --name t --via {via} --rtt {RTT}ms --rate 100Mbit")
    job.wait_output('"ready"')
    ready = json.loads(next(s for s in job.output.splitlines() if '"ready"' in s))
    least, received = ping(bench)
    require(received == 5 and RTT <= least < RTT + SLACK, f"{received} of 5, {least} ms at {RTT} ms")
    bench.guest.run(f"longhaul wan set t --rtt {LONGER}ms --rate 0")
    longer, received = ping(bench)
    require(received == 5 and LONGER <= longer < LONGER + SLACK, f"{received} of 5, {longer} ms at {LONGER} ms")
    for direction in ("there", "back"):
        bench.guest.run(f"longhaul wan set t --cut --direction {direction}")
        _, received = ping(bench, 2)
        require(received == 0, f"{received} of 2 passed a link cut {direction}")
        bench.guest.run("longhaul wan set t --restore --rate 100Mbit")
        _, received = ping(bench, 2)
        require(received == 2, f"{received} of 2 passed a link that was restored")
    status = json.loads(bench.guest.run("longhaul wan status t --json 2>/dev/null"))
    there = status["paths"][0]["links"][0]["there"]
    require(there["packets_out"] >= 14, f"counters: {there}")
    return job, ready, f"{least:.1f} ms at {RTT}, {longer:.1f} at {LONGER}"


def end(bench, job, ready):
    bench.guest.run(f"kill -TERM {ready['pid']}")
    job.wait()
    left = bench.guest.run("ip netns list; ls /run/longhaul/wan").strip()
    require(left == "", f"left behind: {left}")


@check("wan: an emulated link between TUN devices")
def tun(bench):
    job, ready, said = emulate(bench, "tun")
    require(ready["via"] == "tun", f"{ready}")
    end(bench, job, ready)
    return said


@check("wan: an emulated link by the kernel's netem")
def netem(bench):
    job, ready, said = emulate(bench, "auto")
    require(ready["via"] == "netem", f"auto chose another one: {ready}")
    refused = bench.guest.run("longhaul wan set t --black-hole 1500 2>&1 && exit 1 || echo status $?")
    require("netem does not have a black hole" in refused and "status 2" in refused, refused)
    end(bench, job, ready)
    return said
