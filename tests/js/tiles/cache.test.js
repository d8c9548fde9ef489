import { Idle } from "/assets/timeline/base/idle.js";
import { TileCache } from "/assets/timeline/tiles/cache.js";
import { decode, VERSION } from "/assets/timeline/tiles/tile.js";
import { equal, ok, test } from "../harness.js";
import { PAINTS } from "./made.js";

function emptyTile(level) {
  const header = new ArrayBuffer(80);
  const view = new DataView(header);
  view.setUint32(0, 0x4c54534c, true);
  view.setUint16(4, VERSION, true);
  view.setUint16(6, 80, true);
  view.setUint32(28, 1, true);
  view.setInt32(8, level, true);
  return header;
}

function cacheWith(fetcher, limit = 1e9) {
  const idle = new Idle();
  const failures = [];
  const cache = new TileCache({
    address: ({ level, from, to, lanes }) => `/${level}/${from}-${to}/${lanes.join()}`,
    decode: (buffer) => decode(buffer, PAINTS),
    top: 9,
    idle,
    changed: () => {},
    failed: (m) => failures.push(m),
    fetcher,
    limit,
  });
  return { cache, idle, failures };
}
const answer = (address = "/0") =>
  Promise.resolve({ ok: true, arrayBuffer: () => Promise.resolve(emptyTile(Number(address.split("/")[1]))) });
/** A cache that gets its tiles at once, and the addresses that it asks for. */
const listening = () => {
  const asked = [];
  return {
    asked,
    ...cacheWith((address) => {
      asked.push(address);
      return answer(address);
    }),
  };
};
const key = (part) => ({ level: 0, from: part, to: part + 1, lanes: [0] });

test("tiles are fetched once, a few at a time, in order", async () => {
  const asked = [];
  let flying = 0;
  let most = 0;
  const { cache, idle } = cacheWith(async (address) => {
    asked.push(address);
    flying += 1;
    most = Math.max(most, flying);
    await new Promise(requestAnimationFrame);
    flying -= 1;
    return answer();
  });
  cache.want([...Array(10).keys()].map(key));
  await idle.settled();
  cache.want([...Array(10).keys()].map(key));
  await idle.settled();
  equal(
    asked,
    [...Array(10).keys()].map((i) => `/0/${i}-${i + 1}/0`),
  );
  ok(most <= 6, `${most} at once`);
});

test("requests no longer wanted are aborted and forgotten", async () => {
  const aborted = [];
  const { cache, idle } = cacheWith(
    (address, { signal }) =>
      new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => {
          aborted.push(address);
          reject(new DOMException("", "AbortError"));
        });
        if (address === "/0/5-6/0") answer().then(resolve);
      }),
  );
  cache.want([key(1), key(2)]);
  cache.want([key(5)]);
  await idle.settled();
  equal(aborted, ["/0/1-2/0", "/0/2-3/0"]);
  ok(cache.get(0, 5, 0) && !cache.get(0, 1, 0));
  equal(cache.stats.failures, 0);
});

test("a request asks only for the lanes that are neither here nor on their way", async () => {
  const { cache, idle, asked } = listening();
  cache.want([{ level: 0, from: 1, to: 2, lanes: [3, 4] }]);
  cache.want([{ level: 0, from: 1, to: 2, lanes: [4, 5] }]);
  await idle.settled();
  cache.want([{ level: 0, from: 1, to: 2, lanes: [...Array(20).keys()] }]);
  await idle.settled();
  equal(asked[1], "/0/1-2/5");
  equal(asked[2], "/0/1-2/0,1,2,6,7,8,9,10,11,12,13,14,15,16,17,18");
  equal(asked[3], "/0/1-2/19");
  equal(cache.stats.aborted, 0);
});

test("a request asks only for the parts that are missing, of many in one", async () => {
  const { cache, idle, asked } = listening();
  const want = async (from, to, lanes) => {
    cache.want([{ level: 0, from, to, lanes }]);
    await idle.settled();
  };
  await want(2, 4, [0, 1]);
  await want(1, 6, [0, 2]); // of lane 0 the middle is here: asked for with its neighbours
  equal(asked, ["/0/2-4/0,1", "/0/1-6/0,2"]);
  await want(1, 8, [0, 1]);
  equal(asked.slice(2), ["/0/6-8/0", "/0/1-8/1"]);
  ok(cache.get(0, 2, 0) === cache.get(0, 5, 0), "one answer for its parts");
  equal(cache.stats.aborted, 0);
});

test("the least recently used tiles go first, the whole-run level stays", async () => {
  const { cache, idle } = cacheWith((address) => answer(address), 100 * 3);
  const load = async (keys) => {
    cache.want(keys);
    await idle.settled();
  };
  await load([{ level: 9, from: 0, to: 1, lanes: [0] }]);
  await load([key(1)]);
  await load([key(2)]);
  await load([key(3)]);
  ok(cache.get(9, 0, 0), "whole run kept");
  ok(cache.get(0, 3, 0) && !cache.get(0, 1, 0), "the oldest is gone");
});

test("a failure is reported as a message", async () => {
  const { cache, idle, failures } = cacheWith(() =>
    Promise.resolve({ ok: false, status: 409, json: () => Promise.resolve({ error: "reload the page" }) }),
  );
  cache.want([key(1)]);
  await idle.settled();
  equal(failures, ["reload the page"]);
});
