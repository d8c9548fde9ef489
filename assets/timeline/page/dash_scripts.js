/**
 * Dash's own scripts, which the page holds back: three megabytes that would run before the lanes
 * are drawn, and that nothing of the lanes needs.
 * @module
 */

/** What the page writes instead of a script's type (see webapp/server/server.py). */
const HELD = 'script[type="text/lanescope-held"]';

/** Runs them in their order: those with an address, then those without, once those are here. */
export async function startDash() {
  const held = [...document.querySelectorAll(HELD)];
  const loads = held
    .filter((one) => one.src)
    .map(
      (one) =>
        new Promise((resolve) => {
          const script = twin(one);
          script.async = false; // in order, though they load side by side
          script.addEventListener("load", resolve);
          script.addEventListener("error", resolve); // what does not come is missed by what needs it
          one.replaceWith(script);
        }),
    );
  await Promise.all(loads);
  for (const one of held.filter(({ src }) => !src)) {
    const script = twin(one);
    script.textContent = one.textContent;
    one.replaceWith(script);
  }
}

/** The same element once more, as one that runs. */
function twin(held) {
  const script = document.createElement("script");
  for (const { name, value } of held.attributes) if (name !== "type") script.setAttribute(name, value);
  return script;
}
