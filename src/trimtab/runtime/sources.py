"""Real Python text for the coding workload: the standard library's own sources, which every installation has."""

import sysconfig
from pathlib import Path
from typing import Final

MODULES: Final = (
    "asyncio/locks.py",
    "asyncio/queues.py",
    "bisect.py",
    "calendar.py",
    "cmd.py",
    "code.py",
    "collections/__init__.py",
    "configparser.py",
    "difflib.py",
    "dis.py",
    "email/message.py",
    "fractions.py",
    "ftplib.py",
    "heapq.py",
    "http/cookiejar.py",
    "imaplib.py",
    "mailbox.py",
    "optparse.py",
    "pstats.py",
    "queue.py",
    "sched.py",
    "shelve.py",
    "shlex.py",
    "smtplib.py",
    "socketserver.py",
    "statistics.py",
    "tarfile.py",
    "tempfile.py",
    "textwrap.py",
    "threading.py",
    "trace.py",
    "unittest/case.py",
    "urllib/request.py",
    "wave.py",
    "weakref.py",
    "xml/dom/minidom.py",
)


class SourcesError(RuntimeError):
    """The standard library's sources are not there; the message names the file."""


def standard_library(folder: Path | None = None) -> dict[str, str]:
    """Return file name to whole text for a fixed list of modules; raises `SourcesError`.

    `folder`: where the library lies, by default that of the running Python.
    """
    where = folder or Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for name in MODULES:
        path = where / name
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourcesError(
                f"the coding workload is made from {path}, which cannot be read ({error});"
                " install Python with its library's sources"
            ) from error
    return texts
