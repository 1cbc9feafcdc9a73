"""The viewer's page in a real browser: its contents, and the effects of its controls on the envs."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from browsing import WAIT_MS, choose, number, row
from conftest import tabs
from playwright.sync_api import Browser, FloatRect
from playwright.sync_api import Page as Tab

import mjlab_dist
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.policies.view.gate import open_server
from mjlab_dist.policies.view.page import Page
from mjlab_dist.policies.view.player import Player
from mjlab_dist.runs.run_dir import list_checkpoints, read_config_file

if TYPE_CHECKING:
    from mjlab_dist.learn.networks import MLPModel

pytestmark = pytest.mark.slow

Wait = Callable[[Callable[[], bool]], None]


@dataclass
class Served:
    """A page that is served, and its player."""

    url: str
    player: Player
    loaded: list[Path]
    checkpoints: list[Path]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Page that shows two quadrupeds. Their run has two checkpoints."""
    fields: dict[str, Any] = {"checkpoint.interval": 1}
    result = mjlab_dist.train(
        "quadruped-velocity-flat", num_envs=4, gpu_ids=None, max_iterations=2, quiet=True,
        log_root=str(tmp_path_factory.mktemp("logs")), **fields,
    )  # fmt: skip
    config = read_config_file(result.run_dir)
    checkpoints = list(list_checkpoints(result.run_dir).values())
    assert len(checkpoints) == 2
    env, policy = load_env_and_policy(config, checkpoints[-1], 2, 1)
    from mjlab_dist.learn.networks import load_policy

    loaded: list[Path] = []

    def load(path: Path) -> MLPModel:
        policy = load_policy(env, config, path)
        loaded.append(path)
        return policy

    player = Player(env, policy, load)
    server = open_server("127.0.0.1", None)
    page = Page(server, player, lambda: checkpoints, checkpoints[-1])
    over = threading.Event()
    shows = threading.Thread(target=functools.partial(page.run, over.is_set))
    player.start()
    shows.start()
    yield Served(server.url, player, loaded, checkpoints)
    over.set()
    shows.join()
    player.stop()
    server.stop()


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Served) -> Iterator[Tab]:
    """The page in a tab that all tests share. Opening a tab takes 8 s of CPU time, because there is no GPU."""
    with tabs(browser) as open_one:
        yield open_one(served.url)


def test_the_scene_moves_unless_paused(tab: Tab, wait_for: Wait) -> None:
    tab.locator("canvas").first.wait_for()
    beside_controls: FloatRect = {"x": 0, "y": 200, "width": 390, "height": 400}
    pictures: set[str] = set()

    def differ() -> bool:
        picture = tab.screenshot(timeout=WAIT_MS, clip=beside_controls)
        pictures.add(hashlib.sha256(picture).hexdigest())
        return len(pictures) > 2

    wait_for(differ)


def test_a_slider_changes_the_command_and_pause_stops_the_simulation(tab: Tab, served: Served, wait_for: Wait) -> None:
    player = served.player
    number(tab, "forward m/s", "0.6")
    wait_for(lambda: bool(np.allclose(player.frame.commands["velocity"][:, 0], 0.6)))
    part = player.env.observation_columns()["actor"]["command"]
    wait_for(lambda: len(set(player.frame.observations["actor"][:, part][:, 0].round(4))) == 1)
    wait_for(lambda: row(tab, "Manual").locator("input").is_checked())
    row(tab, "Pause").locator("input").click()
    wait_for(lambda: player.paused)
    player.reset().result()
    at = player.frame.step
    tab.get_by_text("Single step").click()
    wait_for(lambda: player.frame.step == at + 1)
    row(tab, "Pause").locator("input").click()
    wait_for(lambda: player.frame.step > at + 1)
    row(tab, "Manual").locator("input").click()
    wait_for(lambda: len(set(player.frame.commands["velocity"][:, 0])) == 2)


def test_pushes_resets_actions_and_checkpoints(tab: Tab, served: Served, wait_for: Wait) -> None:
    player = served.player
    choose(tab, "Checkpoint", served.checkpoints[0].name)
    wait_for(lambda: served.loaded == [served.checkpoints[0]])
    choose(tab, "Actions", "zero")
    wait_for(lambda: not player.frame.actions.any())
    player.pause()
    player.reset().result()
    before = player.frame
    tab.get_by_text("Push", exact=True).click()
    wait_for(lambda: player.frame is not before)
    change = player.frame.state["qvel"] - before.state["qvel"]
    assert np.allclose(np.linalg.norm(change[:, :2], axis=1), 1.0, atol=1e-5)
    tab.get_by_text("Reset", exact=True).click()
    wait_for(lambda: not np.allclose(player.frame.state["qvel"], before.state["qvel"] + change))
    assert (player.frame.episode_steps == 0).all()
    player.pause(paused=False)
    choose(tab, "Actions", "policy")
    wait_for(lambda: bool(player.frame.actions.any()))


def test_charts_show_rewards_observations_actions_and_commands(tab: Tab, served: Served, wait_for: Wait) -> None:
    tab.get_by_text("Rewards", exact=True).click()
    for name in served.player.env.reward_names:
        tab.get_by_text(name, exact=True).wait_for()
    tab.get_by_text("Plots", exact=True).click()
    lines = "Object.values(window.__viserTestpoints?.uplots ?? {}).map(u => u.chart.data.map(d => d.length))"
    wait_for(lambda: sorted(len(plot) for plot in tab.evaluate(lines)) == [4, 4, 13])
    wait_for(lambda: all(min(plot) > 10 for plot in tab.evaluate(lines)))
    choose(tab, "Observation", "actor.joint_positions")
    wait_for(lambda: sorted(len(plot) for plot in tab.evaluate(lines)) == [4, 13, 13])


def test_another_env_is_chosen(tab: Tab, served: Served, wait_for: Wait) -> None:
    tab.get_by_text("Show", exact=True).click()
    for label in ("Contact points and forces", "Collision shapes", "Only this env", "Follow the robot"):
        row(tab, label).locator("input").click()
    choose(tab, "Env", "1")
    at = served.player.frame.step
    wait_for(lambda: served.player.frame.step > at + 5)
    assert served.player.failure is None
    assert not torch.is_inference_mode_enabled()
