"""Unit tests of the timeline's modules, run in the browser that shows them."""
