"""Is a run still being recorded?"""

from __future__ import annotations

import json
import os
from pathlib import Path

from lanescope.collector.compaction.journal_folders import is_abandoned
from lanescope.collector.format import schema
from lanescope.webapp.runs.files import Files


def growing(run: str | os.PathLike[str]) -> bool:
    """Returns whether more may come to the run at a path: its recording is not finished.

    To be asked before the run is opened: the state that is opened after a "no" is the last one.
    Asked afterwards, the recording may have been finished in between. The journal's folder goes
    last, after the manifest that the recording ends with.
    """
    folder = Path(run)
    if not os.path.isdir(folder / schema.JOURNAL_FOLDER):
        return False
    try:
        return json.loads((folder / schema.MANIFEST).read_bytes())["complete"] is not True
    except (OSError, ValueError, LookupError, TypeError):
        return True  # whether it is damaged, opening it will say


def is_live(files: Files) -> bool:
    """Returns whether processes of the run go on recording, as far as can be known here."""
    folder = files.folder
    return folder is not None and growing(folder) and not is_abandoned(folder)
