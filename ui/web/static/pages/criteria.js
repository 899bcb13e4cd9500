// The four success criteria with their figures.

import { fill, h } from "../dom.js";
import { whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { table } from "../table.js";

export const title = "Criteria";
export const at = true;

const ROWS = [
  { name: "met", of: (r) => (r.met === null ? "" : r.met ? "✓" : "✗") },
  { name: "figure", of: (r) => r.figure },
  { name: "measured", of: (r) => r.measured, text: true },
  { name: "expected", of: (r) => [r.expected, r.advice && h("p", { class: "advice" }, r.advice)], text: true },
];

export async function show(main, context) {
  const place = h("div", { class: "stack" });

  async function update() {
    const found = await get("/criteria", { at: context.at });
    const passed = found.criteria.filter((criterion) => criterion.passed).length;
    fill(place, h("p", null, `${passed} of ${found.criteria.length} criteria are met, up to event ${whole(found.sequence)}.`), found.criteria.map(section));
  }

  fill(main, h("h1", null, "Success criteria"), place);
  await update();
  return paced(update);
}

function section(criterion) {
  const rows = table(ROWS, { key: (r) => r.figure, empty: "nothing was measured" });
  rows.update(criterion.figures);
  return h("section", null, h("h2", null, `${criterion.title}: `, h("span", { class: criterion.passed ? "good" : "soft" }, criterion.passed ? "met" : "not met")), rows.node);
}
