"""Readers: the drafters that are handed the results of an answer's passes."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.request import Request
from .acceptance import Conditions
from .cost import CostModel
from .draft_model_policy import DraftModelPolicy, best_first
from .drafter_set import DrafterSet


class Readers:
    """Decides once, when an answer begins, whether any drafter reads the results of its passes. A model that reads them
    is left out of the answer if another model promises more, or if considering it has not been worth its price
    lately."""

    def __init__(self, drafter_set: DrafterSet, policies: Sequence[DraftModelPolicy]) -> None:
        self._drafters = drafter_set
        self._policies = policies
        self._decided: dict[Request, bool] = {}

    def reads(self, request: Request, cost: CostModel | None) -> bool:
        """Whether any of a request's drafters reads the results of its passes."""
        is_read = self._decided.get(request)
        if is_read is None:
            is_read = self._decided[request] = self._decide(request, cost)
        return is_read

    def leave_out_of(self, request: Request) -> None:
        """Leave the drafters that read hidden states out of the rest of an answer."""
        of_states = self._drafters.states_readers(request)
        for reader in of_states:
            self._drafters.leave_out(reader, request)
        self._decided[request] = len(self._drafters.readers(request)) > len(of_states)

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._decided.pop(request, None)

    def _decide(self, request: Request, cost: CostModel | None) -> bool:
        readers, kind = self._drafters.readers(request), (request.config.mode, Conditions.of(request.config))
        if not readers or request.config.num_assistant_tokens is not None or cost is None:
            return bool(readers)
        policies = [policy for policy in self._policies if policy.model in self._drafters.of(request).models]
        if len(policies) > 1:
            policies = best_first(policies, cost, len(request.tokens), kind)
        resting = [
            policy.model
            for i, policy in enumerate(policies)
            if policy.model in readers and (i > 0 or policy.rests(kind))
        ]
        for model in resting:
            self._drafters.leave_out(model, request)
        return len(readers) > len(resting)
