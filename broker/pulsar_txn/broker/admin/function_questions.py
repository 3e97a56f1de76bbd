"""Questions of the broker to its functions worker, which takes them over HTTP and answers each once. Ours, as its API.

The worker knows what a function is, and has a client. So the broker hands it what needs either.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any, Final

from aiohttp import web

from .answers import Routes, done, failed, json_body, number

WORKER: Final = web.AppKey("functions_worker", dict[str, str])
"""`id`: of the worker that asked last."""
WAIT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 50.0
_BASE: Final = "/admin/pulsar-txn/v1/functions"


class Questions:
    """Questions that have no answer yet. A question is handed to one worker; if that one ends, nobody answers it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._new: deque[dict[str, Any]] = deque()
        self._asked = asyncio.Event()

    async def ask(self, question: dict[str, Any]) -> Any:
        """The value that the worker answers with. Raises the HTTP error that it answers with; HTTPGatewayTimeout."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        handed = question | {"number": number}
        self._new.append(handed)
        self._asked.set()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await answer
        except TimeoutError:
            text = f"the functions worker did not answer in {_ANSWER_SECONDS:.0f} s; look at its log"
            raise web.HTTPGatewayTimeout(text=text) from None
        finally:
            del self._answers[number]
            if handed in self._new:
                self._new.remove(handed)
        if "reason" in found:
            raise _refusal(found)
        return found.get("value")

    async def take(self) -> list[dict[str, Any]]:
        """The questions that nobody has taken yet, at once or when there is one; none after a while."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._new:
                    self._asked.clear()
                    await self._asked.wait()
        except TimeoutError:
            return []
        taken = list(self._new)
        self._new.clear()
        return taken

    def answer(self, number: int, answer: dict[str, Any]) -> None:
        """`value`, or `status` and `reason`. An answer that nobody waits for any longer is dropped."""
        waiting = self._answers.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


QUESTIONS: Final = web.AppKey("function_questions", Questions)


class _Refused(web.HTTPException):
    """Refusal of the worker, with its status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status_code = status
        super().__init__(text=reason)


def _refusal(answer: dict[str, Any]) -> web.HTTPException:
    status = answer.get("status")
    return _Refused(status if isinstance(status, int) and 400 <= status < 600 else 500, str(answer["reason"]))


async def _take(request: web.Request) -> web.Response:
    check_worker(request)
    return web.json_response(await request.app[QUESTIONS].take())


async def _answer(request: web.Request) -> web.Response:
    check_worker(request)
    found = await json_body(request)
    if not isinstance(found, dict):
        return failed(400, "the body should be an object with value, or with status and reason")
    request.app[QUESTIONS].answer(number(request, "number"), found)
    return done()


def check_worker(request: web.Request) -> None:
    """HTTPConflict when another worker has asked later what is to run. A broker that was just started knows of no worker."""
    if request.app[WORKER]["id"] not in ("", request.query.get("worker", "")):
        raise web.HTTPConflict(text="another functions worker has taken over; this one must end")


ROUTES: Routes = [
    ("GET", _BASE + "/questions", _take),
    ("PUT", _BASE + "/answers/{number}", _answer),
]
