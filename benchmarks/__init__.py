"""Benchmarks against named peers, measured in the same run; ``python -m benchmarks`` runs them all.

A ``bench_*.py`` has a ``main()`` that prints rates beside its peer's, and their ratio. It never asserts an absolute
time, which says more of the machine than of the code; it exits with 1 where results are wrong. Every benchmark runs in
miniature inside ``make test`` (``--miniature``): its counts are given as ``size(full, miniature)``.

- ``__main__``  runs benchmarks, each in a process of its own; prints wall time, processor time and load
- ``sizes``     full and miniature sizes; skipping where a peer is not installed
- ``bench_*``   the benchmarks that ``python -m benchmarks`` runs
- ``learning``, ``soak``, ``simulate_scale``, ``ablation``  longer ones, which run only when they are named
- ``inference_cases``, ``trainer_cases``, ``vllm_peer``, ``decision_parts``  models, cases and peers of the engines
- ``fleet``, ``scale_costs``, ``scale_model``  simulated workers, and the simulation of many machines
- ``web_*``, ``chromium``  histories, servers, viewers and the browser for the pages
- ``soak_samples``, ``soak_figures``  what ``soak`` records of a league's processes, and the slopes of it

To add one, write ``bench_NAME.py``; ``tests/benchmarks/test_miniature.py`` runs it.
"""
