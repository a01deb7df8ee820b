"""Groups without variance are replaced by others, a few times at most."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nl2sql_trl.data import DataError
from nl2sql_trl.groups import measured, resample, without_variance
from nl2sql_trl.records import Prompt


def prompt(key: str) -> Prompt:
    return Prompt(({"role": "user", "content": key},), (1,), Path("x"), key)


def groups(*keys: str) -> list[Prompt]:
    return [prompt(key) for key in keys for _ in range(2)]


class World:
    """Rewards by prompt: one letter a rollout, `m` for a mixed group, `0` and `1` for even ones."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def run(self, prompts: Sequence[Prompt]) -> list[tuple[str, float]]:
        self.asked.append([p.key for p in prompts[::2]])
        return [
            (p.key, float(n % 2) if p.key[0] == "m" else float(p.key[0]))
            for n, p in enumerate(prompts)
        ]


def spare(*keys: str) -> Iterator[Prompt]:
    return iter([prompt(key) for key in keys])


def keys(done: list[tuple[str, float]]) -> list[str]:
    return [key for key, _ in done[::2]]


def test_groups_of_one_reward_have_no_variance() -> None:
    assert without_variance([0, 0, 1, 0, 1, 1, 0.5, 0.5], 2) == [0, 2, 3]


def test_groups_without_variance_are_replaced_where_they_stand() -> None:
    world = World()
    done, first = resample(
        groups("0a", "mb", "1c"), 2, world.run, lambda d: d[1], spare("md", "me"), 1
    )
    assert keys(done) == ["md", "mb", "me"]
    assert first == 2
    assert world.asked == [["0a", "mb", "1c"], ["md", "me"]]


def test_what_is_still_even_is_tried_again_up_to_the_cap() -> None:
    world = World()
    others = spare("0c", "md", "1e", "mf")
    done, first = resample(groups("0a", "1b"), 2, world.run, lambda d: d[1], others, 2)
    assert keys(done) == ["1e", "md"]
    assert world.asked == [["0a", "1b"], ["0c", "md"], ["1e"]]
    assert first == 2


def test_a_rank_with_nothing_to_replace_takes_part_in_the_rounds_of_the_others() -> None:
    world = World()
    told: list[int] = []

    def others_are_not_done(here: int) -> bool:
        told.append(here)
        return len(told) < 3

    prompts = groups("ma")
    done, first = resample(
        prompts, 2, world.run, lambda d: d[1], spare(), 5, go_on=others_are_not_done
    )
    assert (keys(done), first) == (["ma"], 0)
    assert world.asked == [["ma"], [], []]
    assert told == [0, 0, 0]


def test_when_the_spare_prompts_end_the_rest_stays() -> None:
    world = World()
    done, _ = resample(groups("0a", "1b"), 2, world.run, lambda d: d[1], spare("mc"), 5)
    assert keys(done) == ["mc", "1b"]
    assert len(world.asked) == 2


@pytest.mark.parametrize("rounds", [0, 3])
def test_nothing_is_run_again_where_nothing_is_to_be_replaced(rounds: int) -> None:
    world = World()
    prompts = groups("ma", "mb") if rounds else groups("0a", "1b")
    done, _ = resample(prompts, 2, world.run, lambda d: d[1], spare("mc"), rounds)
    assert keys(done) == [p.key for p in prompts[::2]]
    assert len(world.asked) == 1


@pytest.mark.parametrize("wrong", [groups("ma")[:1], [prompt("ma"), prompt("mb")]])
def test_prompts_that_are_not_whole_groups_are_refused(wrong: list[Prompt]) -> None:
    with pytest.raises(ValueError, match="not groups of 2"):
        resample(wrong, 2, World().run, lambda d: d[1], spare(), 1)


def write(folder: Path, name: str, rows: list[tuple[str, bool]]) -> None:
    lines = [json.dumps({"key": key, "correct": right}) + "\n" for key, right in rows]
    (folder / name).write_text("".join(lines))


def test_difficulty_is_the_share_of_samples_that_were_right(tmp_path: Path) -> None:
    write(tmp_path, "trajectories.jsonl", [("train:0", True)])
    assert measured(tmp_path, 0, 1) == {"train:0": 1.0}
    write(tmp_path, "samples.jsonl", [("train:0", True), ("train:0", False), ("train:3", False)])
    assert measured(tmp_path, 0, 1) == {"train:0": 0.5, "train:3": 0.0}
    assert measured(tmp_path, 0.01, 0.99) == {"train:0": 0.5}
    with pytest.raises(DataError, match=r"no row was right in 0.6 to 0.9"):
        measured(tmp_path, 0.6, 0.9)


def test_a_folder_without_an_evaluation_is_refused_with_the_command_to_make_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=r"nl2sql_trl\.evaluate"):
        measured(tmp_path, 0, 1)
