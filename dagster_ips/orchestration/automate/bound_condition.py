"""What the conditions that check consumers for pending changes have in common."""

from __future__ import annotations

from copy import copy as shallow_copy
from typing import Self

import dagster as dg
from dagster import AutomationCondition, AutomationContext

from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.watch.watched_tables import ByAsset, WatchedInputs


class BoundCondition(AutomationCondition[dg.AssetKey]):
    """A condition that has to be bound to what is watched for each consumer before Dagster can evaluate it."""

    watched: ByAsset | None = None

    def bound(self, watched: ByAsset) -> Self:
        """The same condition, bound to what is watched for each consumer."""
        found = shallow_copy(self)
        found.watched = watched
        return found

    def watched_by(self, context: AutomationContext[dg.AssetKey]) -> WatchedInputs | None:
        """What is watched for the asset that Dagster evaluates the condition for; None if that isn't a consumer.

        It isn't always the asset that has the condition: ``any_deps_match`` evaluates it for each upstream.

        Raises:
            DeclarationError: the condition isn't bound to anything.
        """
        if self.watched is None:
            raise DeclarationError(
                asset=context.key.to_user_string(),
                problem="an automation condition checks it for pending changes, but isn't connected to the tables.",
                remedy="Pass the definitions through with_incremental().",
            )
        return self.watched.get(context.key)
