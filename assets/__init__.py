"""Files the browser loads: the timeline's JavaScript modules and the style sheet."""

from pathlib import Path

FOLDER = Path(__file__).parent
