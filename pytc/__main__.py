"""`python -m pytc`: explanations from a shell.

python -m pytc explain package.module:function --args package.module:example_args
    [--html report.html] [--json] [--device h200] [--require reused=0.95] [--require fits]
python -m pytc audit [--out report.txt] [--json] train.py [args...]
python -m pytc audit -m package.train [args...]

The exit status of `explain` is 0 where all is well, 1 where `--require` does not hold, 2 for wrong usage, and 3 where
the function, or what makes its arguments, raises; that of `audit` is the script's.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from pytc.errors import DeviceError, RequirementError
from pytc.explain import Explanation, compiled_function, explain_program, takes_nothing
from pytc.explain.audit import start
from pytc.explain.largest import NoLargest
from pytc.jax_compat.running import config

UNMET = 1
"""The exit status where `--require` does not hold. Wrong usage is 2, as everywhere."""
RAISED = 3
"""The exit status where code that is to be explained raises."""

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "audit":
        start.audit(arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        return _explain(options.parser, options)
    except Exception:  # noqa: BLE001 - of the user's code, which is shown whole
        traceback.print_exc()
        return RAISED


def _explain(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.device is not None and not os.environ.get("JAX_PLATFORMS"):
        # A GPU's or TPU's plugin that looks for its hardware and finds none takes its compiler away with it.
        config.update("jax_platforms", "cpu")
    try:
        function = _load(options.function)
        example = () if options.args is None else _load(options.args)
        requirements: dict[str, Any] = dict(map(_requirement, options.require))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if not callable(function):
        parser.error(f"{options.function} is of type {type(function).__name__}, not a function")
    args, kwargs = _as_arguments(function, example)
    if options.args is None and not takes_nothing(function):
        parser.error("--args is needed: where example arguments are, package.module:name")
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        parser.error(f"the arguments in {options.args} do not fit {options.function}: {error}")
    except ValueError:
        pass  # it has no signature
    compiled, args = compiled_function(function, args)
    try:
        explanation = explain_program(
            compiled, args, kwargs, device=options.device, memory=options.memory, passes=options.passes
        )
    except DeviceError as error:
        parser.error(str(error))
    if explanation.fits is None and (options.largest or "fits" in requirements):
        parser.error(f"the memory of {explanation.device.kind} is not known: give --memory")
    if options.largest:
        _check_batch(parser, explanation, options.largest)
    try:
        _show(explanation, options)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--html: {error}")
    if options.largest:
        try:
            largest = explanation.largest(options.largest)
        except NoLargest as error:
            parser.error(f"--largest: {error}")
        (sys.stderr if options.json else sys.stdout).write(f"\n{largest}\n")
    try:
        if requirements:
            explanation.require(**requirements)
    except RequirementError as error:
        sys.stderr.write(str(error).partition("\n")[0] + "\n")
        return UNMET
    return 0


def _check_batch(parser: argparse.ArgumentParser, explanation: Explanation, named: Sequence[str]) -> None:
    """End with a message where these arguments cannot be the batch."""
    try:
        explanation.resizable.batch(named)
    except ValueError as error:
        parser.error(f"--largest: {error}")


def _show(explanation: Explanation, options: argparse.Namespace) -> None:
    if options.html is not None:
        try:
            explanation.save(options.html)
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{options.html} cannot be written: {error.strerror}") from error
    if options.json:
        sys.stdout.write(explanation.to_json(indent=2) + "\n")
    elif options.html is None or options.text:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(explanation.text(options.width, colour=colour, compare=not options.quick) + "\n")
    else:
        sys.stdout.write(f"wrote {options.html}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytc", description="Where the memory of a JAX function goes.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("audit", help="what an unchanged script could donate, and the edit to make", add_help=False)
    command = commands.add_parser(
        "explain",
        help="what pytc makes of a function",
        description="What is reused, what is kept, and why. Nothing is run and nothing is donated.",
    )
    command.add_argument("function", metavar="package.module:function", help="the function, compiled by pytc or not")
    command.add_argument(
        "--args",
        metavar="package.module:name",
        help="its arguments, arrays or jax.ShapeDtypeStructs, or a function that makes them: a tuple of positional "
        "arguments, a dict of keyword arguments, a pair of both, or its only argument",
    )
    command.add_argument("--html", metavar="FILE", help="write the page to a file")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--text", action="store_true", help="print the table also where --html is given")
    command.add_argument(
        "--quick", action="store_true", help="leave out of the table what it takes compiling again to know"
    )
    command.add_argument(
        "--device", help="compile for hardware that need not be here: h200, a100, tpu v5e:16x16; on the CPU otherwise"
    )
    command.add_argument("--memory", type=_bytes, help="bytes on each device, such as 40GiB, in place of what is known")
    command.add_argument(
        "--largest",
        metavar="ARGUMENT",
        action="append",
        help="the argument that is the batch: find the largest that fits; several times if it is in several arguments",
    )
    command.add_argument("--passes", action="store_true", help="show the equations that each pass changed")
    command.add_argument("--width", type=int, help="columns of the table; those of the terminal if not given")
    command.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="exit with status 1 unless it holds: reused=0.95 (at least this share of the outputs' bytes), copies=0, "
        "total_bytes=1.5GiB (at most), fits (in the device's memory); can be given several times",
    )
    command.set_defaults(parser=command)  # which says how it is used where an argument turns out to be wrong
    return parser


def _load(name: str) -> Any:
    """What `package.module:attribute.of.it` names."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise argparse.ArgumentTypeError(f"{name!r} is not of the form package.module:name")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise argparse.ArgumentTypeError(f"there is no module {error.name!r} (in {name!r})") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise argparse.ArgumentTypeError(f"there is no {part!r} in {name!r}")
        found = getattr(found, part)
    return found


def _as_arguments(function: Any, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from an example: a plain tuple, a dict of what the function calls its
    parameters, a pair of the two, or anything else as the only argument."""
    if callable(example) and not isinstance(example, tuple):
        example = example()
    if type(example) is not tuple:
        return ((), dict(example)) if _fits(function, (), example) else ((example,), {})
    if len(example) == 2 and type(example[0]) is tuple and _fits(function, *example):
        return example[0], dict(example[1])
    return example, {}


def _fits(function: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether `kwargs` is a dict of keyword arguments for this call."""
    if not isinstance(kwargs, dict) or not kwargs or not all(isinstance(key, str) for key in kwargs):
        return False
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # not such arguments, or a function that tells no signature
        return False
    return True


def _bytes(text: str) -> int:
    """A number of bytes with a unit, such as `40GiB`."""
    return int(_amount(text, _UNITS))


def _requirement(text: str) -> tuple[str, float | int]:
    """A name and the least or the most that it must be, from `reused=0.95`."""
    name, _, value = text.partition("=")
    if text == "fits":
        return "fits", True
    if name == "reused" and value:
        share = _amount(value)
        if share > 1:
            raise argparse.ArgumentTypeError(f"reused is a share from 0 to 1, not {value}")
        return name, share
    if name == "copies" and value:
        copies = _amount(value)
        if not copies.is_integer():
            raise argparse.ArgumentTypeError(f"copies is a whole number, not {value}")
        return name, int(copies)
    if name == "total_bytes" and value:
        return name, _bytes(value)
    raise argparse.ArgumentTypeError(f"--require takes reused=SHARE, copies=N, total_bytes=BYTES or fits, not {text!r}")


def _amount(text: str, units: Mapping[str, int] | None = None) -> float:
    """A number that is not negative, with one of these units after it or none."""
    units = units or {}
    number = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)", text.strip())
    if number is None:
        wanted = "number of bytes, such as 40GiB" if units else "number"
        raise argparse.ArgumentTypeError(f"{text!r} is no {wanted}")
    unit = number[2].lower()
    if unit and unit not in units:
        known = f"the unit is none of {', '.join(units)}" if units else "there is no unit"
        raise argparse.ArgumentTypeError(f"{number[2]!r} in {text!r}: {known}")
    return float(number[1]) * units.get(unit, 1)


if __name__ == "__main__":
    sys.exit(main())
