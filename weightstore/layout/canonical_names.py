"""Names as the checkpoint has them, from names as a wrapped model has them.

Wrappers put words of their own into names. They are taken out by rules that the caller
states; without a rule such a name is refused, since two spellings of one tensor would
become two tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weightstore.errors import InputRefusedError, NameRefusedError

WRAPPER_RULES: tuple[str, ...] = (
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "base_model.model.",
    ".base_layer.",
)
"""Words of well-known wrappers, each usable as a rule.

`word.` is taken off the front of a name. A word that begins with `_` is a wrapper's own
attribute and is taken out wherever a part of the name begins with it. `.word.` becomes `.`
wherever it stands.
"""


def check_name_rules(rules: Iterable[str]) -> None:
    """Check that all rules are of one of the forms in `WRAPPER_RULES`.

    Raises:
        InputRefusedError: one is of no such form.
    """
    for rule in rules:
        if not rule.strip(".") or not rule.endswith("."):
            raise InputRefusedError(
                f"{rule!r} is no rule for names",
                do="Use 'word.' for the front of a name or '.word.' for its middle.",
            )


def canonical_name(name: str, rules: Sequence[str]) -> str:
    """Take the words of `rules` out of a name; doing it twice changes nothing.

    Args:
        name: As the model has it.
        rules: Of the forms in `WRAPPER_RULES`, those or the caller's own.

    Raises:
        InputRefusedError: a rule is of no such form.
        NameRefusedError: nothing is left of the name.
    """
    check_name_rules(rules)
    before = None
    found = name
    # Each round shortens the name or is the last, and the end of the loop is a name that
    # no rule changes: that is what makes it the same when done twice.
    while found != before:
        before = found
        for rule in rules:
            found = _strip(found, rule)
    if not found and name:
        raise NameRefusedError(
            f"nothing is left of tensor name {name!r} after the rules {tuple(rules)}",
            do="Take the rule out that removes it.",
            facts={"tensor": name},
        )
    return found


def canonical_names(names: Iterable[str], rules: Sequence[str]) -> dict[str, str]:
    """Canonical name of each name, in the order given.

    Raises:
        InputRefusedError: a rule is of no known form.
        NameRefusedError: two names become one, or a name still holds a wrapper's word.
    """
    found: dict[str, str] = {}
    given: dict[str, str] = {}
    for name in names:
        canonical = canonical_name(name, rules)
        if canonical in given:
            raise NameRefusedError(
                f"tensors {given[canonical]!r} and {name!r} both become {canonical!r}",
                do="Give each canonical name once.",
                facts={"tensor": canonical},
            )
        given[canonical] = name
        found[name] = canonical
    refuse_wrapped(given)
    return found


def refuse_wrapped(names: Iterable[str]) -> None:
    """Refuse names that still hold a wrapper's word.

    Raises:
        NameRefusedError: some do; all of them are named, with the rule that would help.
    """
    wrapped: list[str] = []
    needed: set[str] = set()
    for name in names:
        words = [rule for rule in WRAPPER_RULES if _strip(name, rule) != name]
        if words:
            wrapped.append(name)
            needed.update(words)
    if wrapped:
        raise NameRefusedError(
            f"{len(wrapped)} tensor names hold words of a wrapper: {_shown(wrapped)}",
            do=f"State the rules {sorted(needed)}, or give the unwrapped model's names.",
            facts={"tensors": tuple(wrapped[:1000])},
        )


def _strip(name: str, rule: str) -> str:
    if rule.startswith("."):
        return name.replace(rule, ".")
    if rule.startswith("_"):
        name = name.replace("." + rule, ".")
    return name.removeprefix(rule)


def _shown(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more
