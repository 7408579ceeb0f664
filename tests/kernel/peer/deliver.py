"""Brings files into a guest, by its network."""

import functools
import http.server
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def into(guest, binary, path):
    """Copies a program to `path` in the guest, unless it is there."""
    if guest.run(f"test -x {path} && echo there || true").strip() == "there":
        return
    with tempfile.TemporaryDirectory(prefix="longhaul-deliver-") as work:
        copy = Path(work) / "program"
        shutil.copy(binary, copy)
        # Symbols are most of its size, and the way in is slow.
        subprocess.run(["strip", str(copy)], check=False)
        handler = functools.partial(Silent, directory=work)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://10.0.2.2:{server.server_address[1]}/program"
            guest.run(f"busybox wget -q -O {path} {url} && chmod +x {path}")
            server.shutdown()
