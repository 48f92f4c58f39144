#!/usr/bin/env bash
# Dagster 1.13.29: an unpartitioned asset is stale after one of its upstream's partitions was materialized again, but
# FRESH if the upstream has 100 partitions or more.
#
# Expected: staleness doesn't depend on how many partitions there are.
# Happens: from 100 upstream partitions on, Dagster doesn't look at them, and says FRESH, not "unknown". With 99, the
#   same change makes it STALE.
# Where: CachingStaleStatusResolver, from which the UI's "unsynced" marks come.
# What to do: let automation conditions decide (any_deps_updated), not staleness.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet dagster==1.13.29

venv/bin/python - >seen 2>log <<'PY' || { cat log >&2; exit 1; }
import tempfile

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

for count in (5, 99, 100):

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition([f"p{n}" for n in range(count)]))
    def upstream(context):
        return dg.MaterializeResult(data_version=dg.DataVersion(context.run_id))

    @dg.asset(deps=[upstream])
    def total():
        pass

    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        graph = dg.Definitions(assets=[upstream, total]).resolve_asset_graph()
        for n in range(count):
            instance.report_runless_asset_event(dg.AssetMaterialization("upstream", partition=f"p{n}"))
        assert dg.materialize([total, upstream], selection=[total], instance=instance).success
        assert dg.materialize([upstream], partition_key="p3", instance=instance).success
        status = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance)).get_status(total.key)
        print(f"{count} upstream partitions: {status.name}")
PY
cat seen

# Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: Dagster no longer does this" >&2; exit 1; }
5 upstream partitions: STALE
99 upstream partitions: STALE
100 upstream partitions: FRESH
SEEN
