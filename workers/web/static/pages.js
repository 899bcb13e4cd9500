// Every page: the first part of its address, its name in the navigation (none: reached by links only), and its module.

export const PAGES = [
  { path: "", name: "League", load: () => import("./pages/overview.js") },
  { path: "ratings", name: "Ratings", load: () => import("./pages/ratings.js") },
  { path: "payoff", name: "Payoff", load: () => import("./pages/payoff.js") },
  { path: "agent", load: () => import("./pages/agent.js") },
  { path: "matches", name: "Matches", load: () => import("./pages/matches.js") },
  { path: "match", load: () => import("./pages/match.js") },
  { path: "training", name: "Training", load: () => import("./pages/training.js") },
  { path: "sql", name: "SQL", load: () => import("./pages/sql.js") },
  { path: "matchmaking", name: "Matchmaking", load: () => import("./pages/matchmaking.js") },
  { path: "lineage", name: "Lineage", load: () => import("./pages/lineage.js") },
  { path: "workers", name: "Workers", load: () => import("./pages/workers.js") },
  { path: "problems", name: "Problems", load: () => import("./pages/problems.js") },
  { path: "play", name: "Play", load: () => import("./pages/play.js") },
];
