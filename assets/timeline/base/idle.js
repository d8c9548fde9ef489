/**
 * Tracks pending work: requests, timers, frames. Tests wait until nothing is pending.
 * @module
 */

export class Idle {
  /** @param {() => boolean} [elsewhere] true while work is pending that is not tracked here */
  constructor(elsewhere = () => false) {
    this.elsewhere = elsewhere;
    this.pending = new Map();
    this.begun = 0;
    this.waiting = [];
  }

  /** Work begins. @param {string} what @returns {() => void} to be called once when it ends */
  begin(what) {
    this.begun += 1;
    this.pending.set(what, (this.pending.get(what) ?? 0) + 1);
    let open = true;
    return () => {
      if (!open) return;
      open = false;
      const left = this.pending.get(what) - 1;
      if (left) this.pending.set(what, left);
      else this.pending.delete(what);
      this.check();
    };
  }

  /** Tracks a promise. @template T @param {string} what @param {Promise<T>} promise @returns {Promise<T>} */
  track(what, promise) {
    const end = this.begin(what);
    promise.then(end, end);
    return promise;
  }

  /** Names of pending work, for messages of tests. @returns {string[]} */
  get busy() {
    return [...this.pending.keys(), ...(this.elsewhere() ? ["dash"] : [])];
  }

  /** Resolves once no work has been pending for two frames. @returns {Promise<void>} */
  settled() {
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      this.check();
    });
  }

  /** Looks twice, a frame apart: work that follows on what has just ended begins in between. */
  check() {
    if (this.pending.size || !this.waiting.length || this.looking) return;
    this.looking = true;
    const { begun } = this;
    requestAnimationFrame(() => {
      const quiet = !this.elsewhere();
      requestAnimationFrame(() => {
        this.looking = false;
        if (this.pending.size) return;
        if (!quiet || this.begun !== begun || this.elsewhere()) this.check();
        else for (const resolve of this.waiting.splice(0)) resolve();
      });
    });
  }
}

/**
 * Returns a function that runs once its calls have paused.
 * @param {Idle} idle
 * @param {string} what
 * @param {number} pause ms
 * @param {(...args: any[]) => void} run
 */
export function debounced(idle, what, pause, run) {
  let timer = 0;
  let end = null;
  return (...args) => {
    clearTimeout(timer);
    end ??= idle.begin(what);
    timer = setTimeout(() => {
      const done = end;
      end = null;
      run(...args);
      done();
    }, pause);
  };
}
