"""How kernels are compiled, with a cache that may be missing, torn, full, stale or raced for."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from weightstore.codec import floats, kernels, lanes, numba_bits

if getattr(numba.config, "DISABLE_JIT", False):
    # The vector instructions have no Python body; the NumPy kernels take over.
    raise ImportError("numba's compiler is switched off")

SHARED_MODULES = (floats, kernels, lanes, numba_bits)
"""Where kernels take constants and instructions from."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a kernel for each kind of arguments it meets, without the GIL while it runs.

    The machine code is cached beside the module or in the user's cache folder. Where neither
    can be written numba refuses at decoration; the kernel is then compiled anew per process.
    """
    try:
        dispatcher: Any = numba.njit(nogil=True, cache=True)(function)
        cache = dispatcher._cache  # noqa: SLF001 -- no public way
        cache._cache_file = _KernelFiles(  # noqa: SLF001 -- no public way
            cache._cache_file,  # noqa: SLF001 -- no public way
            _fingerprint(function),
        )
        cache.load_overload = _or_none(cache.load_overload)
        cache.save_overload = _or_none(cache.save_overload)
    except (RuntimeError, AttributeError, OSError):
        return cast("_Function", numba.njit(nogil=True)(function))
    return cast("_Function", dispatcher)


class _KernelFiles:
    """The files of one kernel's cache: one for each key, and no index.

    numba's own index has two faults that end in wrong machine code. It goes by the time and
    size of the kernel's file alone, so a constant that moved in another module leaves old code
    in use. And two processes that compile the same kernel for different arguments at once
    both take the same file for their code: the index may then name the other's.

    Args:
        files: numba's object, for its way to read and write a file.
        fingerprint: Of everything that the machine code is made from.

    Raises:
        AttributeError: this release of numba keeps its cache in another way.
    """

    def __init__(self, files: Any, fingerprint: str) -> None:  # noqa: ANN401 -- numba's own
        self._read = files._load_data  # noqa: SLF001 -- no public way
        self._write = files._save_data  # noqa: SLF001 -- no public way
        self._base = files._index_name.removesuffix(".nbi")  # noqa: SLF001 -- no public way
        self._fingerprint = fingerprint

    def load(self, key: object) -> Any:  # noqa: ANN401 -- numba's own signature
        """Give the code of a key, or None."""
        stored_key, data = self._read(self._name(key))
        return data if stored_key == str(key) else None

    def save(self, key: object, data: object) -> None:
        """Keep the code of a key."""
        self._write(self._name(key), (str(key), data))

    def _name(self, key: object) -> str:
        """Name the file of a key: argument types, processor and source are all in it."""
        digest = hashlib.sha256(f"{numba.__version__} {self._fingerprint} {key}".encode())
        return f"{self._base}.{digest.hexdigest()[:32]}.nbc"


def _fingerprint(function: Callable[..., Any]) -> str:
    """Hash the source that the machine code of a kernel depends on.

    Raises:
        OSError: there is no source.
    """
    own = sys.modules.get(function.__module__)
    sources = [inspect.getsource(module) for module in (*SHARED_MODULES, own or function)]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def _or_none(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Let a cache that cannot be read or written be as none; None means that to numba.

    numba writes its files without fsync and reads them without a check: a torn file would
    stop every later start, and a full disk the first put.
    """

    def forgiving(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- numba's own signature
        try:
            return operation(*args, **kwargs)
        except Exception:  # noqa: BLE001 -- a torn pickle can raise anything; compile instead
            return None

    return forgiving
