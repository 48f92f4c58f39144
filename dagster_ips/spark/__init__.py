"""PySpark: sessions, frames and one file per write mode. The only room that imports it."""
