"""Is a run still being recorded?"""

from __future__ import annotations

import json
import os
from pathlib import Path

from lanescope.collector.format import schema


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
