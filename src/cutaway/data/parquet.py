"""Rows of a Parquet file, a piece of a row group at a time; only the requested columns are read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cutaway.data.files import inner_name, size_of
from cutaway.data.rows import BadRow, TextRow, find_columns, names_of, record_row
from cutaway.errors import InputError, unknown

_AT_ONCE = 1024


def parquet_rows(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    """The rows of a file; `translation.en` is a field of a struct."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path} is Parquet, which pyarrow reads: pip install 'cutaway[data]'") from None
    if inner_name(path) != Path(path).name:
        raise InputError(f"{path} is compressed twice, as Parquet is inside; decompress it once")
    size_of(path)
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            example = _example(file.schema_arrow)
            columns = columns or find_columns(example, path)
            for name in columns:
                if name not in (known := names_of(example)):
                    raise InputError(f"{path}: {unknown('column', name, known)}")
            for batch in file.iter_batches(_AT_ONCE, columns=list(columns)):
                for record in _records(batch):
                    number += 1
                    where = f"{path}:{number}"
                    if record is None:
                        yield BadRow("invalid UTF-8", where, "a cell is not UTF-8")
                    else:
                        yield record_row(record, columns, where)
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} can't be read as Parquet ({reason}); copy or download it again") from None


def _example(fields: Any) -> dict[str, Any]:
    """An example row of a schema or struct: a text is "", structs are dictionaries, all others None."""
    from pyarrow import types

    example: dict[str, Any] = {}
    for field in fields:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_struct(kind):
            example[field.name] = _example(kind)
        else:
            is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
            example[field.name] = "" if is_text else None
    return example


def _records(batch: Any) -> Iterator[dict[str, Any] | None]:
    """The rows; None for one that is not UTF-8, which Parquet promises but does not check."""
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for i in range(batch.num_rows):
        try:
            yield batch.slice(i, 1).to_pylist()[0]
        except UnicodeDecodeError:
            yield None
