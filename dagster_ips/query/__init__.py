"""A table's SQL: what it reads, how its result is maintained from a change of that, and why not better.

Pure but for sqlglot: text comes in, text and plain values go out.
"""
