/**
 * Exports charts as PNG: Plotly's button offers only SVG; with Shift held it exports PNG.
 * @module
 */
const SCALE = 2;

/** Listens to the buttons of all charts, also later ones. */
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

/** Saves the chart on the page's background, on which its text is readable. */
function savePng(chart) {
  const ground = getComputedStyle(document.body).backgroundColor;
  const figure = { data: chart.data, layout: { ...chart.layout, paper_bgcolor: ground } };
  const size = { width: chart.clientWidth, height: chart.clientHeight, scale: SCALE };
  const filename = `lanescope-${chart.parentElement.id}`;
  globalThis.Plotly.downloadImage(figure, { format: "png", filename, ...size });
}
