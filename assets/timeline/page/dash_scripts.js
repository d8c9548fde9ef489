/**
 * Starts Dash's own scripts, which the page holds back: three megabytes that would run before the
 * lanes are drawn, and that the lanes do not need.
 * @module
 */

/** The type that the page gives to scripts held back (see webapp/server/server.py). */
const HELD = 'script[type="text/lanescope-held"]';

/** Runs them in order: first those with an address, then, once loaded, the inline ones. */
export async function startDash() {
  const held = [...document.querySelectorAll(HELD)];
  const loads = held
    .filter((one) => one.src)
    .map(
      (one) =>
        new Promise((resolve) => {
          const script = twin(one);
          script.async = false; // run in order, though loaded in parallel
          script.addEventListener("load", resolve);
          script.addEventListener("error", resolve); // a missing script fails where it is used
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

/** Creates a copy of the element that runs. */
function twin(held) {
  const script = document.createElement("script");
  for (const { name, value } of held.attributes) if (name !== "type") script.setAttribute(name, value);
  return script;
}
