"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weightstore.cli.completion import complete_selector

StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store's directory.", show_default=False)
]
SelectorArgument = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="latest, a number, tag:NAME or RUN@STEP.",
        show_default=True,
        autocompletion=complete_selector,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Fence the trainer that holds the claim. Make sure that it is dead."
    ),
]
