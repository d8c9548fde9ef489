/**
 * Charts as PNG. Plotly's button knows one format, which is SVG; with Shift held it is this one.
 * @module
 */
const SCALE = 2;

/** Watches the buttons of all charts, now and later ones. */
export function listenChartPictures() {
  document.addEventListener(
    "click",
    (event) => {
      const button = event.shiftKey && event.target.closest?.('.modebar-btn[data-title*="PNG"]');
      if (!button) return;
      event.stopPropagation();
      savePng(button.closest(".js-plotly-plot"));
    },
    true,
  );
}

/** The chart as it is, on the page's ground: its words would be lost on another one. */
function savePng(chart) {
  const ground = getComputedStyle(document.body).backgroundColor;
  const figure = { data: chart.data, layout: { ...chart.layout, paper_bgcolor: ground } };
  const size = { width: chart.clientWidth, height: chart.clientHeight, scale: SCALE };
  globalThis.Plotly.downloadImage(figure, { format: "png", filename: "lanescope", ...size });
}
