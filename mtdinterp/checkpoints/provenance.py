"""The provenance of a page of results: its command, software versions and models.

The page shows it under its title, and a test compares it with the models that ship with the
package.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.checkpoints.load import load_checkpoint
from mtdinterp.checkpoints.save import versions

RECORD = re.compile(r"^    ([0-9a-f]{64})  (\S+)$", re.MULTILINE)
"""A line with the SHA-256 and the name of what was measured."""


@dataclass(frozen=True)
class Provenance:
    """The command and the versions behind a page of results, and what it was measured on."""

    command: str
    """What to type to make the page again."""
    versions: Mapping[str, str]
    """The software that the numbers depend on, by name."""
    weights: Mapping[str, str]
    """SHA-256 of the weights of each model, by the model's name."""

    def markdown(self) -> list[str]:
        """The paragraphs to show under the title of the page."""
        software = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        paragraphs = [f"Made by `{self.command}` with {software}."]
        if self.weights:
            summary = f"SHA-256 of the weights of the {len(self.weights)} models measured"
            records = [f"    {digest}  {name}" for name, digest in self.weights.items()]
            paragraphs += [
                f"<details>\n<summary>{summary}</summary>",
                "\n".join(records),
                "</details>",
            ]
        return paragraphs


def provenance_of(command: str, models: Iterable[str] | Mapping[str, Path] = ()) -> Provenance:
    """The provenance of something that is measured now.

    Args:
        command: what makes the page.
        models: the measured models: their names in the zoo, or their checkpoints by name.

    Returns:
        The command, the installed versions and the digests of the models' weights.
    """
    paths = models if isinstance(models, Mapping) else {name: name for name in models}
    weights = {name: weights_digest(path) for name, path in paths.items()}
    return Provenance(command, versions(), weights)


def weights_digest(source: str | Path) -> str:
    """SHA-256 of the weights of a checkpoint, or of a model of the zoo by its name."""
    return tensors_digest(load_checkpoint(source).model.state_dict())


def recorded_weights(page: str) -> dict[str, str]:
    """The digests that a page of results records, by the models' names.

    Args:
        page: the text of the page.

    Returns:
        Digests by name; empty if the page records none.
    """
    return {name: digest for digest, name in RECORD.findall(page)}
