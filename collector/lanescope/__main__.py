"""`python -m lanescope`: the command, where its script is not on the path."""

from lanescope.webapp.cli import main

if __name__ == "__main__":
    main(prog_name="lanescope")
