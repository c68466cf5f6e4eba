"""Every hostile chat template ends in one sentence, in 5 seconds and 512 MB; its process ends with a killed parent."""

import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutaway.errors import CheckpointError, InputError
from cutaway.text import chat
from proof.hostile_templates import HOSTILE
from tests.text.test_sandbox import ends, run

CHAT = [{"role": "user", "content": "Good morning."}]


class Peak:
    """The most memory that the process of templates has had, looked at every 20 ms (Linux)."""

    def __init__(self) -> None:
        self.bytes = 0
        self.over = threading.Event()

    def watch(self) -> None:
        while not self.over.wait(0.02):
            process = chat._SANDBOX._process
            status = Path(f"/proc/{process.pid}/status") if process is not None else None
            try:
                lines = status.read_text().splitlines() if status is not None else []
            except OSError:  # it has ended
                continue
            used = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
            self.bytes = max([self.bytes, *used])


@pytest.fixture(scope="module")
def peak() -> Iterator[Peak]:
    found = Peak()
    thread = threading.Thread(target=found.watch)
    thread.start()
    yield found
    found.over.set()
    thread.join()
    print(f"{len(HOSTILE)} templates, at most {found.bytes / 2**20:.0f} MB")
    assert 0 < found.bytes <= 512 * 2**20


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_in_one_sentence(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with pytest.raises((CheckpointError, InputError)) as caught:
        chat.render(HOSTILE[name], CHAT, {"bos_token": "<s>"})
    assert time.monotonic() - began <= 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # kilobytes: the answer, and its text
    said = str(caught.value)
    assert said.startswith("the chat template ")
    assert "\n" not in said
    assert len(said) < 1500


def test_a_template_at_work_ends_soon_after_its_killed_parent() -> None:
    code = """import threading
chat.render('x', [{'role': 'user', 'content': 'hi'}], {})
endless = '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'
threading.Timer(1, lambda: print(chat._SANDBOX._process.pid, flush=True)).start()
chat.render(endless, [{'role': 'user', 'content': 'hi'}], {})
"""
    with run(code) as process:
        assert process.stdout is not None
        started = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert not ends(started, 0.2)  # it is at work, and looks at no pipe
        assert ends(started, 60)  # 4 seconds of processor time
