"""Iceberg through PyIceberg and its files: catalog, metadata, manifests, ICDC tables, stamps."""
