// Pages in files, after export.js: downloads of their tables and charts. A match is shown one phase at a time, by slider,
// buttons and keys; without this script all phases stand below each other.
for (const node of document.querySelectorAll("main table, main svg.chart")) {
  const frame = node.closest(".scroll") ?? node;
  const framed = document.createElement("div");
  const title = node.querySelector("caption")?.textContent || node.getAttribute("aria-label") || document.title;
  const hasFile = node.matches("svg") || frame.nextElementSibling?.querySelector('a[href$=".csv"]');
  framed.className = "framed";
  frame.replaceWith(framed);
  framed.append(downloads(title, () => node, hasFile ? null : () => cells(node)), frame);
}

/** A map as a file of its own: with the shapes that all maps of this page share, and the styles and colours that it has here. */
function mapFile(node) {
  const root = node.cloneNode(true);
  const { width, height } = node.viewBox.baseVal;
  const style = getComputedStyle(node);
  root.classList.remove("battlefield");
  root.prepend(...document.querySelector("#land").closest("svg").cloneNode(true).childNodes);
  const uses = ({ selectorText }) => selectorText && (root.matches(selectorText) || root.querySelector(selectorText));
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter(uses).map((rule) => rule.cssText).join("");
  const written = document.createElementNS(root.namespaceURI, "style");
  written.textContent = rules.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name));
  const sea = document.createElementNS(root.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ width, height, fill: style.backgroundColor })) sea.setAttribute(name, value);
  root.prepend(written, sea);
  for (const [name, value] of Object.entries({ width, height })) root.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

for (const node of document.querySelectorAll(".battlefield")) {
  const framed = document.createElement("div");
  const title = `Map of ${node.closest(".phase").querySelector("h3").textContent}`;
  framed.className = "framed mapped";
  node.replaceWith(framed);
  framed.append(downloads(title, () => mapFile(node), null), node);
}

for (const node of document.querySelectorAll(".embed")) {
  const address = () => (location.protocol === "file:" ? location.pathname.split("/").at(-1) : location.href.split("#")[0]) + location.hash;
  node.addEventListener("toggle", () => {
    const text = node.querySelector("pre");
    text.textContent = text.textContent.replace(/src="[^"]*"/, () => `src="${address()}"`);
  });
}

(() => {
  const PACE_MS = 1200;
  const list = document.querySelector(".phases");
  const phases = [...document.querySelectorAll(".phase")];
  if (phases.length < 2) return;
  const last = phases.length - 1;
  let at = 0;
  let timer = null;

  function make(tag, properties, text) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
    node.textContent = text ?? "";
    return node;
  }

  const back = make("button", { type: "button", "aria-label": "Phase before" }, "◀");
  const forth = make("button", { type: "button", "aria-label": "Next phase" }, "▶");
  const play = make("button", { type: "button" }, "play");
  const range = make("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Phase" });
  const said = make("output", { "aria-live": "polite" });
  const all = make("button", { type: "button", "aria-pressed": "false" }, "all phases");
  const controls = make("div", { class: "form player", role: "group", "aria-label": "Phases; the left and right arrow keys, Home and End move, too" });
  controls.append(back, play, forth, range, said, all);
  list.before(controls);
  list.classList.add("paged");

  function show(n, keeps) {
    phases[at].classList.remove("current");
    at = Math.min(Math.max(n, 0), last);
    phases[at].classList.add("current");
    const name = phases[at].querySelector("h3").textContent;
    range.value = at;
    range.setAttribute("aria-valuetext", name);
    back.disabled = at === 0;
    forth.disabled = at === last;
    said.textContent = `${name}, ${at + 1} of ${phases.length}`;
    if (!list.classList.contains("paged")) phases[at].scrollIntoView();
    // The address names the phase, so that it can be sent to somebody.
    if (!keeps) history.replaceState(null, "", `#phase-${at}`);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  }

  function start() {
    if (at === last) show(0);
    play.textContent = "pause";
    timer = setInterval(() => (at < last ? show(at + 1) : stop()), PACE_MS);
  }

  function go(n) {
    stop();
    show(n);
  }

  back.addEventListener("click", () => go(at - 1));
  forth.addEventListener("click", () => go(at + 1));
  range.addEventListener("input", () => go(Number(range.value)));
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  all.addEventListener("click", () => all.setAttribute("aria-pressed", String(!list.classList.toggle("paged"))));
  document.addEventListener("keydown", (event) => {
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
    // The slider has the same meanings of its own for these keys.
    if (!(event.key in places) || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, .scroll")) return;
    event.preventDefault();
    go(places[event.key]);
  });

  function named() {
    const [, number] = /^#phase-(\d{1,6})$/.exec(location.hash) ?? [];
    return number === undefined ? 0 : Number(number);
  }
  addEventListener("hashchange", () => show(named(), true));
  show(named(), true);
})();
