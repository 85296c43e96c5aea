"""Which plugins provide a checkpoint's task and architecture: recorded, named and compared.

Nothing is imported because a checkpoint names it; the names are only shown.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtdinterp import registry
from mtdinterp.providers import PluginWarning

PLUGIN_NAME = re.compile(r"[A-Za-z0-9._+!-]{1,80}")
"""What a plugin's file name, distribution name or version may look like in an error message."""


def plugins_of(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The plugins without which a checkpoint cannot be loaded, by kind.

    Args:
        config: the contents of config.json, with a task and an architecture that are registered.

    Returns:
        What config.json records about each; empty if all is built in.
    """
    providers = {
        "task": registry.TASKS.provider(config["task"].get("kind", "")),
        "architecture": registry.ARCHITECTURES.provider(config["model"]["architecture"]),
    }
    return {kind: found.to_dict() for kind, found in providers.items() if found is not None}


def written_with(config: Mapping[str, Any], kind: str) -> str:
    """The plugin that a checkpoint says it needs, as a sentence; empty if it names none.

    The names come from an untrusted file, so they are only shown, and only if they look like names.
    """
    recorded = config.get("plugins")
    plugin = recorded.get(kind) if isinstance(recorded, dict) else None
    if not isinstance(plugin, dict):
        return ""
    name = plugin.get("name")
    if not isinstance(name, str) or not PLUGIN_NAME.fullmatch(name):
        return ""
    if plugin.get("sha256"):
        return (
            f" It was written with the plugin file {name}; if you trust that file, load it with "
            "--plugin"
        )
    version = plugin.get("version")
    if not isinstance(version, str) or not PLUGIN_NAME.fullmatch(version):
        version = ""
    package = f"{name} {version}".strip()
    return f" It was written with {package}; if you trust that package, install it"


def warn_of_other_plugins(source: Path, config: Mapping[str, Any]) -> None:
    """Say if a plugin is not the version of the plugin that a checkpoint was written with.

    Args:
        source: the checkpoint's directory.
        config: the contents of config.json.
    """
    recorded = config.get("plugins")
    if not isinstance(recorded, dict):
        return
    for kind, current in plugins_of(config).items():
        if kind in recorded and recorded[kind] != current:
            warnings.warn(
                f"{source}: {current['name']} is not the same as when this checkpoint was written, "
                f"so its {kind} may have changed",
                PluginWarning,
                stacklevel=3,
            )
