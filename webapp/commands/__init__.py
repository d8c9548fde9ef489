"""Sub-commands of `lanescope`, one file each, loaded when called."""
