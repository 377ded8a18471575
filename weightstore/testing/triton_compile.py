"""Every Triton kernel as machine code of a GPU that need not be there. Run it as a module.

The interpreter shows which bits a kernel gives; this shows that the compiler takes it.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weightstore.codec.lanes import MASK_64
from weightstore.receiver import triton_kernels
from weightstore.trainer import triton_detect

_BITS = {1: "*u8", 2: "*i16", 4: "*i32", 8: "*i64"}
_WARP_SIZE = 32
_BLOCK = {"block": 1024}

_Case = tuple[Any, dict[str, str], dict[str, int]]
"""A kernel, the types of its arguments, and its constants."""


def cases(width: int) -> list[_Case]:
    """Kernels for units of a width, with sizes of 32 and of 64 bits, and dims of size 1."""
    bits = _BITS[width]
    mask = -1 if width == max(_BITS) else (MASK_64 >> 64 - 8 * width)
    gather = dict.fromkeys(("flat", "words", "old_bits", "new_bits"), bits)
    gather |= {"places": "*i64", "count": "i32"}
    scatter = dict.fromkeys(("flat", "old_bits", "new_bits"), bits)
    scatter |= dict.fromkeys(("block_starts", "block_firsts", "strange"), "*i64")
    scatter |= {"offsets": "*i16"}
    detect = {"old": bits, "new": bits, "unit_count": "i32"}
    compact = {"firsts": "*i64", "positions": "*i32", "old_bits": bits, "new_bits": bits}
    return [
        *(
            (triton_kernels._gather_combine, gather, {"combine": code, **_BLOCK})  # noqa: SLF001 -- the kernel itself
            for code in range(4)
        ),
        *(
            (triton_kernels._scatter_compare, scatter, {"redo": redo, **_BLOCK})  # noqa: SLF001 -- likewise
            for redo in (False, True)
        ),
        _lanes_case(bits, "i64", {"dim_count": 3, "unit_mask": mask}),
        _lanes_case(bits, "i32", {"dim_count": 2, "unit_mask": mask, "size_1": 1, "stride_0": 0}),
        _lanes_case(bits, "i32", {"dim_count": 1, "unit_mask": mask, "size_1": 1, "size_2": 1}),
        (triton_detect._count, {**detect, "counts": "*i32"}, _BLOCK),  # noqa: SLF001 -- likewise
        (triton_detect._compact, {**detect, **compact}, _BLOCK),  # noqa: SLF001 -- likewise
    ]


def _lanes_case(bits: str, size: str, constants: dict[str, int]) -> _Case:
    names = ["unit_count", "base", "first_index", "size_1", "size_2"]
    names += [f"{kind}_{dim}" for kind in ("stride", "index_stride") for dim in range(3)]
    types = {"flat": bits, "sums": "*i64", **dict.fromkeys(names, size)}
    return triton_kernels._lanes, types, {**constants, **_BLOCK}  # noqa: SLF001 -- the kernel itself


def compile_all(capability: int, widths: list[int]) -> int:
    """Compile all kernels for a CUDA device of a capability; the number of programs."""
    target = GPUTarget("cuda", capability, _WARP_SIZE)
    found = [case for width in widths for case in cases(width)]
    for kernel, types, constants in found:
        signature = types | dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=target, options={"enable_fp_fusion": False})
        assert compiled.asm["cubin"]
    return len(found)


def main() -> None:
    """Compile for a capability (90 is Hopper) and some widths, and say how many."""
    capability, *widths = (int(argument) for argument in sys.argv[1:])
    sys.stdout.write(f"{compile_all(capability, widths)} programs\n")


if __name__ == "__main__":
    main()
