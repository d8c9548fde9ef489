import { decode, paintsOf } from "/assets/timeline/tiles/tile.js";
import { equal, ok, test, throws } from "../harness.js";

const fixture = async (name) => {
  const [bin, json] = await Promise.all([fetch(`/fixtures/${name}.bin`), fetch(`/fixtures/${name}.json`)]);
  return [await bin.arrayBuffer(), await json.json()];
};
const PAINTS = paintsOf({ paints: { names: [4], styles: [1] } });
const SLICES = ["start", "end", "paint"];
const DENSE = ["bucket", "covered", "paint"];
const SAMPLES = [
  ["bucket", "bucket"],
  ["low", "min"],
  ["high", "max"],
  ["last", "last"],
];
const numbers = (array) => [...array].map((v) => (Number.isNaN(v) ? null : v));

for (const name of ["tile", "tile_far", "tile_crowded"]) {
  test(`${name}: the page reads what the server wrote`, async () => {
    const [buffer, expected] = await fixture(name);
    const tile = decode(buffer, PAINTS);
    equal([tile.level, tile.index, tile.unit], [expected.level, expected.index, 2 ** expected.unit_shift]);
    equal(tile.start, expected.index * 1024 * 2 ** expected.level);
    for (const block of expected.blocks) {
      const found = tile.block(block.lane, block.row);
      ok(found, `block ${block.lane}/${block.row}`);
      if (block.kind === 1) {
        equal(found.samples.leading, block.leading);
        for (const [theirs, ours] of SAMPLES) equal(numbers(found.samples[ours]), block.samples[theirs], theirs);
        continue;
      }
      for (const column of SLICES) equal(found.spans ? [...found.spans[column]] : [], block.slices[column], column);
      for (const column of DENSE) equal(found.dense ? [...found.dense[column]] : [], block.dense[column], column);
    }
    const blocks = [...tile.lanes.values()].flatMap((rows) => rows.filter(Boolean));
    equal(blocks.length, expected.blocks.length, "number of blocks");
    const columns = Array.from({ length: 12 }, (_, i) => new DataView(buffer).getUint32(32 + 4 * i, true));
    const sum = (values) => [...values].reduce((all, n) => all + n, 0);
    equal(sum(tile.bytes.values()), sum(columns), "bytes by lane");
  });
}

test("a payload that is not a tile is rejected with a message", async () => {
  const [buffer] = await fixture("tile");
  throws(() => decode(new ArrayBuffer(8), PAINTS), /not a LaneScope tile/);
  throws(() => decode(buffer.slice(0, 100), PAINTS), /cut short/);
  const newer = buffer.slice(0);
  new DataView(newer).setUint16(4, 99, true);
  throws(() => decode(newer, PAINTS), /version 99.*reload/);
});
