"""Files and directories that survive a kill at any moment, and a loss of power.

`calls` holds every file-system call that changes something, `files` replaces one file, and
`directories` replaces a whole directory. Nothing heavy is imported here.
"""

from mtdinterp.storage.directories import (
    InUse,
    locked,
    publish,
    publish_new,
    read_version,
    remove_tree,
    settled,
    staged,
)
from mtdinterp.storage.files import (
    AlreadyThere,
    UnwritableFile,
    remove_unfinished,
    write_file,
    write_new_file,
)

__all__ = [
    "AlreadyThere",
    "InUse",
    "UnwritableFile",
    "locked",
    "publish",
    "publish_new",
    "read_version",
    "remove_tree",
    "remove_unfinished",
    "settled",
    "staged",
    "write_file",
    "write_new_file",
]
