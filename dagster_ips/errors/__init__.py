"""Every error says what happened, why it matters and what to do next.

Each error carries its values as fields and survives pickling, because Dagster passes errors between processes. The
modules group errors by who has to fix them.
"""

from dagster_ips.errors.backfill_errors import *  # noqa: F403  # here and below: every error that the module defines
from dagster_ips.errors.base_error import *  # noqa: F403
from dagster_ips.errors.declaration_errors import *  # noqa: F403
from dagster_ips.errors.result_errors import *  # noqa: F403
from dagster_ips.errors.source_errors import *  # noqa: F403
from dagster_ips.errors.state_errors import *  # noqa: F403
from dagster_ips.errors.target_errors import *  # noqa: F403
