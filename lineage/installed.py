"""What is installed, by the folders that installers leave beside packages (``NAME-VERSION.dist-info``).

`importlib.metadata` answers the same questions, but to load it, and to let it read every package's files, takes 30 ms
of each command. It is asked only where names do not tell: for an older form of folder, an archive on the path or a
finder of another's, and when some package does offer something.
"""

import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def _folders() -> tuple[dict[str, str], bool]:
    """A package's name -> its folder, the first on the path; and whether there are others that names do not tell of."""
    odd = any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path)
    found, others = _looked_up(tuple(dict.fromkeys(sys.path)))
    return found, others or odd


@cache
def _looked_up(path: tuple[str, ...]) -> tuple[dict[str, str], bool]:
    found: dict[str, str] = {}
    others = False
    for place in path:
        try:
            names = sorted(os.listdir(place or "."))
        except NotADirectoryError:
            others = True
        except OSError:
            continue
        else:
            for name in names:
                if name.endswith(".dist-info"):
                    found.setdefault(_spelled(name.partition("-")[0]), os.path.join(place, name))
                elif name.endswith((".egg-info", ".egg")):
                    others = True
    return found, others


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def version(package: str) -> str | None:
    """The version of an installed package; None if there is none."""
    folders, others = _folders()
    folder = folders.get(_spelled(package))
    if folder:
        return os.path.basename(folder).removesuffix(".dist-info").partition("-")[2]
    if not others:
        return None
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def offered(group: str) -> Iterable["EntryPoint"]:
    """The entry points of a group, of all packages."""
    folders, others = _folders()
    return _entries(group) if others or any(group in text for text in _texts(tuple(folders.values()))) else ()


@cache
def _entries(group: str) -> Iterable["EntryPoint"]:
    from importlib.metadata import entry_points

    return entry_points(group=group)


@cache
def _texts(folders: tuple[str, ...]) -> list[str]:
    texts = []
    for folder in folders:
        try:
            with open(f"{folder}/entry_points.txt", encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        except OSError:
            continue
    return texts
