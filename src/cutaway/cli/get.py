"""`cutaway get`: a model of the hub into the cache."""

import json

from cutaway.checkpoint_info import facts
from cutaway.checkpoints.hub import fetch
from cutaway.cli.info import headline, record
from cutaway.cli.terminal import show
from cutaway.info.size import size
from cutaway.loading import SHIPPED, shipped


def run(name: str, revision: str | None, as_json: bool) -> None:
    found = facts(SHIPPED / name if name in shipped() else fetch(name, revision=revision))
    if as_json:
        show(json.dumps({"name": name} | record(found, size(found.config)), indent=2))
        return
    show(found.path)
    show(headline(found))
