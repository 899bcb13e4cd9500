// The family tree of agents: rows of shapes with lines to their parents, with keyboard navigation.

import { fill, h, s } from "./dom.js";
import { downloads } from "./export.js";
import { decimal } from "./format.js";

const ROW = 54;
const LEFT = 40;
const TOP = 34;
const SIZE = 7;
const WIDEST = 160;
const NARROWEST = 12;

const circle = (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;

function polygon(corners, turn, x, y, r, inner = r) {
  const count = inner === r ? corners : 2 * corners;
  const points = Array.from({ length: count }, (_, i) => {
    const angle = turn + (i * 2 * Math.PI) / count;
    const reach = i % 2 && inner !== r ? inner : r;
    return `${(x + reach * Math.sin(angle)).toFixed(1)} ${(y - reach * Math.cos(angle)).toFixed(1)}`;
  });
  return `M${points.join("L")}Z`;
}

// The reason for joining is a shape, since some readers cannot tell colours apart.
const PATHS = {
  base: (x, y, r) => polygon(6, 0, x, y, r * 1.2),
  first: (x, y, r) => polygon(3, 0, x, y, r * 1.3),
  landmark: (x, y, r) => polygon(4, Math.PI / 4, x, y, r * 1.35),
  recent: circle,
  elite: (x, y, r) => polygon(5, 0, x, y, r * 1.5, r * 0.65),
  reset: (x, y, r) => polygon(4, 0, x, y, r * 1.35),
  other: (x, y, r) => polygon(3, Math.PI, x, y, r * 1.3),
};
function shape(reason, x, y, r, active) {
  const known = PATHS[reason] ? reason : "other";
  const paint = "var(--series-0)";
  return s("path", { d: PATHS[known](x, y, r), fill: active ? paint : "var(--ground)", stroke: paint, "stroke-width": 2 });
}

export const SHAPES = {
  sample: (reason) => s("svg", { class: "swatch shape", viewBox: "0 0 22 22", "aria-hidden": "true" }, shape(reason, 11, 11, SIZE, true)),
};

/** Place all agents: a row for each branch of each policy, a column for each version. */
function placed(agents) {
  const called = (agent) => (agent.policy ? (agent.branch ? `${agent.policy}, after reset ${agent.branch}` : agent.policy) : "base");
  const policies = [...new Set(agents.map((agent) => agent.policy))];
  const inOrder = [...agents].sort((a, b) => policies.indexOf(a.policy) - policies.indexOf(b.policy) || a.branch - b.branch);
  const rows = [...new Set(inOrder.map(called))];
  const versions = [...new Set(agents.filter((a) => a.policy).map((a) => a.version))].sort((a, b) => a - b);
  const column = new Map(versions.map((version, i) => [version, i + 1]));
  const nodes = agents.map((agent) => ({ agent, row: rows.indexOf(called(agent)), column: agent.policy ? column.get(agent.version) : 0 }));
  // Several base models share the first column's row, one beside the other.
  nodes.filter((node) => !node.agent.policy).forEach((node, i) => (node.column = i));
  return { rows, nodes, columns: versions.length + 1 };
}

function label(agent) {
  const parts = [agent.agent, agent.reason || agent.kind, agent.active ? "active" : "not active"];
  if (agent.rating !== null) parts.push(`rating ${decimal(agent.rating, 0)}`);
  if (agent.operator) parts.push(`${agent.operator} of ${agent.parents.join(" and ")}`);
  else if (agent.parent) parts.push(`from ${agent.parent}`);
  return parts.join(", ");
}

/**
 * A graph of agents. `chosen(name)` is called for one that is clicked, or chosen by Enter.
 * Returns {node, update(agents), choose(name)}; an agent has {agent, kind, policy, version, parent, reason, active, branch, rating, operator, parents}.
 */
export function drawing(chosen) {
  const plot = s("svg", { class: "graph", role: "group", "aria-label": "Checkpoints and their parents" });
  const frame = h("div", { class: "scroll graphframe" }, plot);
  const spread = h("input", { type: "range", min: NARROWEST, max: WIDEST, value: 0, oninput: () => draw(Number(spread.value)) });
  const menu = downloads("Lineage", () => plot, null);
  const spacing = h("label", null, "spacing ", spread);
  const node = h("figure", { class: "figure framed" }, menu, h("figcaption", null, spacing), frame);
  // Labels of rows stay visible when scrolled to the right.
  frame.addEventListener("scroll", () => plot.querySelectorAll(".name").forEach((name) => name.setAttribute("x", LEFT + 8 + frame.scrollLeft)));
  let layout = placed([]);
  let drawn = new Map();
  let current = null;
  let picked = null;
  let began = false;

  function fitting() {
    const room = (frame.clientWidth || 900) - 2 * LEFT;
    return Math.max(NARROWEST, Math.min(WIDEST, Math.floor(room / Math.max(layout.columns, 1))));
  }

  function draw(gap) {
    const place = (n) => [LEFT + n.column * gap, TOP + n.row * ROW];
    const held = plot.contains(document.activeElement);
    plot.setAttribute("width", 2 * LEFT + layout.columns * gap);
    plot.setAttribute("height", TOP + layout.rows.length * ROW);
    const known = new Map(layout.nodes.map((n) => [n.agent.agent, n]));
    const every = Math.ceil(40 / gap);
    const size = Math.min(SIZE, gap / 2);
    drawn = new Map();
    fill(plot,
      layout.rows.map((name, row) => s("text", { class: "name", x: LEFT + 8 + frame.scrollLeft, y: TOP + row * ROW - 14 }, name)),
      layout.nodes.map((n) => (n.agent.parents ?? [n.agent.parent]).filter((name) => known.has(name)).map((name) => edge(place(known.get(name)), place(n)))),
      layout.nodes.map((n) => mark(n, place(n), size, n.column % every === 0 || gap >= 40)));
    aim(drawn.has(current) ? current : layout.nodes[0]?.agent.agent, held);
    if (picked) drawn.get(picked)?.classList.add("picked");
  }

  function edge([x1, y1], [x2, y2]) {
    // Down first, then along the row: lines that cross rows slantwise cannot be followed where there are many.
    return s("path", { class: "edge", d: `M${x1} ${y1}V${y2}H${x2}` });
  }

  function mark(n, [x, y], size, named) {
    const group = s("g", { class: "mark", role: "button", tabindex: -1, "aria-label": label(n.agent), onclick: () => chosen(n.agent.agent), onfocus: () => aim(n.agent.agent) },
      s("title", null, label(n.agent)), s("rect", { x: x - size, y: y - 14, width: 2 * size, height: 28, fill: "transparent" }),
      shape(n.agent.reason || n.agent.kind, x, y, size, n.agent.active),
      named && s("text", { x, y: y + 22, "text-anchor": "middle" }, n.agent.policy ? n.agent.version : n.agent.agent));
    drawn.set(n.agent.agent, group);
    return group;
  }

  function reveal(name) {
    const n = layout.nodes.find((each) => each.agent.agent === name);
    if (!n) return;
    const [x, y] = [LEFT + n.column * Number(spread.value), TOP + n.row * ROW];
    if (x < frame.scrollLeft || x > frame.scrollLeft + frame.clientWidth) frame.scrollLeft = x - frame.clientWidth / 2;
    if (y < frame.scrollTop || y > frame.scrollTop + frame.clientHeight) frame.scrollTop = y - frame.clientHeight / 2;
  }

  /** Who is reached by Tab; the others by arrows from there. */
  function aim(name, focus = false) {
    drawn.get(current)?.setAttribute("tabindex", -1);
    current = name;
    const group = drawn.get(name);
    group?.setAttribute("tabindex", 0);
    if (focus) group?.focus();
  }

  function beside(n, rows, columns) {
    const others = layout.nodes.filter((o) => (rows ? o.row === n.row + rows : o.row === n.row && Math.sign(o.column - n.column) === Math.sign(columns)));
    return others.sort((a, b) => Math.abs(a.column - n.column) - Math.abs(b.column - n.column))[0];
  }

  plot.addEventListener("keydown", (event) => {
    const n = layout.nodes.find((each) => each.agent.agent === current);
    if (!n) return;
    const row = layout.nodes.filter((each) => each.row === n.row).sort((a, b) => a.column - b.column);
    const ways = {
      ArrowLeft: () => beside(n, 0, -1), ArrowRight: () => beside(n, 0, 1), ArrowUp: () => beside(n, -1, 0), ArrowDown: () => beside(n, 1, 0),
      Home: () => row[0], End: () => row.at(-1), Enter: () => void chosen(current), " ": () => void chosen(current),
    };
    if (!(event.key in ways)) return;
    event.preventDefault();
    const to = ways[event.key]();
    if (to) aim(to.agent.agent, true);
  });

  return {
    node,
    update(agents) {
      layout = placed(agents);
      if (began) draw(Number(spread.value));
      // Its width is known once it is on the page. The newest checkpoints, on the right, are seen first.
      else requestAnimationFrame(() => {
        draw(Number((spread.value = fitting())));
        spacing.hidden = Number(spread.value) === WIDEST;
        if (picked) reveal(picked);
        else frame.scrollLeft = frame.scrollWidth;
      });
      began = true;
    },
    choose(name) {
      drawn.get(picked)?.classList.remove("picked");
      picked = name;
      drawn.get(name)?.classList.add("picked");
      aim(name);
      reveal(name);
    },
  };
}
