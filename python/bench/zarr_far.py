#!/usr/bin/env python3
"""How much of a long link zarr fills, over a file system in a pool and from Python: `sudo python zarr_far.py`.

An emulated link (`longhaul wan`) joins two network namespaces of this machine. Targets in memory are in one, and
in the other a zarr array of random float32, uncompressed, is written through `longhaul://` and read; then a
device of the same size by `read_many`, and by reads one after the other. Each run is a new process, so
that nothing is cached, and the time is that of the array alone: mounting and opening come before it. What is
printed is the rate of the content as a ratio of the link's rate, which carries headers too (TCP reaches 0.994).

Needs root, `ip`, zarr and the wheel; the program is that of the variable LONGHAUL, or in the path.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "pyfar"
SERVER = "10.77.1.2"
HOST = "nqn.2014-08.org.nvmexpress:uuid:6d6f8b1a-0f0e-4b8e-9f5e-000000000045"
PROGRAM = os.environ.get("LONGHAUL") or shutil.which("longhaul") or "longhaul"

#: What is measured, by its name in the table.
WAYS = {
    "write": "zarr, written",
    "read": "zarr, read",
    "parity-write": "zarr, written with parity (2 + 1)",
    "parity-read": "zarr, read with parity (2 + 1)",
    "many": "device, read_many of 64 times 1 MiB in two threads",
    "one": "device, read_at of 1 MiB, one after the other",
    "tcp": "reference: iperf3 -R, one stream",
}


def measure(way: str, size: int, chunk: int, concurrency: int, device: str) -> float:
    """Seconds that one way takes; runs in the namespace of the client."""
    if way == "tcp":
        # What TCP alone takes for as many bytes, its slow start included.
        command = ["iperf3", "--client", SERVER, "--reverse", "--bytes", str(size), "--json"]
        done = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return size * 8 / done["end"]["sum_received"]["bits_per_second"]
    import longhaul

    if way in ("many", "one"):
        part = 1 << 20
        with longhaul.open(device, hostnqn=HOST) as file:
            began = time.monotonic()
            if way == "one":
                # As long as it takes to see the rate.
                size = min(size, 64 << 20)
                for at in range(0, size, part):
                    file.read_at(at, part)
                return (time.monotonic() - began) * (file.size / size)
            # Two calls at a time: while one hands over its results, the other one keeps the link busy.
            groups = (
                [(one, part) for one in range(at, min(at + 64 * part, file.size), part)]
                for at in range(0, file.size, 64 * part)
            )
            with ThreadPoolExecutor(2) as pool:
                for _ in pool.map(file.read_many, groups):
                    pass
            return time.monotonic() - began

    import numpy
    import zarr

    zarr.config.set({"async.concurrency": concurrency})
    name = "wide" if way.startswith("parity") else "plain"
    url, options = f"longhaul://pool/{name}/array.zarr", {"hostnqn": HOST}
    rows = size // chunk
    if way.endswith("read"):
        array = zarr.open_array(url, mode="r", storage_options=options)
        began = time.monotonic()
        content = array[:]
        took = time.monotonic() - began
        assert content.nbytes == size and content[-1, -1] == rows - 1
        return took
    content = numpy.random.default_rng(1).random((rows, chunk // 4), dtype="f4")
    content[:, -1] = numpy.arange(rows)
    array = zarr.create_array(
        url,
        shape=content.shape,
        chunks=(1, chunk // 4),
        dtype="f4",
        compressors=None,
        overwrite=True,
        storage_options=options,
    )
    began = time.monotonic()
    array[:] = content
    return time.monotonic() - began


def wait_for(process: subprocess.Popen) -> dict:
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{process.args} has ended: {process.wait()}")
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024, help="MiB of the array (1024)")
    parser.add_argument("--chunk", type=int, default=4, help="MiB of a chunk (4)")
    parser.add_argument(
        "--concurrency", type=int, default=10, help="chunks that zarr has under way (10, its default)"
    )
    parser.add_argument("--rtt", default="45ms", help="round trip of the link (45ms)")
    parser.add_argument("--rate", type=float, default=1000, help="Mb/s of the link (1000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--ways", default="write,read,many,tcp", help=f"of {','.join(WAYS)}")
    parser.add_argument(
        "--floor", type=float, default=0.9, help="ratio that write, read and many have to reach (0.9)"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    size, chunk = args.size << 20, args.chunk << 20
    if args.measure:
        print(measure(args.measure, size, chunk, args.concurrency, args.device))
        return
    ways = args.ways.split(",")

    shared = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="zarr-far-", dir=shared if shared.is_dir() else None))
    os.environ.update(XDG_STATE_HOME=str(scratch / "state"), XDG_RUNTIME_DIR=str(scratch / "run"))
    (scratch / "run").mkdir()
    started = []
    try:
        link = [PROGRAM, "wan", "--json", "--rtt", args.rtt, "--rate", f"{args.rate}Mbit", "--name", NAME]
        started.append(subprocess.Popen(link, stdout=subprocess.PIPE, text=True))
        wait_for(started[0])
        # Content and parity of two arrays.
        spaces = [
            word for at in "abc" for word in ("--space", f"{at}=dir:{scratch / at},size={args.size * 4}MiB")
        ]
        target = [
            PROGRAM,
            "target",
            "--json",
            "--insecure",
            "--listen",
            f"{SERVER}:4420",
            "--admin",
            HOST,
            *spaces,
        ]
        target += ["--export", f"device=mem:{args.size}MiB"]
        started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", f"{NAME}-server", *target], stdout=subprocess.PIPE, text=True
            )
        )
        device = wait_for(started[1])["exports"][0]["uri"]
        if "tcp" in ways:
            server = ["ip", "netns", "exec", f"{NAME}-server", "iperf3", "--server"]
            started.append(subprocess.Popen(server, stdout=subprocess.DEVNULL))
        client = ["ip", "netns", "exec", f"{NAME}-client"]

        def run(*words: str) -> None:
            subprocess.run(
                [*client, PROGRAM, *words, "--hostnqn", HOST], check=True, stdout=subprocess.DEVNULL
            )

        run("pool", "create", "pool", "--target", *(f"{SERVER}/{at},domain={at}" for at in "abc"))
        room = f"{args.size * 5 // 4 + 256}MiB"
        run("fs", "create", "pool/plain", "--size", room, "--layout", "stripe", "--thin")
        if any(way.startswith("parity") for way in ways):
            run("fs", "create", "pool/wide", "--size", room, "--layout", "parity", "--thin")
        ratios = {way: [] for way in ways}
        # One after the other in each round, so that what else the machine does concerns all alike.
        for _ in range(args.runs):
            for way in ways:
                command = [*client, sys.executable, __file__, "--measure", way, "--size", str(args.size)]
                command += [
                    "--chunk",
                    str(args.chunk),
                    "--concurrency",
                    str(args.concurrency),
                    "--device",
                    device,
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                ratios[way].append(size * 8 / float(done.stdout) / (args.rate * 1e6))
        late = subprocess.run([PROGRAM, "wan", "status", NAME], capture_output=True, text=True).stdout
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()
        shutil.rmtree(scratch)

    print(
        f"{args.size} MiB, chunks of {args.chunk} MiB, {args.rate:g} Mb/s, {args.rtt}; median (least-most) of {args.runs}"
    )
    missed = False
    for way, found in ratios.items():
        median = statistics.median(found)
        verdict = ""
        if way in ("write", "read", "many"):
            verdict = "" if median >= args.floor else f"  below the floor of {args.floor}"
            missed |= median < args.floor
        print(f"{WAYS[way]:<46} {median:.3f} ({min(found):.3f}-{max(found):.3f}) of the link{verdict}")
    print(late)
    sys.exit(missed)


if __name__ == "__main__":
    main()
