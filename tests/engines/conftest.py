"""Order the tests of the contract by the session that they need, so that each session is opened once."""

from __future__ import annotations

import pytest

from scalewise.strategies.registry import strategy_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if item.path.name == "test_contract.py"]
    ordered = sorted((items[place] for place in places), key=_session_of)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _session_of(item: pytest.Item) -> tuple[int, bool, int]:
    parameters = item.callspec.params  # type: ignore[attr-defined]
    strategy = strategy_of(parameters["strategy"])
    servers: int = getattr(strategy, "servers", 0)
    return servers, bool(servers) and not strategy.exact, parameters.get("ranks", 2)
