"""Where minute rows, risks, decisions and events are kept for good (contracts section 9)."""

from stream.edge.history_influx import InfluxHistory
from stream.edge.history_parquet import ParquetHistory

__all__ = ["InfluxHistory", "ParquetHistory"]
