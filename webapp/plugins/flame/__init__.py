"""Shows where time goes as a flame graph: by Python stack, module, or nesting on the lanes."""

from lanescope.webapp.analysis.plugin import Plugin

PLUGIN = Plugin(name="flame", depends=("diff",))
