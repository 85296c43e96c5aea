"""A small cache of recently used values."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The `most` most recently used values, by key."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key; if it is not cached, `make` computes it."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]
