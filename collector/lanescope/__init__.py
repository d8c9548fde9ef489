"""Records PyTorch runs and shows them: all ranks and threads on one time axis.

    import lanescope.collector as ls    # records, adds marks
    import lanescope.webapp as lw       # reads runs, answers questions
    %load_ext lanescope                 # in a notebook

`python -m lanescope` is the command. Importing this package loads nothing else: programs that are
recorded import it at start-up.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    __version__: str


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Adds `%%lanescope` to a notebook: `%load_ext lanescope`."""
    from lanescope.notebook import register

    register(shell)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = found = version("lanescope")
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
