"""The calls of tools at one problem, as they are made: by a client that waits, or as a task that nobody waits for.

Owns: what is done before and after a call: it is counted, cut off at the end of the time, or is a submission. Does not
know: connections, or what makes a call a task. Invariant: a call is counted before it is made; none outlives the time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import anyio

from pursuit.core.observe import leaves, lift
from pursuit.errors import AlreadySubmitted, InvalidArgument, PursuitError, UpstreamUnavailable
from pursuit.problems.attempts import Attempt
from pursuit.problems.brief import SUBMIT, TOOL
from pursuit.surfaces.mcp.gateway.eras import enveloped
from pursuit.surfaces.mcp.gateway.guests import Visit
from pursuit.surfaces.mcp.problems.following import Following
from pursuit.surfaces.mcp.problems.handing_in import Answer, HandingIn
from pursuit.surfaces.mcp.problems.legs import Legs
from pursuit.surfaces.mcp.problems.offer import MISNAMED, OWN, Offer
from pursuit.surfaces.mcp.problems.submitting import Submitting, refusal


class Clerk:
    """Answers the calls that the gateway hands it; `look` says what there is, `info` whose answers they are."""

    def __init__(
        self,
        attempt: Attempt,
        submitting: Submitting,
        following: Following,
        *,
        look: Callable[[], Awaitable[Offer]],
        info: Mapping[str, Any],
    ) -> None:
        self._attempt = attempt
        self._submitting = submitting
        self._handing_in = HandingIn(attempt, following, submitting.judged)
        self._following = following
        self._look = look
        self._info = info
        self._legs = Legs()

    async def __call__(self, visit: Visit, answer: Answer) -> dict[str, Any]:
        """Answers one call; `answer` is how the gateway makes it."""
        name, arguments = visit.params.get("name"), visit.params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, Mapping)):
            return await answer(visit)  # it says what is wrong
        given = cast("Mapping[str, Any]", arguments or {})
        offer: Offer | None = None
        with anyio.move_on_after(self._attempt.seconds_left()):
            offer = await self._look()
        if offer is None:
            return self._ours(visit, refusal(await self._over()))
        if offer.faults():
            return self._ours(visit, refusal(InvalidArgument(MISNAMED)))
        if name == SUBMIT:
            return await self._submitted(visit, answer, offer, given)
        if name == TOOL and offer.briefed:  # free, as its description says
            return await answer(visit)
        return await self._counted(visit, answer, offer.form, given)

    def _ours(self, visit: Visit, body: Mapping[str, Any]) -> dict[str, Any]:
        """An answer of our own in the client's era."""
        return enveloped(visit.method, body, self._info) if visit.guest.modern else dict(body)

    async def _over(self) -> PursuitError:
        """Why nothing is done any more when the time is over: because of the submission, if there is one."""
        try:
            await self._attempt.refuse_second()
        except AlreadySubmitted as error:
            return error
        return await self._attempt.overran()

    async def _submitted(self, visit: Visit, answer: Answer, offer: Offer, given: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if offer.form is None:
                said = f"the problem's server has the last word on submissions, and cannot be reached: {offer.missing}"
                raise UpstreamUnavailable(f"{said}; nothing was recorded, so try again later")
            form = await self._attempt.fix_form(offer.form)
            if form == OWN:
                return self._ours(visit, await self._submitting.own(visit.ctx, given))
            return await self._handing_in.hand_in(visit, answer, form, given)
        except PursuitError as error:
            return self._ours(visit, refusal(error))

    async def _counted(
        self, visit: Visit, answer: Answer, form: str | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A call of the upstream's tool; the later legs of one call are the same call, and end with the attempt."""
        name = str(visit.params["name"])
        number = self._legs.number(visit.params, name, given)
        try:
            if number is not None:
                await self._attempt.check_open()
            else:
                if form is not None:
                    await self._attempt.fix_form(form)
                number = await self._attempt.called(name, given)
        except PursuitError as error:
            return self._ours(visit, refusal(error))
        ok, asked, metrics = False, False, dict[str, float]()
        try:
            with anyio.move_on_after(self._attempt.seconds_left()):
                result = await answer(visit)
                asked = self._legs.note(result, number, name, given)
                if asked and visit.goes_on is not None:
                    self._following.follow(visit.goes_on, partial(self._cut, number))
                ok = not result.get("isError")
                with suppress(RecursionError):  # then it tells no numbers
                    metrics = dict(leaves(lift(name, result)[0]))
                return result
        finally:
            if not asked:
                with anyio.CancelScope(shield=True):
                    await self._attempt.answered(number, ok=ok, metrics=metrics)
        return self._ours(visit, refusal(await self._attempt.overran()))

    async def _cut(self, number: int, late: bool) -> None:
        """A call has ended whose client was asked; one that nobody came back to before the time was over has failed."""
        if late and self._legs.forget(number):
            await self._attempt.answered(number, ok=False)
            await self._attempt.overran()
