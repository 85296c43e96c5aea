"""What can go wrong before a kernel runs; the messages give the reason in one sentence."""


class BuildError(OSError):
    """The kernels could not be compiled or loaded."""


class UnusableLibrary(BuildError):
    """A library in the cache is missing or not as it was compiled; it must be compiled again."""


class LoadFailed(BuildError):
    """The system refused to load a library that is as it was compiled."""


class DiskFull(BuildError):
    """There is no space for the library or for the files of its compilation."""
