// Every page: the first part of its address, its name in the navigation (none: reached by links only), what it is for,
// and its module.

export const PAGES = [
  { path: "", name: "League", about: "Whether it learns, who leads, and what happens now. main@10 is the policy main as it was after gradient step 10.", load: () => import("./pages/overview.js") },
  { path: "ratings", name: "Ratings", about: "Rating histories of the agents. Drag over a part to zoom in.", load: () => import("./pages/ratings.js") },
  { path: "payoff", name: "Payoff", about: "Shares of points between pairs of agents; they show what no ranking can, such as A beats B beats C beats A.", load: () => import("./pages/payoff.js") },
  { path: "agent", load: () => import("./pages/agent.js") },
  { path: "matches", name: "Matches", about: "All matches, trained on or not, move by move.", load: () => import("./pages/matches.js") },
  { path: "match", load: () => import("./pages/match.js") },
  { path: "training", name: "Training", about: "Metrics of every gradient step, and what became of the trajectories.", load: () => import("./pages/training.js") },
  { path: "compare", name: "Compare", several: true, about: "The runs that this server shows, side by side.", load: () => import("./pages/compare.js") },
  { path: "criteria", name: "Criteria", about: "The four success criteria of the specification, and what each misses.", load: () => import("./pages/criteria.js") },
  { path: "sql", name: "SQL", about: "Read-only queries over the whole history.", load: () => import("./pages/sql.js") },
  { path: "matchmaking", name: "Matchmaking", about: "Opponents of the policy: realised shares and their targets.", load: () => import("./pages/matchmaking.js") },
  { path: "lineage", name: "Lineage", about: "Checkpoints and their parents.", load: () => import("./pages/lineage.js") },
  { path: "workers", name: "Workers", about: "Health and load of the processes that play, rate and train.", load: () => import("./pages/workers.js") },
  { path: "problems", name: "Problems", about: "Alarms, dead letters, and matches that failed or were voided.", load: () => import("./pages/problems.js") },
  { path: "play", name: "Play", load: () => import("./pages/play.js") },
];
