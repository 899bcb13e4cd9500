// Choices on a page: kept in its address, so that they can be linked to and survive the slider.

import { here, put } from "./address.js";
import { h } from "./dom.js";

/** Keep choices in the address; an empty one leaves it. */
export function remember(values) {
  const address = here();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  put(address);
}

/** Several names as one parameter; names may hold commas. */
export function joined(names) {
  return names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
}

/** The names of such a parameter. */
export function parted(text) {
  return (text ?? "").split(",").filter(Boolean).map((name) => name.replaceAll(/%2C/gi, ",").replaceAll("%25", "%"));
}

/**
 * A choice of one.
 *
 * groups: [[name of the group or "", [[value, what it is called], …]], …]. `chosen` is called with a value.
 */
export function choice(name, groups, value, chosen) {
  const options = groups.filter(([, list]) => list.length).map(([group, list]) => {
    const inside = list.map(([of, called]) => h("option", { value: of, selected: of === value }, called));
    return group ? h("optgroup", { label: group }, inside) : inside;
  });
  return h("label", null, name, h("select", { onchange: (event) => chosen(event.target.value) }, options));
}

/** The recorded rating systems as a group of a choice. */
export function systemGroups(systems) {
  return [["", systems.recorded.map((one) => [one, one === systems.official ? `${one} (official)` : one])]];
}
