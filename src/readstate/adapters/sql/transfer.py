"""Export, import and erasure in SQL."""

from .erasing import SqlErase
from .export import SqlExport
from .importing import SqlImport


class SqlTransfer(SqlExport, SqlImport, SqlErase):
    pass
