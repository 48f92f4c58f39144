"""What ``spark-submit`` runs as the local Spark: a session that serves clients by the Connect plugin until it ends.

Spark's own ``SparkConnectServer`` gives each client session a class loader, and Spark caches the code that it generates
by class loader: every run would generate, compile and warm up the same queries again. Sessions of the plugin share a
class loader, except for those that add jars of their own.
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate()
    sys.stdin.read()  # Returns when the JVM, which holds the other end, has ended in any way.
