// Addresses of pages. A server's pages have them as the browser does; a file has them behind the "#" of its own.

import { manifest } from "./frozen.js";

/** The address of the page that is shown. */
export function here() {
  if (!manifest) return new URL(location.href);
  const home = new URL(manifest.home, "http://file.invalid");
  return /^#[/?]/.test(location.hash) ? new URL(location.hash.slice(1), home) : home;
}

/** An address for a link. */
export function href(path) {
  if (!manifest) return path;
  const to = new URL(path, here());
  return `#${to.pathname}${to.search}`;
}

/** Show an address without loading its page. */
export function put(address, isNew = false) {
  history[isNew ? "pushState" : "replaceState"](null, "", href(address.pathname + address.search));
}

/** The address of the page that a link leads to; null where it leads elsewhere. */
export function target(a) {
  if (manifest) return /^#[/?]/.test(a.getAttribute("href") ?? "") ? new URL(a.hash.slice(1), here()) : null;
  const isPage = a.origin === location.origin && !a.pathname.startsWith("/api/") && !a.pathname.startsWith("/static/");
  return isPage ? new URL(a.href) : null;
}
