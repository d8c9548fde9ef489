"""Files the browser loads: JavaScript modules and the style sheet."""

from pathlib import Path

FOLDER = Path(__file__).parent
