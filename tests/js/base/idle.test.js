import { debounced, Idle } from "/assets/timeline/base/idle.js";
import { equal, ok, test } from "../harness.js";

test("idle waits for what begins a frame after work elsewhere has ended", async () => {
  let elsewhere = true;
  const idle = new Idle(() => elsewhere);
  let settled = false;
  const done = idle.settled().then(() => {
    settled = true;
  });
  await new Promise(requestAnimationFrame);
  elsewhere = false;
  const begun = new Promise((resolve) => requestAnimationFrame(() => resolve(idle.begin("a"))));
  const end = await begun;
  for (let frame = 0; frame < 4; frame++) await new Promise(requestAnimationFrame);
  ok(!settled, "what followed has not ended");
  end();
  await done;
});

test("idle waits for pending work, also for work that began later", async () => {
  const idle = new Idle();
  const end = idle.begin("a");
  let settled = false;
  const done = idle.settled().then(() => {
    settled = true;
  });
  await new Promise(requestAnimationFrame);
  ok(!settled, "still busy");
  const second = idle.begin("b");
  end();
  end(); // ending twice counts once
  await new Promise(requestAnimationFrame);
  equal(idle.busy, ["b"]);
  second();
  await done;
  ok(settled);
});

test("debounced runs once, with the last arguments, and is busy until then", async () => {
  const idle = new Idle();
  const calls = [];
  const call = debounced(idle, "pause", 5, (x) => calls.push(x));
  call(1);
  call(2);
  equal(idle.busy, ["pause"]);
  await idle.settled();
  equal(calls, [2]);
});
