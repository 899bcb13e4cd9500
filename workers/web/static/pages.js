// Every page: the first part of its address, its name in the navigation (none: reached by links only), and its module.

export const PAGES = [
  { path: "", name: "League", load: () => import("./pages/overview.js") },
];
