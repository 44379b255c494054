"""Whether this process may open another file or connection, and what to do where it may not."""

import errno
import os
from typing import Final

ADVICE: Final = (
    "this process has no file handles left; raise its limit (ulimit -n, or LimitNOFILE of systemd), or look for what "
    "keeps files open in it"
)


_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})


def are_left() -> bool:
    """Try it. Libraries that could not connect do not always say why."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in _NONE_LEFT
    return True


def are_wanting(error: Exception) -> bool:
    """Tell whether an error is for want of handles: it says so, or there are none."""
    return (isinstance(error, OSError) and error.errno in _NONE_LEFT) or not are_left()
