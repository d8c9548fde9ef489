/**
 * The style sheet's tokens in both themes.
 * @module
 */

const hex = (text) => [1, 3, 5].map((i) => Number.parseInt(text.slice(i, i + 2), 16));
const css = await (await fetch("/assets/style.css")).text();

/** @type {Record<"light"|"dark", Record<string, [number, number, number]>>} */
export const themes = { light: {}, dark: {} };
for (const [, name, light, dark] of css.matchAll(/--(\w+): light-dark\((#\w{6}), (#\w{6})\);/g)) {
  themes.light[name] = hex(light);
  themes.dark[name] = hex(dark);
}
