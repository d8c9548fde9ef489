import { bytes, count, duration, instant, number, percent } from "/assets/timeline/base/format.js";
import { equal, test } from "../harness.js";

test("durations have three digits and the unit of their size", () => {
  const cases = [
    [0, "0 ns"],
    [1, "1 ns"],
    [999, "999 ns"],
    [1000, "1 µs"],
    [1234, "1.23 µs"],
    [412600, "413 µs"],
    [999_499, "999 µs"],
    [999_600, "1.00 ms"],
    [3_914_000, "3.91 ms"],
    [1e9, "1 s"],
    [9.61e9, "9.61 s"],
    [1_204e9, "1\u2009204 s"],
    [-1500, "−1.5 µs"],
    [12.34, "12.3 ns"],
  ];
  for (const [ns, text] of cases) equal(duration(ns), text, `duration of ${ns}`);
  equal(duration(412_600, 4), "412.6 µs");
});

test("instants lose no digit", () => {
  equal(instant("1204381620"), "1.204\u2009381\u2009620 s");
  equal(instant("9007199254740993123"), "9\u2009007\u2009199\u2009254.740\u2009993\u2009123 s");
  equal(instant(7), "0.000\u2009000\u2009007 s");
  equal(instant("-5"), "−0.000\u2009000\u2009005 s");
});

test("counts, sizes and shares", () => {
  equal(count(1234567), "1\u2009234\u2009567");
  equal(count(999), "999");
  equal(bytes(14_863_295), "14.9 MB");
  equal(bytes(12), "12 B");
  equal(percent(0.078), "7.8 %");
  equal(percent(1), "100 %");
  equal(percent(0), "0 %");
  equal(percent(1e-9), "< 0.001 %");
});

test("plain numbers turn to exponents where digits would not fit", () => {
  equal(number(0.0317), "0.0317");
  equal(number(12345), "12\u2009345");
  equal(number(1.5e-7), "1.5e−7");
  equal(number(-3.25e9), "−3.25e9");
  equal(number(NaN), "NaN");
  equal(number(Infinity), "Infinity");
});
