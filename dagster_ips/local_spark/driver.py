"""What ``spark-submit`` runs as the local Spark: a session that serves clients by the Connect plugin until it is ended.

Spark's own ``SparkConnectServer`` gives each client session a class loader, and Spark keeps the code that it generates
by class loader: every run would generate, compile and warm up the same queries again. Sessions of the plugin share it,
but for those that add jars of their own.
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate()
    sys.stdin.read()  # The JVM holds the other end, however it ends.
