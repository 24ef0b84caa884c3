"""numpy, loaded when something of it is first used: tables of rules name operations long before any of them runs."""

from typing import Any


class _Later:
    def __getattr__(self, name: str) -> Any:
        import numpy

        return getattr(numpy, name)


np: Any = _Later()
