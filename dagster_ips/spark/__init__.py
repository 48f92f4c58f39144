"""PySpark: sessions, frames and one file per write mode. Only this package and ``local_spark`` import it."""
