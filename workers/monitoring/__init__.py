"""Monitoring of a league and its processes.

- ``metrics``     heartbeats of every worker, with metrics of its GPUs
- ``exposition``  metrics in Prometheus text format, served over HTTP
- ``alarms``      logs alarms and posts them to a webhook
- ``live_table``  a run's progress on a terminal
"""
