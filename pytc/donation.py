"""What the caller has said about donation: the `donate=` option, read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from pytc.arguments.leaves import Parameters, names_in, numbers_in

Mode = Literal["auto", "all", "warn", "none", "require"]
Donate = Mode | Mapping[str, Mode]


@dataclasses.dataclass(frozen=True)
class Policy:
    """Which leaves may be donated, and on whose word."""

    default: Mode = "auto"
    by_parameter: Mapping[str, Mode] = dataclasses.field(default_factory=dict)

    def of(self, parameter: str) -> Mode:
        """The mode for leaves that come in by this parameter (`args[2]` belongs to `args`)."""
        if not self.by_parameter:
            return self.default
        return self.by_parameter.get(parameter, self.by_parameter.get(parameter.partition("[")[0], self.default))

    @property
    def modes(self) -> frozenset[Mode]:
        """Every mode that some leaf may have."""
        return frozenset([self.default, *self.by_parameter.values()])


def check_donate(donate: Any) -> None:
    """Raises `ValueError` for what is no mode, nor a dict of modes."""
    modes = get_args(Mode)
    one_of_them = ", ".join(map(repr, modes))
    if not isinstance(donate, Mapping):
        if donate not in modes:
            raise ValueError(f"donate is {donate!r}; it can be {one_of_them}, or a dict of these by parameter")
        return
    for name, mode in donate.items():
        if mode not in modes:
            raise ValueError(f"donate[{name!r}] is {mode!r}; it can be {one_of_them}")


def read_policy(
    donate: Donate,
    parameters: Parameters,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
) -> Policy:
    """The policy that `donate=` (`check_donate`), or `jax.jit`'s own `donate_argnums` and `donate_argnames`, asks for.

    Raises `ValueError` for a name that is no parameter (any may be one of a function with `**`), one that can name no
    argument, or a parameter that is static as well; `TypeError` for a name that is no string.
    """
    promised = _promised(parameters, donate_argnums, donate_argnames)
    if isinstance(donate, Mapping):
        parameters.check_names("donate", donate)
        if parameters.keywords is not None and parameters.keywords in donate:
            raise ValueError(
                f"donate names {parameters.keywords!r}, which stands for any keyword: name the keywords themselves"
            )
        default: Mode = "auto"
        by_parameter = dict(donate)
    else:
        default, by_parameter = donate, {}
    for name in promised:
        if by_parameter.setdefault(name, "all") != "all":
            raise ValueError(
                f"donate says {by_parameter[name]!r} of {name!r}, which donate_argnums or donate_argnames "
                "donates: name it in one of the two"
            )
    static = parameters.static_argnames | {parameters.positional_name(i) for i in parameters.static_argnums if i >= 0}
    for name, mode in by_parameter.items():
        if name in static and mode != "none":
            raise ValueError(f"{name!r} is static, so it has no memory to donate: take it out of one of the two")
    return Policy(default, by_parameter)


def _promised(parameters: Parameters, argnums: Any, argnames: Any) -> list[str]:
    numbers = () if argnums is None else numbers_in("donate_argnums", argnums)
    names = () if argnames is None else names_in("donate_argnames", argnames)
    if names and parameters.signature is None:
        raise ValueError("donate_argnames names parameters of a function that tells no signature: use donate_argnums")
    parameters.check_names("donate_argnames", names)
    for named in names:
        if named in parameters.positional_only or named == parameters.starred:
            raise ValueError(f"donate_argnames names {named!r}, which is positional-only: number it in donate_argnums")
    return [*names, *(name for i in numbers if (name := parameters.donated_name(i)) is not None)]
