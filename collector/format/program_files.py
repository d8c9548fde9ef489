"""Recognizes the files of the program itself by their paths."""

import re

RECORDER_FILE = re.compile(r"/collector/(sources|engines|hooks(/[a-z_]+)?)/[a-z_]+[.]py$")
"""Files of the recorder in recorded stacks, those of its earlier layout too."""

INSTALLED_FILE = re.compile(rf"/(site|dist)-packages/|/lib/python[0-9.]*/|{RECORDER_FILE.pattern}")
"""Files of packages, of Python and of the recorder."""
