// @ts-check
// Which calls have failed, so that the success of one does not hide the failure of another.

/**
 * @param {(error: Error | null) => void} show the last failure that still holds, or none
 */
export function createFailures(show) {
  /** @type {Map<string, Error>} */
  const failed = new Map();
  const last = () => [...failed.values()].at(-1) ?? null;
  return {
    /** @param {string} call @param {Error} error */
    add(call, error) {
      failed.delete(call); // the latest is last
      failed.set(call, error);
      show(error);
    },
    /** The same call has succeeded. @param {string} call */
    remove(call) {
      if (failed.delete(call)) show(last());
    },
    clear() {
      if (!failed.size) return;
      failed.clear();
      show(null);
    },
  };
}
