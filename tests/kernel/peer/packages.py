"""Debian packages, fetched and unpacked without installing anything.

Invariants:
- apt runs with lists, cache and dpkg status of its own: the machine's package
  state is neither read nor changed, and no root is needed;
- packages come only from the archives that this machine's own apt trusts,
  with the same keyring; the suites added are the backports of a release, and a
  later release where one is asked for.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

# How long one apt or unpack command may take, in seconds: a slow mirror is
# slow, a dead one should still end.
APT_TIMEOUT = 900

ARCH = {"x86_64": "amd64"}.get(os.uname().machine)


class Missing(Exception):
    """Something that the tests need is not to be had on this machine."""


def codename():
    """The Debian release that this machine runs, such as `bookworm`."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        text = ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.M))
    if fields.get("ID") != "debian" or not fields.get("VERSION_CODENAME"):
        raise Missing("the guest is made of Debian packages, and this machine is not Debian")
    return fields["VERSION_CODENAME"]


def _one_line_sources(text):
    for line in text.splitlines():
        m = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if m:
            yield m.group(2), [m.group(3)], m.group(4).split(), dict(
                kv.split("=", 1) for kv in (m.group(1) or "").split() if "=" in kv
            ).get("signed-by")


def _deb822_sources(text):
    for stanza in re.split(r"\n\s*\n", text):
        stanza = re.sub(r"^#.*\n?", "", stanza, flags=re.M)
        f = {k.lower(): v.split() for k, v in re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M)}
        if "deb" in f.get("types", []) and f.get("enabled", ["yes"])[0] != "no":
            for uri in f.get("uris", []):
                yield uri, f.get("suites", []), f.get("components", []), (f.get("signed-by") or [None])[0]


def machine_sources(release):
    """`(uri, suite, signed_by)` of every archive of `release` with a `main` that apt knows here."""
    found = []
    etc = Path("/etc/apt")
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if not path.is_file() or path.suffix not in (".list", ".sources"):
            continue
        parse = _deb822_sources if path.suffix == ".sources" else _one_line_sources
        for uri, suites, components, key in parse(path.read_text()):
            if "main" in components:
                found += [(uri, s, key) for s in suites if s == release or s.startswith(release + "-")]
    if not any(s == release for _, s, _ in found):
        raise Missing(f"apt's sources here do not list the release {release}")
    return found


class Apt:
    """A private apt under `root` that sees `release` (this machine's unless given) and its backports."""

    def __init__(self, root, release=None):
        if ARCH is None or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise Missing("the guest is made with apt-get and dpkg-deb on x86-64")
        self.root = Path(root)
        self.release = release or codename()
        self.backports = self.release + "-backports"
        self._configure()

    def _configure(self):
        for d in ("lists/partial", "archives/partial", "none", "log"):
            (self.root / d).mkdir(parents=True, exist_ok=True)
        (self.root / "status").write_text("")
        machine = codename()
        sources = machine_sources(machine)
        uri, _, key = next(s for s in sources if s[1] == machine)
        if self.release != machine:
            sources = [(uri, self.release, key)]
        if not any(s == self.backports for _, s, _ in sources):
            sources.append((uri, self.backports, key))
        lines = [f"deb {f'[signed-by={k}] ' if k else ''}{u} {s} main\n" for u, s, k in sources]
        (self.root / "sources.list").write_text("".join(lines))
        options = {
            "Dir::Etc::SourceList": self.root / "sources.list",
            "Dir::Etc::SourceParts": self.root / "none",
            "Dir::Etc::PreferencesParts": self.root / "none",
            "Dir::Etc::Preferences": self.root / "none" / "preferences",
            "Dir::State::Lists": self.root / "lists",
            "Dir::State::Status": self.root / "status",
            "Dir::State::Extended_States": self.root / "extended_states",
            "Dir::Cache": self.root,
            "Dir::Log": self.root / "log",
            # The download user of apt may not be able to enter a home directory.
            "APT::Sandbox::User": "root",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Debug::NoLocking": "true",
        }
        conf = "".join(f'{k} "{v}";\n' for k, v in options.items())
        (self.root / "apt.conf").write_text(conf)
        self.env = dict(os.environ, APT_CONFIG=str(self.root / "apt.conf"), LC_ALL="C", DEBIAN_FRONTEND="noninteractive")

    def _apt(self, *args, cwd=None):
        done = subprocess.run(
            [str(a) for a in args], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=APT_TIMEOUT
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-4:])
            raise Missing(f"`{' '.join(str(a) for a in args[:3])} …` failed: {tail}")
        return done.stdout

    def update(self):
        """Reads the archives' indices."""
        self._apt("apt-get", "-q", "-o", "Acquire::Retries=3", "update")

    def has(self, package, suite):
        """Whether `suite` has `package`."""
        rows = self._apt("apt-cache", "madison", package).splitlines()
        return any(f" {suite}/main " in row for row in rows)

    def depends(self, package, suite):
        """Names that `package` of `suite` depends on directly."""
        out = self._apt("apt-cache", "-o", f"APT::Default-Release={suite}", "depends", "--important", package)
        return re.findall(r"^\s+\|?(?:Pre)?Depends: ([^<>\s]+)", out, re.M)

    def closure(self, packages, suite, into):
        """Downloads `packages` and all they depend on; returns the archives' paths."""
        into = Path(into)
        (into / "partial").mkdir(parents=True, exist_ok=True)
        self._apt(
            "apt-get", "-q", "-y", "-o", "Acquire::Retries=3", "-o", f"Dir::Cache::Archives={into}",
            "-t", suite, "--download-only", "install", *packages,
        )  # fmt: skip
        return sorted(into.glob("*.deb"))

    def only(self, packages, suite, into):
        """Downloads exactly `packages`; returns the archives' paths."""
        Path(into).mkdir(parents=True, exist_ok=True)
        self._apt("apt-get", "-q", "-o", "Acquire::Retries=3", "-t", suite, "download", *packages, cwd=into)
        return sorted(Path(into).glob("*.deb"))


def unpack(archives, root):
    """Unpacks `archives` over each other into `root`, as a merged-/usr system."""
    root = Path(root)
    for d in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / d).mkdir(parents=True, exist_ok=True)
        if not (root / d).is_symlink():
            (root / d).symlink_to(f"usr/{d}")
    for deb in archives:
        tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
        subprocess.run(
            ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)],
            stdin=tar.stdout, check=True, timeout=APT_TIMEOUT,
        )  # fmt: skip
        if tar.wait():
            raise Missing(f"{deb.name} does not unpack")
