"""Build the compiled kernels: one source each, one build per instruction set and scalar type.

Cython translates a kernel once; the C file is then compiled for every (instruction set, dtype)
pair into its own sub-package ``llmcy/_kernels/<isa>_<dtype>/``.  ``llmcy._kernels`` chooses one
instruction set at import.  Flags matter: ``-ffp-contract=off`` keeps every product rounded on its
own, without it compilers fuse on processors that can (docs/numerics.md, section 1).
"""

import os
import platform
import shutil
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("llmcy/_kernels")
FLOAT_KERNELS = [  # built per instruction set and dtype
    "adamw",
    "attention",
    "attention_step",
    "cross_entropy",
    "decode_step",
    "elementary",
    "elementwise",
    "embedding",
    "grad_norm",
    "matmul",
    "peak",
    "reduce",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
]
PLAIN_MODULES = [  # integers and plumbing: one build
    "arrays",
    "bpe_encode",
    "bpe_learn",
    "calls",
    "checksum",
    "compensated",
    "cpu",
    "cr_exact",
    "front",
    "memory",
    "pool",
    "rng",
    "scalars",
]

# Sums in any order and products fused into them: results are then no longer the contract's. Only
# benchmarks/any_order.py builds this, beside the package, to measure what the order costs. The
# variable names the one instruction set to build.
ANY_ORDER = os.environ.get("LLMCY_ANY_ORDER")
ANY_ORDER_FLAGS = ["-DLLMCY_ANY_ORDER", "-ffp-contract=fast"]
ANY_ORDER_SUMS = ["-fassociative-math", "-fno-signed-zeros"]  # exact functions would not survive it
WITHOUT_EXACT_FUNCTIONS = ["elementwise", "embedding", "grad_norm", "matmul", "reduce", "rms_norm"]

FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-pthread"]
AVX2 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx512cd"]
ISA_FLAGS = {
    "x86_64": {
        "sse2": ["-march=x86-64"],
        "avx2": ["-march=x86-64", *AVX2],
        "avx512": ["-march=x86-64", *AVX512, "-mprefer-vector-width=512"],
    },
    "aarch64": {"neon": []},
}.get(
    {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()),
    {"generic": []},
)
DTYPES = {"f64": [], "f32": ["-DLLMCY_F32"]}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": bool(os.environ.get("LLMCY_BOUNDSCHECK")),
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "autotestdict": False,
    "embedsignature": False,
    "freethreading_compatible": True,
}


def extension(name, source, flags=()):
    return Extension(
        name,
        [str(source)],
        include_dirs=[numpy.get_include(), str(KERNELS)],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[*FLAGS, *flags],
        extra_link_args=["-pthread", "-s"] if platform.system() == "Linux" else ["-pthread"],
        depends=[str(p) for p in KERNELS.glob("*.h")],
    )


def copy_if_changed(source, target):
    """Copy, keeping the target's time stamp when nothing changed so that it is not recompiled."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)


def extensions():
    plain = [extension(f"llmcy._kernels.{m}", KERNELS / f"{m}.pyx") for m in PLAIN_MODULES]
    floats = [extension(f"llmcy._kernels.{k}", KERNELS / f"{k}.pyx") for k in FLOAT_KERNELS]
    translated = cythonize(
        plain + floats,
        compiler_directives=DIRECTIVES,
        build_dir="build/c",
        annotate=bool(os.environ.get("LLMCY_ANNOTATE")),
    )
    built = translated[: len(plain)]
    for isa, isa_flags in ISA_FLAGS.items():
        if ANY_ORDER and isa != ANY_ORDER:
            continue
        for dtype, dtype_flags in DTYPES.items():
            package = f"{isa}_{dtype}"
            (KERNELS / package).mkdir(exist_ok=True)
            (KERNELS / package / "__init__.py").touch()
            for kernel in FLOAT_KERNELS:
                copy = Path("build/c") / package / f"{kernel}.c"
                copy_if_changed(Path("build/c") / KERNELS / f"{kernel}.c", copy)
                flags = isa_flags + dtype_flags
                if ANY_ORDER:
                    flags = flags + ANY_ORDER_FLAGS
                    flags += ANY_ORDER_SUMS if kernel in WITHOUT_EXACT_FUNCTIONS else []
                built.append(extension(f"llmcy._kernels.{package}.{kernel}", copy, flags))
    return built


if __name__ == "__main__":
    if ANY_ORDER and "--inplace" in sys.argv:
        sys.exit("LLMCY_ANY_ORDER changes results: benchmarks/any_order.py builds it elsewhere")
    ext_modules = extensions()
    packages = sorted(
        str(p.parent).replace(os.sep, ".") for p in Path("llmcy").rglob("__init__.py")
    )
    setup(
        packages=packages,
        ext_modules=ext_modules,
        package_data={"": ["*.pyi", "py.typed", "*.json"]},
        include_package_data=False,
        options={"build_ext": {"parallel": os.cpu_count()}},
    )
