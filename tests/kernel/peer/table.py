"""Samples of a comparison as a table of a document."""

import os
import statistics
import subprocess
from pathlib import Path

from . import columns, guest


def spread(values, digits=2):
    """`median (least–most)`."""
    low, middle, high = (f"{f(values):.{digits}f}" for f in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} ({low}–{high})"


def cell(samples, references, unit):
    """The ratio within each round, then the value itself."""
    ratios = [s / r for s, r in zip(samples, references, strict=True)]
    return f"{spread(ratios)}, {statistics.median(samples):.3g} {unit}"


def rows(result):
    """The table's lines: one for each round trip and load, one column for each pair of peers."""
    names = [c.name for c in columns.COLUMNS]
    yield "| round trip set | load | plain TCP; ping | " + " | ".join(names) + " |"
    yield "| --- " * (len(names) + 3) + "|"
    for case in result["cases"]:
        reference = f"{spread(case['reference'], case['digits'])} {case['unit']}"
        cells = [
            cell(case["samples"][n], case["reference"], case["unit"]) if n in case["samples"] else "–" for n in names
        ]
        yield f"| {case['rtt']} | {case['load']} | {reference} | " + " | ".join(cells) + " |"


def versions(image, wanted=("nvme-cli", "open-iscsi", "tgt", "iperf3")):
    """Names and versions of the Debian packages that take part."""
    found = (line.split("_")[:2] for line in (image.path / "packages").read_text().splitlines())
    return ", ".join(f"{n} {v.replace('%3a', ':')}" for n, v in found if n in wanted)


def machine(image):
    """What the emulator runs on, and the emulator."""
    model = next((s.split(":")[1].strip() for s in open("/proc/cpuinfo") if s.startswith("model name")), "unknown")
    qemu = subprocess.run([*image.qemu, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    kind = "hardware virtualisation" if os.environ.get("LONGHAUL_KERNEL_ACCEL") else "emulation (TCG)"
    return (
        f"{model}, {os.cpu_count()} processors; load average {os.getloadavg()[0]:.2f} when the run began; guest of "
        f"{guest.CPUS} processors by {kind} and {guest.MEMORY} MiB, {qemu}"
    )


def markdown(result):
    """The table and the conditions under which it holds."""
    c = columns
    yield from rows(result)
    yield ""
    yield f"- Machine: {result['machine']}."
    yield f"- Guest: Debian's kernel Linux {result['kernel']}; {result['packages']}; {result['program']}."
    yield (
        f"- Link: `longhaul wan --via netem` (the kernel's netem) at {result['rate']} in each direction, queue "
        f"{result['queue']}, MTU 9000, the kernel's default TCP buffers, {c.CONGESTION} on all sockets."
    )
    yield (
        f"- Hosts: one connection (session), one I/O queue of {c.QUEUE_SIZE} entries, no I/O scheduler; in-capsule "
        f"data of {c.IN_CAPSULE // 1024} KiB, for iSCSI ImmediateData, InitialR2T=No and a FirstBurstLength of as much."
    )
    yield (
        f"- Targets: {c.DEVICE_MIB} MiB in memory: `mem:`, null_blk with `memory_backed`, for tgt a file on tmpfs; "
        f"{c.REGION_MIB} MiB of it are loaded."
    )
    yield (
        f"- Each ratio: median (least–most) of {result['rounds']} rounds, interleaved, of {result['seconds']} s "
        "after 2 s of load; to the plain TCP (`iperf3`, one stream, the same direction) or the ping of its round."
    )
    for name, why in result["missing"].items():
        yield f"- {name}: not measured: {why}."
    yield ""
    yield "```sh"
    yield result["command"]
    yield "```"


def write(path, name, lines):
    """Puts `lines` between the markers called `name` of a document."""
    path = Path(path)
    text = path.read_text()
    begin, end = f"<!-- results: {name} -->\n", f"<!-- end of results: {name} -->"
    head, rest = text.split(begin)
    path.write_text(head + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1])
