"""200 requests at once to a studio in its own process, three times over: `python -m bench.crowd`.

All must be answered or told to come again (429), none may hang, and memory must stay where its bounds are: the same
after the third crowd as after the first.
"""

import asyncio
import collections
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

from bench.report import Table, machine_facts

CROWD, ROUNDS = 200, 3
SENTENCE = "The animal didn't cross the street because it was too tired."


def megabytes(process: int, what: str) -> int:
    """`VmRSS`, what it has now; `VmHWM`, the most that it ever had."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) // 1000


async def crowd(address: str, headers: dict[str, str]) -> tuple[collections.Counter[int], float]:
    """How many got which status, and when the last one had it. Each asks for another text, so none is known already."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=address, timeout=120, limits=limits, headers=headers, trust_env=False
    ) as client:
        begin = time.perf_counter()
        asked = (
            client.post("/api/run", json={"model": "en-fr", "text": f"{SENTENCE} {i} of them."}) for i in range(CROWD)
        )
        answers = await asyncio.gather(*asked)
    return collections.Counter(answer.status_code for answer in answers), time.perf_counter() - begin


def opened(studio: "subprocess.Popen[str]") -> tuple[str, dict[str, str]]:
    """The address that a studio prints once it listens, and the header that its token goes into."""
    assert studio.stdout is not None
    address, _, token = studio.stdout.readline().split()[0].partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    httpx.get(f"{address}/api/models", headers=headers, timeout=60, trust_env=False).raise_for_status()
    return address, headers


def main() -> None:
    for name, value in machine_facts().items():
        print(f"{name}: {value}")
    command = [sys.executable, "-m", "cutaway", "studio", "--no-browser", "--port", "0"]
    studio = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address, headers = opened(studio)
        rows = [["before", "", "", "", "", str(megabytes(studio.pid, "VmRSS")), ""]]
        for i in range(ROUNDS):
            statuses, seconds = asyncio.run(crowd(address, headers))
            other = CROWD - statuses[200] - statuses[429]
            memory = [str(megabytes(studio.pid, what)) for what in ("VmRSS", "VmHWM")]
            rows.append([f"crowd {i + 1}", *map(str, (statuses[200], statuses[429], other)), f"{seconds:.1f}", *memory])
    finally:
        studio.terminate()
        studio.wait()
    columns = ["", "answered", "told to come again", "other", "last answer, s", "MB", "most MB"]
    print("\n" + Table(f"{CROWD} requests at once", columns, rows).text())


if __name__ == "__main__":
    main()
