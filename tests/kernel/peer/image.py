"""Makes what the guest boots from: a kernel, an initial RAM disk and a root disk.

Invariants:
- a finished product is never changed: it lies in a directory named after a
  digest of this recipe and of the day's package choice, and appears there by
  one rename;
- the kernel and its modules are Debian's, bit for bit; modules are only
  decompressed, for decompression is slow under emulation.
"""

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import packages
from .packages import Apt, Missing

# What the guest's root disk is made of, with all that these depend on.
USERLAND = """
    busybox-static bash coreutils util-linux mount grep sed mawk findutils procps iproute2
    nvme-cli fio xfsprogs e2fsprogs diffutils gzip python3-minimal libpython3-stdlib
    tgt open-iscsi iperf3 keyutils tar nfs-kernel-server nfs-common
""".split()

# What TLS needs in user space: an nvme-cli that knows keys for it, and tlshd, which goes through
# the handshakes of the kernel. Releases that lack these take them from a later one: they lie in
# a directory of their own, with their libraries.
TLS_PACKAGES = ["nvme-cli", "ktls-utils"]
TLS_PROGRAMS = ("nvme", "tlshd")
TLS_RELEASES = {"bookworm": "trixie"}

# Modules that are loaded at boot, with all that these depend on; those built
# into the kernel are passed over.
MODULES = """
    virtio_pci virtio_blk virtio_net virtio_console virtio_rng
    crc32c_generic crc32c_intel crc32c-x86_64 ext4 xfs loop fuse nbd ublk_drv null_blk
    sha256_generic sha512_generic hmac dh_generic
    nvme-core nvme-fabrics nvme-tcp nvmet nvmet-tcp configfs
    tun veth bridge sch_netem sd_mod iscsi_tcp nfsd nfsv4
    tls aesni_intel ghash_clmulni_intel gcm ctr
""".split()

# Modules that some kernels do not have because another took over their work.
OPTIONAL = {
    "crc32c_generic", "crc32c_intel", "crc32c-x86_64", "configfs", "virtio_pci", "virtio_rng", "ublk_drv",
    "iscsi_tcp", "nfsd", "nfsv4", "sha256_generic", "sha512_generic", "hmac", "dh_generic",
    "tls", "aesni_intel", "ghash_clmulni_intel", "gcm", "ctr",
}  # fmt: skip

# What a module is loaded with: no disks but those that a test asks for.
PARAMETERS = {"null_blk": "nr_devices=0"}

# Room left on the root disk for what tests write there, in MiB.
ROOT_SLACK = 256

# An emulator older than this forks several times more slowly.
QEMU_GOOD = 8


def say(text):
    print(f"kernel peer: {text}", file=sys.stderr, flush=True)


def cache_dir():
    """Where products are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = os.environ.get("TMPDIR") if not os.environ.get("HOME") else str(Path.home() / ".cache")
    return Path(base or "/tmp") / "longhaul" / "kernel-peer"


# --- the kernel and its modules --------------------------------------------


def kernel_archives(apt, suite, into):
    """Downloads the kernel that `linux-image-amd64` of `suite` stands for."""
    names = [d for d in apt.depends("linux-image-" + packages.ARCH, suite) if d.startswith("linux-image-")]
    if not names:
        raise Missing(f"{suite} has no kernel")
    abi = names[0].removeprefix("linux-image-")
    # Some releases split the image in parts that all carry the ABI's name.
    wanted, queue = [], [names[0]]
    while queue:
        name = queue.pop()
        if name not in wanted:
            wanted.append(name)
            queue += [d for d in apt.depends(name, suite) if d.startswith("linux-") and d.endswith(abi)]
    return apt.only(wanted, suite, into)


def module_bytes(path):
    """A module's ELF image, whatever it is packed with."""
    raw = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(raw)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq"], input=raw, stdout=subprocess.PIPE, check=True).stdout
    return raw


def module_depends(image):
    """Names in the module's own `depends=` record."""
    at = image.find(b"\0depends=")
    if at < 0:
        return []
    start = at + len(b"\0depends=")
    names = image[start : image.index(b"\0", start)].decode()
    return [n for n in names.split(",") if n]


def load_order(tree):
    """`(name, image)` of every module of `MODULES` and below, dependencies first."""

    def plain(name):
        return name.replace("-", "_")

    files = {plain(p.name.split(".ko")[0]): p for p in tree.rglob("*.ko*")}
    builtin = {plain(Path(line).name.split(".ko")[0]) for line in (tree / "modules.builtin").read_text().split()}
    order, images = [], {}

    def visit(name, optional):
        key = plain(name)
        if key in images or key in builtin:
            return
        if key not in files:
            if optional:
                return
            raise Missing(f"this kernel has no module {name}")
        images[key] = module_bytes(files[key])
        for below in module_depends(images[key]):
            visit(below, False)
        order.append(key)

    for name in MODULES:
        visit(name, name in OPTIONAL)
    return [(name, images[name]) for name in order]


# --- archives ---------------------------------------------------------------


class Cpio:
    """Writes the `newc` archive format that the kernel unpacks as its first root."""

    def __init__(self, out):
        self.out = out
        self.inode = 0

    def _entry(self, name, mode, body):
        self.inode += 1
        path = name.encode() + b"\0"
        fields = [self.inode, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(path), 0]
        head = b"070701" + b"".join(b"%08X" % f for f in fields)
        self.out.write(head + path + bytes(-(len(head) + len(path)) % 4))
        self.out.write(body + bytes(-len(body) % 4))

    def directory(self, name):
        self._entry(name, 0o040755, b"")

    def file(self, name, body, mode=0o644):
        self._entry(name, 0o100000 | mode, body)

    def link(self, name, to):
        self._entry(name, 0o120777, to.encode())

    def end(self):
        self._entry("TRAILER!!!", 0, b"")


def write_boot_archive(path, busybox, modules):
    """The initial RAM disk but for `init`, which is added at each boot."""
    with open(path, "wb") as out:
        cpio = Cpio(out)
        for d in ("bin", "dev", "proc", "sys", "root", "modules"):
            cpio.directory(d)
        cpio.file("bin/busybox", busybox, 0o755)
        cpio.link("bin/sh", "busybox")
        for name, image in modules:
            cpio.file(f"modules/{name}.ko", image)
        cpio.file("modules/order", "".join(f"{n} {PARAMETERS.get(n, '')}\n" for n, _ in modules).encode())
        cpio.end()


def kernel_elf(bz):
    """The ELF kernel inside a compressed boot image.

    Booted as such it spares the guest the decompression, the longest single
    step of a boot under emulation. Source: the x86 boot protocol's setup
    header (`setup_sects`, `payload_offset`, `payload_length`).
    """
    if bz[0x202:0x206] != b"HdrS":
        return None
    offset, length = struct.unpack_from("<II", bz, 0x248)
    start = ((bz[0x1F1] or 4) + 1) * 512 + offset
    payload = bz[start : start + length]
    try:
        if payload.startswith(b"\xfd7zXZ"):
            # The payload ends in its own unpacked size; the decompressor stops before it.
            elf = lzma.LZMADecompressor().decompress(payload)
        elif payload.startswith(b"\x28\xb5\x2f\xfd"):
            elf = subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
        else:
            return None
    except (lzma.LZMAError, OSError, subprocess.CalledProcessError):
        return None
    return elf if elf.startswith(b"\x7fELF") else None


# --- the root disk ----------------------------------------------------------


def trim(root):
    """Removes what no test reads: it halves the disk and the time to make it."""
    for sub in ("doc", "man", "locale", "info", "zoneinfo", "bash-completion", "perl5", "lintian", "i18n"):
        shutil.rmtree(root / "usr/share" / sub, ignore_errors=True)
    for sub in ("systemd", "udev", "x86_64-linux-gnu/gconv", "x86_64-linux-gnu/perl-base"):
        shutil.rmtree(root / "usr/lib" / sub, ignore_errors=True)


def furnish(root):
    """What the packages' own scripts would have set up."""
    for d in ("proc", "sys", "dev", "run", "tmp", "mnt", "root", "etc/nvme", "opt/longhaul", "var/lib"):
        (root / d).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\ndisk:x:6:\ntty:x:5:\nnogroup:x:65534:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n10.0.2.2 host\n")
    identity = "5f4c0d3e-6c1a-4d55-9a0e-1f2b3c4d5e6f"
    (root / "etc/nvme/hostid").write_text(identity + "\n")
    (root / "etc/iscsi/initiatorname.iscsi").write_text("InitiatorName=iqn.2014-08.org.example:guest\n")
    (root / "etc/nvme/hostnqn").write_text(f"nqn.2014-08.org.nvmexpress:uuid:{identity}\n")
    for name, to in (("awk", "mawk"), ("sh", "bash")):
        if not (root / "usr/bin" / name).exists():
            (root / "usr/bin" / name).symlink_to(to)


def write_root_disk(root, path):
    kib = sum(f.lstat().st_size // 1024 + 5 for f in root.rglob("*"))
    size = kib * 11 // 10 // 1024 + ROOT_SLACK
    subprocess.run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0",
         "-d", str(root), str(path), f"{size}M"],
        check=True, stdout=subprocess.DEVNULL, timeout=packages.APT_TIMEOUT,
    )  # fmt: skip


def add_tls(root, apt, work):
    """Copies [`TLS_PROGRAMS`] and the libraries that they are linked with into /opt/tls of `root`."""
    apt.update()
    packages.unpack(apt.closure(TLS_PACKAGES, apt.release, work / "archives"), work / "root")
    loader, libs = (work / "root/usr" / p for p in ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu"))
    place = root / "opt/tls"
    (place / "lib").mkdir(parents=True)
    shutil.copy(loader, place / "ld.so")
    for name in TLS_PROGRAMS:
        program = work / "root/usr/sbin" / name
        listed = subprocess.run(
            [loader, "--library-path", libs, "--list", program], capture_output=True, text=True, check=True
        )
        for library in re.findall(r"^\s*\S+ => (\S+)", listed.stdout, re.M):
            shutil.copy(library, place / "lib")
        shutil.copy(program, place)


# --- the emulator -----------------------------------------------------------


def system_qemu():
    """The installed emulator, if it is a good one."""
    path = shutil.which("qemu-system-x86_64")
    if not path:
        return None, 0
    words = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.split()
    major = words[3].split(".")[0] if len(words) > 3 else "0"
    return path, int(major) if major.isdigit() else 0


def private_qemu(root):
    """The command that starts the emulator unpacked under `root`, with its own libraries."""
    libs = root / "usr/lib/x86_64-linux-gnu"
    extra = [str(d) for d in sorted(libs.iterdir()) if d.is_dir() and any(d.glob("*.so*"))]
    return [
        str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", ":".join([str(libs), *extra]),
        str(root / "usr/bin/qemu-system-x86_64"),
        "-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios"),
    ]  # fmt: skip


# --- all together -----------------------------------------------------------


class Image:
    """A finished product: paths of what the guest boots from."""

    def __init__(self, path):
        self.path = Path(path)
        self.kernel = self.path / "kernel"
        self.boot = self.path / "boot.cpio"
        self.root = self.path / "root.ext4"
        self.release = (self.path / "release").read_text().strip()
        installed, _ = system_qemu()
        unpacked = self.path / "qemu"
        self.qemu = private_qemu(unpacked) if unpacked.is_dir() else [installed]


def _make(apt, kernels, into):
    work = into / "work"
    began = time.monotonic()
    say(f"fetching packages of {apt.release}, the kernel from {kernels[1]}")
    userland = apt.closure(USERLAND, apt.release, work / "userland")
    kernel = kernel_archives(*kernels, work / "kernel")
    installed, major = system_qemu()
    if installed is None or major < QEMU_GOOD:
        source = apt.backports if apt.has("qemu-system-x86", apt.backports) else apt.release
        packages.unpack(apt.closure(["qemu-system-x86"], source, work / "qemu"), into / "qemu")
        trim(into / "qemu")

    say("making the guest's disks")
    packages.unpack(kernel, work / "k")
    trees = [d for d in (work / "k/usr/lib/modules").iterdir() if (d / "kernel").is_dir()]
    images = [p for p in [*(work / "k").glob("boot/vmlinuz-*"), *(t / "vmlinuz" for t in trees)] if p.exists()]
    if len(trees) != 1 or not images:
        raise Missing("the kernel package has not the shape that is known")
    bz = images[0].read_bytes()
    (into / "kernel").write_bytes(kernel_elf(bz) or bz)
    (into / "release").write_text(trees[0].name + "\n")

    packages.unpack(userland, work / "root")
    busybox = next(p for p in (work / "root").glob("usr/bin/busybox")).read_bytes()
    write_boot_archive(into / "boot.cpio", busybox, load_order(trees[0]))
    trim(work / "root")
    furnish(work / "root")
    try:
        release = TLS_RELEASES.get(apt.release, apt.release)
        add_tls(work / "root", Apt(cache_dir() / f"apt-{release}", release), work / "tls")
    except (Missing, OSError, subprocess.CalledProcessError) as why:
        say(f"the checks of TLS are skipped until {cache_dir()} is removed: {why}")
    write_root_disk(work / "root", into / "root.ext4")
    (into / "packages").write_text("".join(f"{d.name}\n" for d in [*kernel, *userland]))
    shutil.rmtree(work)
    say(f"made in {time.monotonic() - began:.0f} s, kernel {(into / 'release').read_text().strip()}")


def obtain():
    """Returns the guest's [`Image`], making it first where it is not there yet."""
    if not shutil.which("mke2fs"):
        raise Missing("mke2fs (package e2fsprogs) is not installed")
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    recipe = hashlib.sha256()
    for source in (Path(__file__), Path(packages.__file__)):
        recipe.update(source.read_bytes())
    wish = os.environ.get("LONGHAUL_KERNEL_SUITE", "")
    recipe.update(f"{wish} {packages.codename()} {system_qemu()[1] >= QEMU_GOOD}".encode())
    done = cache / recipe.hexdigest()[:16]
    # One maker at a time: the others find the product when they get the lock.
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done / "release").exists():
            apt = Apt(cache / "apt")
            apt.update()
            release = wish.removesuffix("-backports")
            if release not in ("", apt.release):
                kernels = Apt(cache / f"apt-{release}", release)
                kernels.update()
            else:
                kernels = apt
            suite = wish or (apt.backports if apt.has("linux-image-" + packages.ARCH, apt.backports) else apt.release)
            with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as new:
                _make(apt, (kernels, suite), Path(new))
                os.chmod(new, 0o755)
                Path(new).rename(done)
                Path(new).mkdir()
    return Image(done)
