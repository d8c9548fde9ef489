import {
  contrast,
  levelOf,
  luminance,
  MIN_CONTRAST,
  Palette,
  STYLE_TOKENS,
  shadeOf,
  TOKENS,
  textOn,
} from "/assets/timeline/base/palette.js";
import { equal, near, ok, test } from "../harness.js";
import { themes } from "../themes.js";

test("the style sheet has every token in both themes", () => {
  for (const theme of Object.values(themes))
    equal(
      TOKENS.filter((token) => !theme[token]),
      [],
    );
});

test("WCAG's own figures", () => {
  near(contrast([255, 255, 255], [0, 0, 0]), 21);
  near(luminance([255, 255, 255]), 1);
});

for (const [name, theme] of Object.entries(themes)) {
  test(`${name}: text on every slice has enough contrast`, () => {
    const names = ["a", "b", "c", "d", "e", "f"];
    const palette = new Palette(theme, names);
    for (const fill of palette.rgb) {
      const ratio = contrast(fill, textOn(fill));
      ok(ratio >= MIN_CONTRAST, `${fill}: ${ratio.toFixed(2)}`);
    }
  });
  test(`${name}: ink, muted and accent can be read on ground and panel`, () => {
    for (const ground of ["ground", "panel"]) {
      for (const text of ["ink", "muted", "accent", "bad"]) {
        const ratio = contrast(theme[text], theme[ground]);
        ok(ratio >= MIN_CONTRAST, `${text} on ${ground}: ${ratio.toFixed(2)}`);
      }
    }
  });
  test(`${name}: the outermost row has the token itself, deeper ones are softer`, () => {
    const palette = new Palette(theme, ["x"]);
    for (const [style, token] of STYLE_TOKENS.entries()) {
      equal(palette.rgb[palette.index(style, 0, 0)], theme[token]);
    }
    const distance = (row) => contrast(palette.rgb[palette.index(1, row, 0)], theme.ground);
    ok(distance(3) < distance(0), "deeper is nearer to the ground");
  });
}

test("the same name has the same shade, whatever its number", () => {
  const a = new Palette(themes.light, ["aten::mm", "aten::add"]);
  const b = new Palette(themes.light, ["aten::add", "aten::mm"]);
  equal(a.rgb[a.index(1, 1, 0)], b.rgb[b.index(1, 1, 1)]);
  ok(new Set(["aten::mm", "aten::add", "aten::bmm", "aten::sum", "aten::gelu"].map(shadeOf)).size > 1, "shades differ");
});

test("ops are one level below the phases, rows side by side have no level", () => {
  const thread = { kind: "thread", phase_rows: 2 };
  equal(
    [0, 1, 2, 3].map((row) => levelOf(thread, row)),
    [0, 1, 1, 2],
  );
  equal(
    [0, 1].map((row) => levelOf({ kind: "thread", phase_rows: 0 }, row)),
    [0, 1],
  );
  equal(
    [0, 1].map((row) => levelOf({ kind: "collectives", phase_rows: 0 }, row)),
    [0, 0],
  );
});
