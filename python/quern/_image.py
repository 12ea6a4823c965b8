"""Pictures for models that see."""

import ctypes
from typing import Any, Tuple, Union

from ._library import call, lib, new
from ._objects import Handle, make, run
from ._values import PathLike, path_bytes


class Image(Handle):
    """A picture (PNG, JPEG, WebP): the path of a file, or with Image.read() its bytes. A chat that
    was given it keeps it. Threads may share it."""

    _what = "image"

    def __init__(self, path: PathLike) -> None:
        self._create(lib.qn_image_open, path_bytes("path", path))

    @classmethod
    def read(cls, data: Union[bytes, bytearray, memoryview]) -> "Image":
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        made, kept = cls.__new__(cls), bytes(data)
        made._create(lib.qn_image_create, kept, len(kept))
        return made

    def _create(self, create: Any, *arguments: Any) -> None:
        def work() -> Any:
            return make("qn_image", create, lib.qn_image_destroy, *arguments, None)

        self._resource = run(work, lambda: None)  # files are bounded, and so is the time

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height, as it is seen."""
        image, info = self._use(), new("qn_image_info")
        call(lib.qn_image_get_info, ctypes.byref(info), image.pointer)
        return info.width, info.height
