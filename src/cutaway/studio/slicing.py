"""Slices and indices of values, as a request writes them."""

from torch import Tensor

from cutaway.errors import InputError
from cutaway.seeing.trace.trace import Trace
from cutaway.studio.work_queue import HTTPRefusal


def part(value: Tensor, at: str | None, limit: int) -> Tensor:
    """A slice of a value: `0,2,:,1:4`; what is left out is whole."""
    places: list[int | slice] = []
    for text, n in zip(at.split(",") if at else (), value.shape, strict=False):
        try:
            bounds = [int(bound) if bound.strip() else None for bound in text.split(":")]
        except ValueError:
            raise HTTPRefusal(422, f"at={at!r} is no slice; give numbers and ranges, such as 0,2,:,1:4") from None
        if len(bounds) == 1 and bounds[0] is not None:
            if not -n <= bounds[0] < n:
                raise HTTPRefusal(422, f"there is no {bounds[0]} among {n} (at={at!r})")
            places.append(bounds[0])
        elif len(bounds) == 2 or text == ":":
            places.append(slice(*bounds[:2]))
        else:
            raise HTTPRefusal(422, f"at={at!r} is no slice; give numbers and ranges, such as 0,2,:,1:4")
    if at and len(at.split(",")) > value.dim():
        raise HTTPRefusal(422, f"at={at!r} names more axes than the {value.dim()} there are")
    found = value[tuple(places)]
    if found.numel() > limit:
        raise HTTPRefusal(413, f"{found.numel():,} numbers are more than the {limit:,} sent at once; ask for a slice")
    return found


def position(trace: Trace, name: str, at: str) -> tuple[int, ...]:
    """Reads the place of one number, such as `0,2,3,5`: an index for each axis."""
    try:
        place = tuple(int(number) for number in at.split(","))
    except ValueError:
        raise InputError(f"at={at!r} is no place; give a number for each axis of {trace.axes(name)}") from None
    if len(place) != len(trace.axes(name)):
        raise InputError(f"at={at!r} has {len(place)} numbers; {name} has the axes {trace.axes(name)}")
    return place
