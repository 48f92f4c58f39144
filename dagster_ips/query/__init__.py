"""A table's SQL: what it reads, how its result is maintained when that changes, and why not in a better way.

Pure code except for sqlglot: text comes in, text and plain values go out.
"""
