// The kinds of charts that the pages draw: another one is registered here, see README.md.
const Plotly = require("plotly.js/lib/core");

Plotly.register([
  require("plotly.js/lib/bar"),
  require("plotly.js/lib/heatmap"),
  require("plotly.js/lib/icicle"),
]);

module.exports = Plotly;
