"""Every process of a league that finds this on its path notes what the broker acknowledged to it, and when it did.

A line is written by one system call once the acknowledgement has come, so a killed process's notes are what it knew:
sequence and key of the event. ``LEAGUE_WITNESS`` names the file; without it nothing is noted.
"""

import os

if "LEAGUE_WITNESS" in os.environ:
    from league.log.jetstream import JetStreamLog

    _notes = os.open(os.environ["LEAGUE_WITNESS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _append, _append_batch = JetStreamLog.append, JetStreamLog.append_batch

    async def append(self, event, *, expected=None):
        sequence = await _append(self, event, expected=expected)
        os.write(_notes, f"{sequence} {event.key}\n".encode())
        return sequence

    async def append_batch(self, events, *, expected=None):
        sequences = await _append_batch(self, events, expected=expected)
        lines = [f"{sequence} {event.key}\n" for sequence, event in zip(sequences, events, strict=True)]
        os.write(_notes, "".join(lines).encode())
        return sequences

    JetStreamLog.append, JetStreamLog.append_batch = append, append_batch
