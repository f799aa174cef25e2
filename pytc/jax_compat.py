"""Every use of JAX that is not plain public `jax.*`, with the versions it is for.

Nothing here imports a private module of JAX. What JAX 0.10 to 0.12 offer in `jax.extend.core` and
`jax.interpreters.partial_eval` is less stable than the rest of its API; whoever ports pytc to the next
release starts, and should be able to stop, at this file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import math
import operator
import os
import pathlib
import platform
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe
from jax.tree_util import PyTreeDef

T = TypeVar("T")

AbstractValue: TypeAlias = Any
"""A `ShapedArray` or an `AbstractRef`; JAX exports no precise public type."""

# Up to JAX 0.11 a ClosedJaxpr pairs a Jaxpr with its consts; from 0.12 on both names are one class. On either,
# `closed.jaxpr` has invars, outvars, eqns and constvars, and `closed.consts` the values of the constvars.
Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
JaxprEqn = jex_core.JaxprEqn
Literal = jex_core.Literal
Var = jex_core.Var
DropVar = jex_core.DropVar
Primitive = jex_core.Primitive
Tracer = jax.core.Tracer

# What `jit`'s equations hold where no sharding was asked for.
_UNSPECIFIED = inspect.signature(jax.jit).parameters["in_shardings"].default


config: Any = jax.config
_find_top_trace: Any = jex_core.find_top_trace


@functools.cache
def is_extended(dtype: Any) -> bool:
    """Whether it is a dtype of JAX's own, such as that of PRNG keys, whose arrays wrap another array."""
    dtypes: Any = jax.dtypes
    return bool(dtypes.issubdtype(dtype, dtypes.extended))


def nbytes(aval: AbstractValue) -> int:
    """The bytes of an array of this shape and dtype. PRNG keys count the array of bits that they wrap."""
    shape, dtype = aval.shape, aval.dtype
    if is_extended(dtype):
        bits, _ = key_bits(aval)
        shape, dtype = bits.shape, bits.dtype
    if dtype == jax.dtypes.float0:
        return 0
    return int(math.prod(shape) * np.dtype(dtype).itemsize)


def key_bits(aval: AbstractValue) -> tuple[Any, Any]:
    """The type of the bits that PRNG keys of this type wrap, and the keys' implementation."""
    found: list[Any] = []

    def bits(keys: Any) -> Any:
        found.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    keys: Any = jax.ShapeDtypeStruct(aval.shape, aval.dtype)  # type: ignore[no-untyped-call]
    return jax.eval_shape(bits, keys), found[0]


def dce(jaxpr: Jaxpr, used_outputs: Sequence[bool], keep: Sequence[bool] | bool = False) -> tuple[Jaxpr, list[bool]]:
    """JAX's own dead-code elimination: the jaxpr without what only the unused outputs needed, and which invars it
    still reads. Those of `keep` stay, read or not."""
    return pe.dce_jaxpr(jaxpr, list(used_outputs), keep if isinstance(keep, bool) else list(keep))


DCE_NARROWS_WHILE = jex_core.primitives.while_p in pe.dce_rules
"""Whether JAX's dead-code elimination looks into `while` loops. From some version after 0.10 on it does."""


def like(eqn: JaxprEqn, *, invars: Sequence[Any], outvars: Sequence[Var], params: dict[str, Any]) -> JaxprEqn:
    """The equation with other operands, results and parameters, and the effects that follow from these."""
    abstract_eval: Any = eqn.primitive.abstract_eval
    _, effects = abstract_eval(*(v.aval for v in invars), **params)
    return jex_core.new_jaxpr_eqn(list(invars), list(outvars), eqn.primitive, params, effects, eqn.source_info, eqn.ctx)


with jax.ensure_compile_time_eval():
    _EvalTrace = type(_find_top_trace(None))


def _kinds_of_nodes(tree: PyTreeDef) -> set[int]:
    """JAX's numbers for the kinds of nodes in a tree: `PyTreeDef.__getstate__`, as of JAX 0.10 to 0.12."""
    _, nodes = tree.__getstate__()
    return {node[0] for node in nodes}


class _Named(NamedTuple):
    leaf: int


def _kinds_of_plain_nodes() -> set[int]:
    try:
        return _kinds_of_nodes(jax.tree.structure([(_Named(0), None), {"": 0}]))
    except (AttributeError, TypeError, ValueError, IndexError):
        return set()


_PLAIN_NODES = _kinds_of_plain_nodes()


def is_plain_tree(tree: PyTreeDef) -> bool:
    """Whether a tree consists of what JAX itself takes apart, item by item: tuples, lists, dicts, None and named tuples
    that are not registered as anything else. False where JAX does not tell."""
    return bool(_PLAIN_NODES) and _kinds_of_nodes(tree) <= _PLAIN_NODES


def executing() -> bool:
    """Whether an operation done now is executed, rather than recorded by a transformation."""
    return type(_find_top_trace(None)) is _EvalTrace


def inside_a_map() -> bool:
    """Whether the code being traced is one device's part of a `shard_map` or `pmap`."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes)


def short(aval: AbstractValue) -> str:
    """`f32[8,128]`."""
    return str(aval.str_short(short_dtypes=True))


def inner(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    """The open jaxpr in a parameter that holds one or the other."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def subjaxprs(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs among an equation's parameters."""
    for sub in jex_core.jaxprs_in_params(eqn.params):
        yield inner(sub)


def split_scan(eqn: JaxprEqn, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """What stands at a scan's operands, as (consts, initial carry, scanned)."""
    if "num_consts" in eqn.params:  # up to JAX 0.11
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    else:
        consts, carry = (len(part) for part in eqn.params["ft_in"].unpack()[:2])
    return list(values[:consts]), list(values[consts : consts + carry]), list(values[consts + carry :])


def split_while(eqn: JaxprEqn, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """What stands at a while loop's operands, as (consts of the condition, consts of the body, initial carry)."""
    cond, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    return list(values[:cond]), list(values[cond : cond + body]), list(values[cond + body :])


def input_names(jaxpr: Jaxpr) -> list[str]:
    """What JAX calls the invars in its messages."""
    names = list(jaxpr.debug_info.arg_names or ())
    return [name or "" for name in names] if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


def with_inputs(
    closed: ClosedJaxpr,
    *,
    constants: Sequence[tuple[Var, Any]],
    invars: Sequence[Var],
    names: Sequence[str],
    eqns: Sequence[JaxprEqn] | None = None,
) -> ClosedJaxpr:
    """The jaxpr with other constvars and invars, and other equations if given."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        Jaxpr(
            [var for var, _ in constants],
            list(invars),
            jaxpr.outvars,
            jaxpr.eqns if eqns is None else list(eqns),
            jaxpr.effects,
            jaxpr.debug_info._replace(arg_names=tuple(names)),
        ),
        [value for _, value in constants],
    )


def lift_inner_consts(closed: ClosedJaxpr, wanted: Callable[[Any], bool] = lambda value: True) -> ClosedJaxpr:
    """Consts of inner `jit`s, and of `jit`s in those, as consts of the whole, if they are `wanted`; one for each array.

    Tracing leaves what an inner `jit`ted function captured inside its equation.
    """
    jaxpr = closed.jaxpr
    known = {id(value): var for var, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    eqns, lifted = _lift(jaxpr.eqns, known, wanted)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return closed
    constants = [*zip(jaxpr.constvars, closed.consts, strict=True), *lifted]
    return with_inputs(closed, constants=constants, invars=jaxpr.invars, names=input_names(jaxpr), eqns=eqns)


def _lift(
    eqns: Sequence[JaxprEqn], known: dict[int, Var], wanted: Callable[[Any], bool]
) -> tuple[list[JaxprEqn], list[tuple[Var, Any]]]:
    """The equations with the `wanted` consts of their `jit`s made operands: a var of `known` (by the array's identity)
    or one of those returned."""
    changed, lifted = [], []
    for eqn in eqns:
        if eqn.primitive is jex_core.primitives.jit_p:
            body = eqn.params["jaxpr"]
            consts = list(zip(body.jaxpr.constvars, body.consts, strict=True))
            inner_eqns, constants = _lift(body.jaxpr.eqns, {id(v): var for var, v in consts}, wanted)
            constants = [*((var, v) for var, v in consts if wanted(v)), *constants]
            if constants:
                operands = []
                for inner_var, value in constants:
                    if id(value) not in known:
                        known[id(value)] = Var(inner_var.aval)
                        lifted.append((known[id(value)], value))
                    operands.append(known[id(value)])
                body = with_inputs(
                    body,
                    constants=[(var, v) for var, v in consts if not wanted(v)],
                    invars=[*(var for var, _ in constants), *body.jaxpr.invars],
                    names=[""] * len(constants) + input_names(body.jaxpr),
                    eqns=inner_eqns,
                )
                eqn = _with_leading_operands(eqn, body, operands)
        changed.append(eqn)
    return changed, lifted


def _with_leading_operands(eqn: JaxprEqn, body: ClosedJaxpr, operands: Sequence[Var]) -> JaxprEqn:
    """A `jit` equation with more operands, before those that it has, and the body that takes them."""
    n = len(operands)
    params = dict(
        eqn.params,
        jaxpr=body,
        in_shardings=(_UNSPECIFIED,) * n + tuple(eqn.params["in_shardings"]),
        in_layouts=(None,) * n + tuple(eqn.params["in_layouts"]),
        donated_invars=(False,) * n + tuple(eqn.params["donated_invars"]),
    )
    replaced: JaxprEqn = eqn.replace(invars=[*operands, *eqn.invars], params=params)
    return replaced


def private_copy(array: jax.Array) -> jax.Array:
    """A copy in memory of its own, placed alike.

    Made by the runtime, with no compiled program. An array that no process sees whole is copied shard by shard, so
    that no other process need take part.
    """
    if array.is_fully_addressable:
        copy: jax.Array = jax.device_put(array, array.sharding if array.committed else None, may_alias=False)
        return copy
    shards = [jax.device_put(s.data, s.device, may_alias=False) for s in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def snapshot(value: Any, aval: AbstractValue) -> Any:
    """A captured value as it is now: a copy on the device, unless it is a `jax.Ref`, which is meant to change."""
    if isinstance(value, jax.Ref):
        return value
    if isinstance(value, jax.Array):
        return private_copy(value)
    return jax.numpy.array(np.asarray(value), dtype=aval.dtype)


def place_with(captured: Any, leaves: Sequence[Any]) -> Any:
    """A captured array on the devices of the committed arguments among `leaves`, as a constant would be.

    Arrays that are on those devices already, and all where no argument is committed, are left as they are.
    """
    home = next((leaf.sharding for leaf in leaves if leaf.sharding is not None), None)
    if home is None or not isinstance(captured, jax.Array) or captured.sharding.device_set == home.device_set:
        return captured
    if isinstance(home, jax.sharding.NamedSharding):
        everywhere: Any = jax.P
        return jax.device_put(captured, jax.NamedSharding(home.mesh, everywhere()))
    return jax.device_put(captured, home)


def debugging() -> bool:
    """Whether JAX may run a failed call again, operation by operation, on the same arguments."""
    return bool(config.jax_debug_nans or config.jax_debug_infs)


def device_of(shardings: Iterable[Any]) -> jax.Device:
    """The device that arrays placed like these live on, one of several alike; JAX's default where none says."""
    for sharding in shardings:
        if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
            continue  # it has a shape, and no devices
        for device in getattr(sharding, "device_set", ()):
            found: jax.Device = device
            return found
    default = config.jax_default_device
    if isinstance(default, jax.Device):
        return default
    return jax.devices(default)[0]


def compiler_of(device: jax.Device) -> list[str]:
    """What the compiler's output for this device depends on besides the program and its options."""
    client = getattr(device, "client", None)
    return [
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        str(getattr(client, "platform_version", "")),
        platform.machine(),
        device.platform,
        device.device_kind,
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
    ]


def compilation_cache_dir() -> pathlib.Path | None:
    """The folder of JAX's compilation cache, if that is on and on a file system."""
    folder = config.jax_compilation_cache_dir
    if not folder or "://" in str(folder) or not config.jax_enable_compilation_cache:
        return None
    return pathlib.Path(folder)


def is_plain_array(value: Any) -> bool:
    """Whether it is an array whose buffer a program can take over: no `jax.Ref`, no PRNG key (which wraps another
    array that may be held elsewhere), no NumPy data."""
    return isinstance(value, jax.Array) and not is_extended(value.dtype)


def close(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr with values for its constvars."""
    return ClosedJaxpr(jaxpr, list(consts))


def is_plain_jit(eqn: JaxprEqn) -> bool:
    """Whether an inner `jit` only groups equations: no shardings, layouts, mesh, donation or compiler options."""
    params = eqn.params
    return (
        all(s is _UNSPECIFIED for s in (*params["in_shardings"], *params["out_shardings"]))
        and all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
        and params["ctx_mesh"].empty
        and str(getattr(params["inline"], "value", params["inline"])) in ("False", "True", "auto", "jax_late")
        and eqn.ctx.compute_type is None
        and not eqn.ctx.xla_metadata
    )


def inlined_late(eqn: JaxprEqn) -> bool:
    """Whether JAX emits the body of this inner `jit` where it stands, rather than a call: what `inline=True` means from
    JAX 0.12 on."""
    return getattr(eqn.params["inline"], "value", "") == "jax_late"


@contextlib.contextmanager
def unusable_donations_ignored() -> Iterator[None]:
    """No warning from JAX about donated buffers that it found no use for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def given_away(lowered: jax.stages.Lowered) -> list[bool]:
    """For each argument of a lowered program whether a call deletes it: where an output is to be written into it, and
    where it is XLA's to write something into."""
    module: Any = lowered.compiler_ir()
    main = next(each for each in module.body.operations if str(each.attributes["sym_name"]) == '"main"')
    count = len(main.regions[0].blocks[0].arguments)
    if "arg_attrs" not in main.attributes:
        return [False] * count
    named = [{each.name for each in attributes} for attributes in main.attributes["arg_attrs"]]
    return [bool(names & {"tf.aliasing_output", "jax.buffer_donor"}) for names in named]


def with_outputs(closed: ClosedJaxpr, order: Sequence[int]) -> ClosedJaxpr:
    """The jaxpr with its outputs in another order."""
    jaxpr = closed.jaxpr
    outvars = [jaxpr.outvars[i] for i in order]
    info = jaxpr.debug_info._replace(result_paths=None)
    ordered = Jaxpr(jaxpr.constvars, jaxpr.invars, outvars, jaxpr.eqns, jaxpr.effects, info)
    return ClosedJaxpr(ordered, closed.consts)


def alike(one: AbstractValue, other: AbstractValue) -> bool:
    """Whether two types differ in weak type at most."""
    return bool(one == other or (not is_ref(one) and one.strip_weak_type() == other.strip_weak_type()))


@functools.cache
def home(primitive: Primitive) -> str:
    """The top-level package that defined a primitive: `jax` for JAX's own."""
    # What was given to `def_abstract_eval` is in the closure of what JAX made of it.
    todo: list[Any] = [primitive.abstract_eval]
    while todo:
        function = todo.pop()
        if isinstance(function, functools.partial):
            todo += [function.func, *function.args]
        elif callable(function) and not isinstance(function, type):
            package = str(getattr(function, "__module__", "jax")).partition(".")[0]
            if package not in ("jax", "jaxlib", "functools"):
                return package
            todo += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return "jax"


def retyped(eqn: JaxprEqn, value: Var | Literal, out: Var) -> JaxprEqn:
    """An equation in the place of `eqn` that binds `value` to `out`, which differs from it in weak type alone. XLA
    sees nothing of it."""
    aval: AbstractValue = out.aval
    params = {"new_dtype": aval.dtype, "weak_type": aval.weak_type, "sharding": None}
    primitive = jex_core.primitives.convert_element_type_p
    result: JaxprEqn = eqn.replace(
        invars=[value], outvars=[out], primitive=primitive, params=params, effects=jex_core.no_effects
    )
    return result


def trace_rule(eqn: JaxprEqn, rule: Callable[..., Any], known: Mapping[Var, Any] | None = None) -> ClosedJaxpr:
    """The jaxpr of `rule` called as the equation's primitive is, with values for literals and the vars of `known`."""
    values = {i: v.val if isinstance(v, Literal) else (known or {}).get(v) for i, v in enumerate(eqn.invars)}

    def flat(*operands: Any) -> list[Any]:
        given = [operand if values[i] is None else values[i] for i, operand in enumerate(operands)]
        results = rule(*given, **eqn.params)
        return list(results) if eqn.primitive.multiple_results else [results]

    with eqn.ctx.manager:
        return jax.make_jaxpr(flat)(*(v.aval for v in eqn.invars))


def expanded(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """What JAX lowers in the place of a `HiPrim`, which JAX 0.12 makes some of its functions of (`jnp.searchsorted`);
    None where types of its own go in or out."""
    primitive: Any = eqn.params["_prim"]
    if not all(hasattr(v.aval, "dtype") and not is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return None

    def flat(*operands: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, operands)))

    mesh: Any = eqn.ctx.cur_abstract_mesh
    axes = [(name, mesh.shape[name]) for name in mesh.manual_axes]
    with eqn.ctx.manager:
        return jax.make_jaxpr(flat, axis_env=axes)(*(v.aval for v in eqn.invars))


def evaluate(closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """The jaxpr's results, computed or traced one equation after another."""
    return list(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands))


def check(closed: ClosedJaxpr) -> None:
    """JAX's own type checker; it raises where the jaxpr is not well formed."""
    jex_core.check_jaxpr(closed.jaxpr)


def has_visible_effects(eqn: JaxprEqn) -> bool:
    """Whether an equation does more than compute, allocate, read and write `Ref`s or name a mapped axis."""
    return any(
        not hasattr(effect, "input") and type(effect).__name__ not in ("NamedAxisEffect", "InternalMutableArrayEffect")
        for effect in eqn.effects
    )


def makes_weak_refs(jaxpr: Jaxpr) -> bool:
    """Whether a `Ref` is made inside of a value of weak type. JAX takes such a `Ref` to be of a strong type, until it
    replaces it by its values: then equations have the types that follow from these, but for those inside calls."""
    if not any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in jaxpr.effects):
        return False
    return any(
        (any(is_ref(v.aval) for v in eqn.outvars) and any(getattr(v.aval, "weak_type", False) for v in eqn.invars))
        or any(map(makes_weak_refs, subjaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def is_ref(aval: AbstractValue) -> bool:
    """Whether this is the type of a `Ref`."""
    return hasattr(aval, "inner_aval")


def held(aval: AbstractValue) -> AbstractValue:
    """What a `Ref` of this type holds."""
    return aval.inner_aval


def captured_refs(closed: ClosedJaxpr) -> Iterator[AbstractValue]:
    """What the `Ref`s hold that were there before, and that a function captured, itself or in a `jit` that it calls."""

    def found(jaxpr: Jaxpr) -> Iterator[AbstractValue]:
        yield from (held(var.aval) for var in jaxpr.constvars if is_ref(var.aval))
        for eqn in jaxpr.eqns:
            for sub in subjaxprs(eqn):
                yield from found(sub)

    return found(closed.jaxpr)


def may_call_python(closed: ClosedJaxpr) -> bool:
    """Whether Python code may run while or after the program does: callbacks, prints, primitives that may hide one,
    and that of `jax.jit` itself around results that wrap an array, such as PRNG keys."""
    wraps = any(is_extended(v.aval.dtype) for v in closed.jaxpr.outvars if hasattr(v.aval, "dtype"))
    return wraps or bool(closed.jaxpr.effects) or any(map(may_be_foreign, _primitives(closed.jaxpr)))


def may_be_foreign(name: str) -> bool:
    """Whether a primitive of this name may run code that is not XLA's: callbacks, kernels, feeds."""
    return any(part in name for part in ("callback", "print", "ffi", "pallas", "custom_call", "infeed", "outfeed"))


def draws_hidden_numbers(closed: ClosedJaxpr) -> bool:
    """Whether the result depends on the state of a random number generator of XLA's own (`lax.rng_uniform`)."""
    return any(name == "rng_uniform" for name in _primitives(closed.jaxpr))


def _primitives(jaxpr: Jaxpr) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for sub in subjaxprs(eqn):
            yield from _primitives(sub)


def source_line(eqn: JaxprEqn) -> str:
    """The innermost line outside of libraries that an equation comes from, `train.py:88 (loss)`; empty if unknown."""
    traceback = eqn.source_info.traceback
    frames: Any = () if traceback is None else traceback.frames
    for frame in frames:
        name = str(frame.file_name)
        if not is_library(name):
            return f"{pathlib.Path(name).name}:{frame.line_num} ({frame.function_name})"
    return ""


def is_library(file: str) -> bool:
    """Whether a file belongs to the interpreter, to an installed package or to pytc itself."""
    return file.startswith(_LIBRARIES)


_LIBRARIES = (
    "<frozen",
    str(pathlib.Path(__file__).parent / "_")[:-1],
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""How the names of files begin that belong to the interpreter, to installed packages or to pytc itself."""


def new_shard(array: jax.Array) -> jax.Array:
    """`array.addressable_data(0)` of an array on one device: another array on the same buffer.

    Without the checks, where this version of JAX lets us.
    """
    make = getattr(array, "_fully_replicated_shard", None)
    shard: jax.Array = array.addressable_data(0) if make is None else make()
    return shard


def shards_of(array: jax.Array) -> list[jax.Array]:
    """The single-device arrays that this process has of an array on several devices, without making it remember that
    they were asked for: it keeps the `Shard` objects around them, each of which holds one."""
    asked_before = "addressable_shards" in vars(array)
    shards = [shard.data for shard in array.addressable_shards]
    if not asked_before:
        vars(array).pop("addressable_shards", None)
    return shards
