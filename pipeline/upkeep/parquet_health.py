"""Whether a Parquet file of a table is still what the table says of it."""

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline.errors import LakeError, LakeFull, LakeUnreachable, LakeUnwritable
from pipeline.lake.tables.table import DataFile, table_errors

ROWS_AT_ONCE = 65_536


def damage_of(files: pafs.FileSystem, file: DataFile, *, read_values: bool) -> str | None:
    """What is wrong with a file, in words; None where nothing is found.

    Always: it is there, it has the size that it was committed with, its footer can be read and says as many rows as the
    table. With `read_values` every page of every column is decoded as well, against its checksum where it has one, and
    text must be UTF-8. Spark writes checksums, the Delta library does not: in what *it* wrote, a flipped bit that still
    decodes is not seen. Raises LakeUnreachable, LakeUnwritable where the lake itself does not answer.
    """
    try:
        with table_errors(file.path):
            info = files.get_file_info(file.path)
            if info.type != pafs.FileType.File:
                return "it is gone"
            if info.size != file.size:
                return f"it has {info.size} bytes, and the table says {file.size}"
            with pq.ParquetFile(
                files.open_input_file(file.path), page_checksum_verification=True, pre_buffer=False
            ) as parquet:
                if parquet.metadata.num_rows != file.rows:
                    return f"it has {parquet.metadata.num_rows} rows, and the table says {file.rows}"
                if read_values:
                    for batch in parquet.iter_batches(ROWS_AT_ONCE, use_threads=False):
                        batch.validate(full=True)
    except (LakeUnreachable, LakeUnwritable, LakeFull):
        raise
    except (LakeError, pa.ArrowException) as error:
        return f"it cannot be read: {_first_line(error.__cause__ or error)}"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
