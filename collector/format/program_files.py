"""Which files of a stack are the program's own, and which the recorder's."""

from __future__ import annotations

import re

RECORDER = re.compile(r"/collector/(sources|engines|hooks(/[a-z_]+)?)/[a-z_]+[.]py$")
"""Files of the recorder in recorded stacks, those of its earlier layout too."""

NOT_THE_PROGRAM = re.compile(rf"/(site|dist)-packages/|/lib/python[0-9.]*/|^<|{RECORDER.pattern}")
"""Files of packages, of Python and of the recorder, and code without a file."""
