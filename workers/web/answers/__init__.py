"""What pages ask: one file a subject. A file registers what it answers with ``@answers``; ``routes`` finds them all."""

from workers.web.answers.base import Answer, answers, routes

__all__ = ["Answer", "answers", "routes"]
