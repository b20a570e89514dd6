"""Waits for a job: the same call again and again, paced, until the job says that it is finished.

Between two polls the mission waits in the ledger. If the process dies meanwhile, `pursuit resume` polls on.
"""

import tempfile
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Pace, RepeatProposer, Runtime, event, tool

polls = 0


@tool(read_only=True)
def job_status(job_id: str) -> dict:
    """Where a job stands; this one is finished at the sixth look."""
    global polls
    polls += 1
    percent = min(100, polls * 17)
    events = [{"event_name": "finished", "job_id": job_id}] if percent == 100 else []
    return {"metrics": {"percent": percent}, "events": events}


MISSION = Mission(
    directive="Wait until job 42 is finished.",
    criteria=[event("finished", source="cluster.job_status")],
    budget=Budget(max_wall_clock_seconds=30),
    tool_allowlist=["cluster.job_status"],
    pace=Pace(seconds=0.05, max_seconds=0.5),
    proposer=RepeatProposer(tool_name="cluster.job_status", args={"job_id": "42"}),
)


def show(_mission_id: str, phase: str, state) -> None:
    """What the runtime tells this process while it drives."""
    if phase in ("decided", "ended"):
        print(f"poll {state.iteration_count}: {state.metrics['percent']} %")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"cluster": [job_status]}) as runtime:
            report = await runtime.pursue(MISSION, observer=show)
    print(f"{report.status} after {report.data['iteration_count']} polls ({report.verdict_reason})")


if __name__ == "__main__":
    anyio.run(main)
