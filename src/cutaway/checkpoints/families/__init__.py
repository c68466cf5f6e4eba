"""The families whose checkpoints cutaway reads and writes, one file each."""

from cutaway.checkpoints.families import bert, distilbert, gpt2, llama, marian, t5, vit
from cutaway.checkpoints.family import Family

FAMILIES: tuple[Family, ...] = (
    marian.FAMILY,
    t5.FAMILY,
    bert.FAMILY,
    distilbert.FAMILY,
    gpt2.FAMILY,
    llama.FAMILY,
    vit.FAMILY,
)

BY_MODEL_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}
