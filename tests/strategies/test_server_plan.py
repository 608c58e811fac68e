"""Pieces cover every element once and give every server the same number of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.predictor import Predictor
from scalewise.published.tables import outlined_profile
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.server_plan import Piece, pieces_of


def test_pieces_as_a_table() -> None:
    assert pieces_of(10, 4, 1, 4.0) == (Piece(0, 10, 0),)
    assert pieces_of(10, 4, 2, 4.0) == (Piece(0, 5, 0), Piece(5, 10, 1))
    assert pieces_of(3 * 2**20, 4, 2, 4.0) == (
        Piece(0, 786432, 0),
        Piece(786432, 1572864, 1),
        Piece(1572864, 2359296, 0),
        Piece(2359296, 3145728, 1),
    )


def test_no_piece_is_empty_with_more_servers_than_elements() -> None:
    assert pieces_of(2, 4, 3, 4.0) == (Piece(0, 1, 0), Piece(1, 2, 1))


@given(some.integers(1, 10**7), some.integers(1, 5), some.sampled_from([0.5, 4.0, 64.0]))
def test_pieces_are_consecutive_and_balanced_between_servers(elements: int, servers: int, piece_MB: float) -> None:
    pieces = pieces_of(elements, 4, servers, piece_MB)
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == elements
    assert all(0 < piece.elements * 4 <= piece_MB * 2**20 for piece in pieces)
    held = [sum(piece.elements for piece in pieces if piece.server == server) for server in range(servers)]
    assert max(held) - min(held) <= len(pieces)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_server_holds_part_of_a_real_model(servers: int) -> None:
    assert {piece.server for piece in pieces_of(376_200, 4, servers, 4.0)} == set(range(servers))


@pytest.mark.parametrize("name", ["parameter-server", "parameter-server-async:max_staleness=0"])
def test_a_large_model_is_simulated_in_larger_pieces_in_the_same_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of("8x-a100-nvlink")
    profile = outlined_profile("ResNet-50", cluster.devices[0].name, {32: 0.1})
    profile = profile.model_copy(update={"parameter_bytes": 4 * 10**9, "layers": (), "footprint": {}})
    predictor, strategy = Predictor(profile, cluster), strategy_of(f"{name}{',' if ':' in name else ':'}piece_MB=2")
    simulated = predictor.simulate(strategy, 4, 32)
    monkeypatch.setattr(type(strategy), "simulated", lambda self, _: self)
    exact = predictor.simulate(strategy, 4, 32)
    assert 5 * len(simulated.operations) < len(exact.operations)
    assert simulated.step_seconds == pytest.approx(exact.step_seconds, rel=0.01)


@pytest.mark.parametrize("name", ["parameter-server", "parameter-server-async", "ring"])
def test_pieces_smaller_than_an_element_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"^option 'piece_MB' of {name} is 1e-7; it must be 0\.001 or more$"):
        strategy_of(f"{name}:piece_MB=1e-7")
