"""What the smoke test asks of registered operators; run by smoke_child.py, from beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any


def operators(namespaces: list[str]) -> tuple[str, str, Any]:
    """What is registered now, and which libraries are mapped into this process."""
    import torch

    names: list[str] = torch._C._dispatch_get_all_op_names()
    found = sorted({name for name in names if name.split("::")[0] in namespaces})
    mapped = sorted(
        {
            line.split(None, 5)[5].strip()
            for line in Path("/proc/self/maps").read_text().splitlines()
            if ".so" in line
        }
    )
    return "passed", f"{len(found)} registered", {"registered": found, "mapped": mapped}


def schemas(expected: dict[str, str]) -> tuple[str, str, Any]:
    """Compare the schemas that were read from the libraries with those that are registered."""
    import torch

    if not hasattr(torch._C, "parse_schema"):
        return "skipped", "this torch cannot parse schemas", None
    different: list[str] = []
    compared = 0
    for name, text in expected.items():
        namespace, _, rest = name.partition("::")
        short, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), short, None)
        if packet is None:
            # Of a library that is not loaded here.
            continue
        compared += 1
        registered = getattr(packet, overload or "default")._schema
        parsed = torch._C.parse_schema(f"{namespace}::{text}")
        if str(parsed) != str(registered):
            different.append(f"{name}: read {parsed}, registered {registered}")
    if expected and not compared:
        return "skipped", "none of them is registered", None
    return (
        ("failed" if different else "passed"),
        "; ".join(different[:5]) or f"{compared} as read before",
        None,
    )


def kernels(namespaces: list[str]) -> tuple[str, str, Any]:
    """Every operator has a kernel: a schema alone can be looked up, and fails when it is called.

    Where a kernel for meta tensors is registered, calling is left to the check that knows the arguments.
    """
    import torch

    has = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    if has is None:
        return "skipped", "this torch does not tell", None
    counts: dict[str, int] = {}
    without: list[str] = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.split("::")[0] not in namespaces:
            continue
        keys = [key for key in ("CUDA", "CPU", "Meta") if has(name, key)]
        if not keys and has(name, "CompositeImplicitAutograd"):
            keys = ["any device"]
        if not keys:
            without.append(name)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
    if without:
        return "failed", f"registered without a kernel: {', '.join(without[:10])}", None
    if not counts:
        return "skipped", "nothing is registered", None
    return "passed", ", ".join(f"{count} for {key}" for key, count in counts.items()), None


def cpu(namespaces: list[str]) -> tuple[str, str, Any]:
    """Compute what has a CPU kernel, as far as this test knows it."""
    import torch

    has = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    registered = set(torch._C._dispatch_get_all_op_names())
    names = [name for namespace in namespaces if (name := f"{namespace}::rmsnorm") in registered]
    for name in names:
        if has is not None and has(name, "CPU"):
            worst = rmsnorm(getattr(torch.ops, name.split("::")[0]).rmsnorm, "cpu")
            return (
                ("passed" if worst <= 1.0 else "failed"),
                f"{name} within {worst:.2f} of the bf16 bound",
                None,
            )
    return "skipped", "no operator that this test knows has a CPU kernel", None


def meta(namespaces: list[str]) -> tuple[str, str, Any]:
    """Call every operator with meta tensors: it takes what its schema says, and the dispatcher answers.

    Where no kernel for them is registered the call is refused before any code of the wheel runs; where one
    is, it works out shapes or says what it wants. Code that is registered for any device is not called: it
    would take addresses of memory that is not there.
    """
    import torch

    has = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    if has is None:
        return "skipped", "this torch does not tell", None
    counts = Counter[str]()
    wrong: list[str] = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        if namespace not in namespaces or has(name, "CompositeImplicitAutograd"):
            continue
        short, _, overload = rest.partition(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
        kinds = [str(argument.type) for argument in operator._schema.arguments]
        if not any("Tensor" in kind for kind in kinds):
            continue
        try:
            operator(*[example(kind) for kind in kinds])
        except NotImplementedError:  # as torch's dispatcher says that an operator has no kernel for these
            counts["refused by the dispatcher"] += 1
        except Exception as error:
            if has(name, "Meta"):
                counts["answered with what they want"] += 1
            else:
                wrong.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0][:200])
        else:
            if has(name, "Meta"):
                counts["computed"] += 1
            else:
                wrong.append(f"{name} took meta tensors without a kernel for them")
    if wrong:
        return "failed", "; ".join(wrong[:5]), None
    if not counts:
        return "skipped", "no operator takes tensors of one device", None
    return "passed", ", ".join(f"{count} {how}" for how, count in counts.items()), None


def example(kind: str) -> Any:
    """A value of a schema's type, its tensors without memory."""
    import torch

    if kind.startswith("Optional["):
        return None
    if kind.startswith("List["):
        return [example(kind.removeprefix("List[").removesuffix("]"))]
    plain = {"int": 1, "float": 1.0, "bool": False, "str": "", "number": 1}
    return plain[kind] if kind in plain else torch.empty(1, device="meta")


def rmsnorm(operator: Any, device: str) -> float:
    """Largest error against float64, in units of what bfloat16 rounding allows."""
    import torch

    worst = 0.0
    for rows, columns in ((1, 128), (7, 512), (33, 4096)):
        x = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
        weight = torch.rand(columns, device=device, dtype=torch.bfloat16) + 0.5
        values = {"input": x, "weight": weight, "eps": 1e-6, "enable_pdl": False}
        arguments = [argument.name for argument in operator.default._schema.arguments]
        out = torch.full_like(x, float("nan"))
        values |= {name: out for name in arguments if name not in values}
        result = operator(*[values[name] for name in arguments])
        result = out if result is None else result
        wide = x.double()
        expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
        # Two roundings to 8 bits: the product and what it is stored as.
        bound = expected.abs() * 2.0**-7 + 1e-6
        error = ((result.double() - expected).abs() / bound).nan_to_num(nan=float("inf")).max().item()
        worst = max(worst, error)
    return worst
