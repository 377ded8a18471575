"""The command line as a page and as a surface: what there is, and what must not change unseen."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from weightstore.cli.app import app
from weightstore.cli.exit_codes import ExitCode

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference-cli.md"
SURFACE = ROOT / "tests" / "compat" / "cli-surface.json"
REQUIRED = "required"
_KINDS = {bool: "flag", int: "number", float: "decimal number", str: "text", Path: "path"}


def main(arguments: Sequence[str]) -> None:
    """Write the page, and with --freeze the surface."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    if "--freeze" in arguments:
        SURFACE.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
        print(f"wrote {SURFACE.relative_to(ROOT)}")


@dataclass(frozen=True)
class Parameter:
    """An argument or option, as it was declared.

    Attributes:
        name: Of the function's parameter.
        info: Typer's declaration.
        kind: What its values are.
        default: What it is without being given; `REQUIRED` if it must be.
    """

    name: str
    info: ArgumentInfo | OptionInfo
    kind: str
    default: object

    @property
    def is_argument(self) -> bool:
        """Whether it goes by its place."""
        return isinstance(self.info, ArgumentInfo)

    @property
    def names(self) -> list[str]:
        """How it is said on the command line."""
        if self.is_argument:
            return [self.info.metavar or self.name.upper()]
        # In an annotation the first name stands where a default would.
        first = [self.info.default] if isinstance(self.info.default, str) else []
        declared = [*first, *(self.info.param_decls or ())]
        return declared or ["--" + self.name.replace("_", "-")]


@dataclass(frozen=True)
class Command:
    """A command, as it was declared."""

    name: str
    help: str
    epilog: str
    parameters: tuple[Parameter, ...]


def commands() -> Iterator[Command]:
    """Every command, in the order of the help."""
    for info in app.registered_commands:
        function = info.callback
        assert function is not None
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
        yield Command(
            name=info.name or function.__name__,
            help=inspect.getdoc(function) or "",
            epilog=info.epilog or "",
            parameters=tuple(
                _parameter(name, hints[name], each.default)
                for name, each in signature.parameters.items()
            ),
        )


def _parameter(name: str, hint: Any, default: object) -> Parameter:  # noqa: ANN401 -- a type
    plain, info = get_args(hint)
    required = default is inspect.Parameter.empty
    return Parameter(name, info, _kind(plain, info), REQUIRED if required else default)


def _kind(plain: Any, info: ArgumentInfo | OptionInfo) -> str:  # noqa: ANN401 -- a type
    if get_origin(plain) is UnionType:
        plain = next(each for each in get_args(plain) if each is not type(None))
    if get_origin(plain) is list:
        return f"{_kind(get_args(plain)[0], info)}, repeatable"
    if get_origin(plain) is Literal:
        return " or ".join(get_args(plain))
    # A path that is kept as the text it was given as is still one to whoever types it.
    said = _KINDS[Path if info.path_type is str else plain]
    if info.min is not None:
        said += f" from {info.min}"
    return said + (f" to {info.max}" if info.max is not None else "")


def surface() -> dict[str, Any]:
    """Commands, arguments and options with their types and defaults."""
    return {
        command.name: [
            {"names": each.names, "type": each.kind, "default": each.default}
            for each in command.parameters
        ]
        for command in commands()
    }


def page() -> str:
    """The reference page."""
    parts = [
        "# Command line",
        "",
        "This page is written by `tools/make_cli_reference` from the commands themselves.",
        "",
        f"{app.info.help} `weightstore COMMAND --help` says the same as this page.",
        "",
        "- `STORE` is the directory of a store.",
        "- `VERSION` is `latest`, `active`, a number, `tag:NAME` or `RUN@STEP`.",
        "- `--json` prints one JSON document on standard output; an error with `--json` is one on",
        "  standard error, with `code`, `message`, `do` and `facts`.",
        "- Bash, zsh and fish complete commands, options and, after the store, versions:",
        "  `weightstore --install-completion` sets it up, `--show-completion` prints it.",
        "- `weightstore --version` prints the version of the package and of the store's format.",
        "",
        "| exit code | |",
        "|---|---|",
        *(f"| {int(code)} | {code.name.lower().replace('_', ' ')} |" for code in ExitCode),
        "",
    ]
    for command in commands():
        parts += _section(command)
    return "\n".join(parts).rstrip() + "\n"


def _section(command: Command) -> list[str]:
    words = [f"weightstore {command.name}"]
    for each in command.parameters:
        if each.is_argument:
            (name,) = each.names
            words.append(name if each.default is REQUIRED else f"[{name}]")
        elif each.default is REQUIRED:
            words += [each.names[0], each.info.metavar or each.name.upper()]
    rows = [
        f"| {_names(each)} | {each.kind} | {_default(each)} | {_cell(each.info.help)} |"
        for each in command.parameters
    ]
    return [
        f"## {command.name}",
        "",
        command.help,
        "",
        "```text",
        " ".join(words),
        "```",
        "",
        "| argument or option | value | default | |",
        "|---|---|---|---|",
        *rows,
        "",
        _code_of(_sentence(command.epilog)),
        "",
    ]


def _names(parameter: Parameter) -> str:
    return ", ".join(f"`{name}`" for name in parameter.names)


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return REQUIRED
    if parameter.default is None or parameter.default is False or parameter.default == "":
        return ""
    return f"`{parameter.default}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _code_of(epilog: str) -> str:
    """An epilog with its examples as a block."""
    for mark in ("Examples: ", "Example: "):
        if epilog.startswith(mark):
            text, _, rest = epilog.removeprefix(mark).partition(". ")
            examples = [each.strip() for each in text.split("; ")]
            block = "\n".join(["```text", *examples, "```"])
            return f"{block}\n\n{rest}".rstrip()
    return epilog


if __name__ == "__main__":
    main(sys.argv[1:])
