// What a page must be like, looked at from inside: run by the browser tests, by name.

/** Parts of a colour from 0 to 1, with its opacity, as browsers write computed ones. */
function parts(text) {
  const numbers = (text.match(/-?[\d.]+(e-?\d+)?/g) ?? []).map(Number);
  if (text.startsWith("color(srgb")) return [...numbers.slice(0, 3), numbers[3] ?? 1];
  if (!/^rgba?\(/.test(text)) return [0, 0, 0, 0];
  return [...numbers.slice(0, 3).map((n) => n / 255), numbers[3] ?? 1];
}

function over([r, g, b, a], below) {
  return [r, g, b].map((value, i) => value * a + below[i] * (1 - a)).concat(1);
}

/** As WCAG 2.2 defines it. */
function luminance(colour) {
  const [r, g, b] = colour.map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function ratio(a, b) {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}

function ground(element) {
  const layers = [];
  for (let node = element; node; node = node.parentElement) layers.push(parts(getComputedStyle(node).backgroundColor));
  // What lies under everything is the canvas, which is white in a light page and never seen in a dark one.
  return layers.reduceRight((below, layer) => over(layer, below), [1, 1, 1, 1]);
}

function opacity(element) {
  let value = 1;
  for (let node = element; node; node = node.parentElement) value *= Number(getComputedStyle(node).opacity);
  return value;
}

function seen(element) {
  const box = element.getBoundingClientRect();
  return box.width > 1 && box.height > 1 && getComputedStyle(element).visibility === "visible" && !element.closest(".hidden, .skip, option, :disabled");
}

function words(element) {
  const text = element.textContent.trim().slice(0, 40);
  return `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} ${JSON.stringify(text)}`;
}

/** Texts that stand out too little from what they stand on. */
function faint(least) {
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element || !seen(element)) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const [r, g, b, a] = parts(element instanceof SVGElement ? style.fill : style.color);
    const value = ratio(over([r, g, b, a * opacity(element)], below), below);
    if (value < least) found.set(`${style.color} ${below}`, `${value.toFixed(2)} ${words(element)}`);
  }
  return [...found.values()];
}

/** What reaches out of the window, where the page would have to be scrolled sideways. */
function wide() {
  const most = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= most) return [];
  const out = [...document.querySelectorAll("body *")].filter((node) => node.getBoundingClientRect().right > most + 1 && !node.closest(".scroll *, .graphframe *"));
  return [`${document.documentElement.scrollWidth} of ${most} pixels`, ...out.slice(0, 5).map(words)];
}

/** Traces of anything that was made of a text, and characters that would change how others are shown. */
function made(mark) {
  const found = [];
  if (window[mark] !== undefined) found.push("a script ran");
  for (const node of document.querySelectorAll(`[id*="${mark}"], [class*="${mark}"], script:not([src="/static/app.js"]), iframe, object, embed, base, marquee`)) found.push(words(node));
  for (const node of document.querySelectorAll("*")) {
    for (const { name, value } of node.attributes) {
      if (name.startsWith("on") || name === "srcdoc" || (name === "href" && /^\s*(javascript|data):/i.test(value))) found.push(`${name} of ${words(node)}`);
      // The value of a choice is what is asked for when it is chosen; nobody sees it.
      if (name !== "value" && /[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(value)) found.push(`${name} of ${words(node)} holds control characters`);
    }
  }
  const control = /[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/.exec(document.body.textContent);
  if (control) found.push(`a control character at ${JSON.stringify(document.body.textContent.slice(Math.max(control.index - 60, 0), control.index + 20))}`);
  return found;
}

return { faint, wide, made }[arguments[0]](...[...arguments].slice(1));
