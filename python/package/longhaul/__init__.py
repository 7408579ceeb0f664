"""Storage on remote machines at the speed of the link, from Python.

``open`` gives a device as a file, ``cp`` copies trees of files, and
``longhaul.fsspec`` makes file systems in pools usable by everything that takes
URLs of fsspec (``longhaul://POOL/NAME/PATH``).

Offsets, lengths and sizes are in bytes, times in seconds, rates in bits a
second. All calls that wait release the interpreter's lock. Errors are
``longhaul.Error``, with the words of the command line; wrong paths of files
give Python's own ``FileNotFoundError`` and its like.
"""

from ._copy import CopySummary, cp
from ._errors import Error
from ._file import File, open
from ._native import __version__

__all__ = ["CopySummary", "Error", "File", "__version__", "cp", "open"]
