"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from weightstore.cli.completion import complete_selector

_SELECTOR_HELP = "latest, active, a number, tag:NAME or RUN@STEP."
# The text as it was given: as a `Path`, a URL would lose a slash and be taken for a directory.
StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="The store's directory.",
        show_default=False,
        path_type=str,
    ),
]
SelectorArgument = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help=_SELECTOR_HELP,
        show_default=True,
        autocompletion=complete_selector,
    ),
]
NamedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="VERSION",
        help="Version to name, the latest if none is given: " + _SELECTOR_HELP,
        show_default=False,
        autocompletion=complete_selector,
    ),
]
OldArgument = Annotated[
    str,
    typer.Argument(metavar="OLD", help=_SELECTOR_HELP, autocompletion=complete_selector),
]
NewArgument = Annotated[
    str,
    typer.Argument(metavar="NEW", help=_SELECTOR_HELP, autocompletion=complete_selector),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
NewSchemaOption = Annotated[
    bool,
    typer.Option(
        "--new-schema", help="Allow other names, shapes or dtypes than the newest version's."
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Fence the trainer that holds the claim. Make sure that it is dead."
    ),
]
