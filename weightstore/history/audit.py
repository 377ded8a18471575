"""The whole log, read from slot 0: what is deleted rests on it, and on no shortcut.

A reader that finds the tail trusts two neighbours that agree with each other, so a writer
that is wrong twice in a row can mislead it until two correct records follow. That costs a
reader time. It would cost a collector the versions that it was not told of. (P9)
"""

from __future__ import annotations

from weightstore.errors import CorruptLogError
from weightstore.format.rules import EMPTY_PREFIX, Prefix
from weightstore.history.log import Log
from weightstore.ids import Slot


def audited_tail(log: Log, *, proven: Prefix = EMPTY_PREFIX) -> Prefix:
    """The log up to its tail, each record of it validated against all before it.

    One read per record that this handle does not keep.

    Args:
        log: The log.
        proven: What an earlier audit of the same log said; it is not read again.

    Raises:
        CorruptLogError: a record is missing or does not parse; or those who only look at the
            newest records are misled by them.
        UpgradeRequiredError: a record or feature that this release does not know.
    """
    end = log.tail().next_slot
    prefix = proven
    for step in log.steps(prefix):
        prefix = step.after
    if prefix.next_slot < end:
        raise CorruptLogError(
            f"log record {prefix.next_slot} is missing, though later ones are there",
            do="Restore log/ from a copy; do not write to this store.",
            facts={"slot": prefix.next_slot},
        )
    prefix = log.follow(prefix)
    if prefix.next_slot > 0:
        _check_nobody_is_misled(log, prefix)
    return prefix


def _check_nobody_is_misled(log: Log, prefix: Prefix) -> None:
    """Compare what the newest records make others believe with what the whole log says.

    Who is misled may still read, and tag, what would be deleted on the proven state.
    """
    if log.prefix_at(prefix.next_slot) == prefix:
        return
    raise CorruptLogError(
        f"the records just below slot {prefix.next_slot} agree with each other and not with"
        " the log before them: a writer that breaks the rules has put them",
        do="Stop that writer. What it put is void; two more correct records, such as those of"
        " the trainer's next steps, put readers right, and then repeat.",
        facts={"slot": Slot(prefix.next_slot - 1)},
    )
