// Answers in files. `league web --to` and `league match show -o` write them beside these pages, or into them, as scripts that
// append to FROZEN: a browser reads no other file from a disk.
//
// An entry is {answers: {question: value}, problems: {question: text}, texts: {question: runs of lines}, lines}. The first
// also has the manifest: {home, counts, time, pages: {address: the script with its answers, or ""}}.

const entries = globalThis.FROZEN;
const [first] = entries ?? [];
// Parameters that name a thing. The others are settings, of which a file has the usual ones.
const NAMING = ["agents", "name", "turn", "seat"];

/** What a file says about itself; null on a server's pages. */
export const manifest = first?.manifest ?? null;

/** A part of an address as it was meant; one that is no valid encoding stays as it is. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function plain(path) {
  return path.split("/").map(decoded).join("/");
}

/** Whether these pages have one at an address: a server has all of them. */
export function exists(path) {
  return !manifest || Object.hasOwn(manifest.pages, plain(path));
}

/** Load the answers of a page. */
export function loaded(path) {
  const source = manifest?.pages[plain(path)];
  if (!source || document.querySelector(`script[src="${source}"]`)) return null;
  return new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = source;
    script.addEventListener("load", () => done());
    script.addEventListener("error", () => failed(new Error(`${source}: cannot be read; it belongs beside this file`)));
    document.head.append(script);
  });
}

function find(path, query, kind) {
  const named = NAMING.filter((name) => query[name] !== undefined && query[name] !== null).map((name) => `${name}=${query[name]}`);
  const question = plain(path) + (named.length ? `?${named.join("&")}` : "");
  const entry = entries.find((each) => Object.hasOwn(each[kind], question) || Object.hasOwn(each.problems, question));
  if (!entry) throw new Error(`${question}: not in this file; \`league web\` answers it`);
  if (Object.hasOwn(entry.problems, question)) throw new Error(entry.problems[question]);
  return { entry, value: entry[kind][question] };
}

/** The answer to a question, as the server gave it. */
export function answer(path, query) {
  return structuredClone(find(path, query, "answers").value);
}

/** A text: texts of a file share their lines. */
export function text(path) {
  const { entry, value } = find(path, {}, "texts");
  return value.flatMap(([start, count]) => entry.lines.slice(start, start + count)).join("\n");
}
