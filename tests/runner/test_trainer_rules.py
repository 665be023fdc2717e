"""Loss scale, batches by health, goodput, and checkpoints with a way back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.trainer.account import Account
from runner.trainer.manager import CheckpointManager, Committed, Written, file_digest
from runner.trainer.rules import (
    GOOD_STEPS_TO_DOUBLE,
    INITIAL_SCALE,
    MAX_SCALE,
    LossScale,
    batch_sizes,
    gradient_weights,
)

RATES = st.lists(st.floats(0, 1e6), min_size=1, max_size=16)


class TestLossScale:
    def test_begins_at_2_to_the_15_and_doubles_after_2000_good_steps(self) -> None:
        scale = LossScale()
        assert scale.value == 2**15
        for _ in range(1999):
            scale = scale.after(True)
        assert scale.value == INITIAL_SCALE
        assert scale.after(True) == LossScale(2 * INITIAL_SCALE, 0)

    def test_a_bad_step_halves_it_and_begins_to_count_anew(self) -> None:
        scale = LossScale(INITIAL_SCALE, GOOD_STEPS_TO_DOUBLE - 1).after(False)
        assert scale == LossScale(INITIAL_SCALE / 2, 0)

    @given(st.lists(st.booleans(), max_size=200))
    def test_stays_within_bounds(self, outcomes: list[bool]) -> None:
        scale = LossScale(2.0, GOOD_STEPS_TO_DOUBLE - 1)
        for ok in outcomes:
            scale = scale.after(ok)
            assert 1 <= scale.value <= MAX_SCALE

    def test_of_float32_stays_one(self) -> None:
        fixed = LossScale(1.0, fixed=True)
        assert fixed.after(False) == fixed.after(True) == fixed


class TestElasticBatch:
    def test_the_formula(self) -> None:
        # mean rate 2: 1 + 0.5 × (1 − r/2)
        assert batch_sizes(100, [0, 2, 4]) == [150, 100, 50]

    def test_a_cluster_without_failures_has_the_base(self) -> None:
        assert batch_sizes(32, [0, 0]) == [32, 32]
        assert batch_sizes(32, [7]) == [32]

    def test_a_very_bad_node_keeps_a_quarter(self) -> None:
        assert batch_sizes(100, [0] * 9 + [10]) == [150] * 9 + [25]

    @pytest.mark.parametrize("rates", [[-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
    def test_refuses_rates_that_are_none(self, rates: list[float]) -> None:
        with pytest.raises(ValueError, match="rates"):
            batch_sizes(8, rates)

    @given(base=st.integers(1, 4096), rates=RATES)
    def test_clamped_and_the_worse_never_gets_more(self, base: int, rates: list[float]) -> None:
        sizes = batch_sizes(base, rates)
        assert all(1 <= s <= round(1.5 * base) + 1 for s in sizes)
        by_rate = sorted(zip(rates, sizes, strict=True), key=lambda pair: pair[0])
        assert [s for _, s in by_rate] == sorted(sizes, reverse=True)

    @given(st.lists(st.integers(1, 4096), min_size=1, max_size=16))
    def test_weights_make_the_mean_over_workers_that_over_examples(self, sizes: list[int]) -> None:
        weights = gradient_weights(sizes)
        # Worker w's mean gradient is w itself, that of each of its examples too.
        mean = sum(w * rank for rank, w in enumerate(weights)) / len(sizes)
        assert mean == pytest.approx(sum(s * r for r, s in enumerate(sizes)) / sum(sizes))


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 10), st.sampled_from("wcr"))))
def test_goodput_counts_every_second_once(events: list[tuple[int, float, str]]) -> None:
    account, step, total = Account(), 0, 0.0
    for steps, seconds, event in events:
        step += steps
        account.worked(step, seconds)
        total += seconds
        if event == "c":
            account.committed(step)
        elif event == "r":
            account.rolled_back()
    account.rolled_back()
    assert account.kept_seconds + account.lost_seconds == pytest.approx(total)
    assert 0 <= account.goodput(total + 1) <= 1


def commit(manager: CheckpointManager, step: int, generation: int = 1) -> Committed:
    staged = manager.staging(step, generation)
    staged.mkdir()
    (staged / "shared").write_bytes(b"s" * step)
    files = [Written("shared", file_digest(staged / "shared"))]
    return manager.commit(step, generation, files, {"world": 2})


class TestCheckpointManager:
    def test_the_articles_defaults(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path)
        assert manager.save_interval == 500
        for step in range(500, 3000, 500):
            commit(manager, step)
        assert [c.step for c in manager.all()] == [1500, 2000, 2500]
        newest = manager.newest()
        assert newest is not None
        assert (newest.step, dict(newest.meta)) == (2500, {"world": 2})

    def test_the_same_step_of_a_later_generation_is_newer(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path)
        commit(manager, 10, 1)
        commit(manager, 10, 2)
        newest = manager.newest()
        assert newest is not None
        assert newest.generation == 2
        assert manager.next_generation() == 3

    def test_a_staging_folder_is_never_read_and_removed_at_the_start(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path)
        commit(manager, 10)
        leaked = manager.staging(20, 1)
        leaked.mkdir()
        (leaked / "worker-0").write_bytes(b"half")
        newest = manager.newest()
        assert newest is not None
        assert newest.step == 10
        CheckpointManager(tmp_path)
        assert not leaked.exists()

    @given(data=st.data())
    def test_any_damage_falls_back(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        manager = CheckpointManager(tmp_path_factory.mktemp("m"))
        commit(manager, 10)
        damaged = commit(manager, 20).path / data.draw(st.sampled_from(["shared", "manifest.json"]))
        kind = data.draw(st.sampled_from(["flip", "cut", "gone"]))
        content = bytearray(damaged.read_bytes())
        if kind == "gone":
            damaged.unlink()
        elif kind == "cut":
            damaged.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        else:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
            damaged.write_bytes(content)
        newest = manager.newest()
        assert newest is not None
        assert newest.step == 10

    def test_two_failed_starts_from_one_lead_to_the_one_before(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path, failure_threshold=2)
        commit(manager, 10)
        commit(manager, 20)
        for expected in (20, 20, 10, 10, 10):
            newest = manager.newest()
            assert newest is not None
            assert newest.step == expected
            manager.generation_failed(newest)  # of the oldest, as often as it likes
        assert [p.name for p in tmp_path.glob("*.damaged")] == ["ckpt-000000000020-g000001.damaged"]

    def test_a_failure_elsewhere_does_not_count_together(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path, failure_threshold=2)
        first, second = commit(manager, 10), commit(manager, 20)
        for started in (second, first, second, None, second):
            manager.generation_failed(started)
        newest = manager.newest()
        assert newest is not None
        assert newest.step == 20

    def test_the_manifest_names_every_file(self, tmp_path: Path) -> None:
        path = commit(CheckpointManager(tmp_path), 10).path
        digest, text = (path / "manifest.json").read_text().split("\n")
        assert len(digest) == 64
        assert set(json.loads(text)["files"]) == {p.name for p in path.iterdir()} - {
            "manifest.json"
        }
