// Pauses between requests: the longer an answer takes, the longer the pause after it. What takes seconds must not keep a
// server busy all the time.

const SHARE = 9; // So many times as long as an answer took, nothing is asked.

/**
 * Do some work every so many milliseconds while the page is seen, and less often where it takes long. Returns a function
 * that ends it.
 */
export function again(work, everyMs) {
  let timer = null;
  let ended = false;

  async function turn() {
    const began = performance.now();
    if (!document.hidden) await work();
    if (!ended) timer = setTimeout(turn, Math.max(everyMs, SHARE * (performance.now() - began)));
  }

  timer = setTimeout(turn, everyMs);
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

/**
 * Work that is repeated, for at most a tenth of the time. What comes too early is made up for once.
 * Returns {update(), close()}.
 */
export function paced(work) {
  let free = 0;
  let waiting = null;

  async function run() {
    const began = performance.now();
    try {
      await work();
    } finally {
      free = performance.now() + SHARE * (performance.now() - began);
    }
  }

  function later(wait) {
    waiting ??= setTimeout(() => {
      waiting = null;
      run().catch((error) => console.warn(error));
    }, wait);
  }

  return {
    update() {
      const wait = free - performance.now();
      return wait > 0 ? later(wait) : run();
    },
    close() {
      clearTimeout(waiting);
    },
  };
}
