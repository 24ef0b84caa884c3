"""Specs, converters and the command line stand at a checkout's top; in a wheel they are parts of `lineage`."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("specs", "converters", "cli.py")


class InsidePackage(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":  # an editable wheel points at the checkout instead
            build_data["force_include"] |= {part: f"lineage/{part}" for part in PARTS}
