"""demo: show a small trained policy, which is part of the package, in a viewer or a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mjlab_dist.cli.flags import by_flag, parse
from mjlab_dist.cli.play import show
from mjlab_dist.config import PlayConfig
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import PRETRAINED

# The task of the policy
TASK = "quadruped-velocity-flat"


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Show a small trained quadruped in the browser, where sliders steer it. Needs no training."""

    video: str | None = None
    """Video file to write, such as demo.mp4. No page is opened if this flag is given."""
    seconds: float = 10.0
    """Simulated time of the video, in s."""
    port: int | None = None
    """Port of the page. Default: the first free port from 8080 upwards."""
    host: str = "127.0.0.1"
    """Address on which the page can be opened. With an address other than 127.0.0.1, the command prints a token that
    other machines need."""


def main(argv: Sequence[str], prog: str) -> None:
    """Play the policy without noise or pushes."""
    config = parse(DemoConfig(), by_flag(argv), prog)
    if config.video is None:
        if config.seconds != DemoConfig.seconds:
            raise UserError(f"--seconds {config.seconds:g}: there is no video; add --video FILE, or drop --seconds")
        page = PlayConfig(run=PRETRAINED, viewer="web", port=config.port, host=config.host, disturbances=False)
        show(TASK, page, prog)
        return
    for flag, value, default in (("port", config.port, None), ("host", config.host, DemoConfig.host)):
        if value != default:
            raise UserError(f"--{flag} {value}: --video {config.video} opens no page; drop one of the two")
    video = PlayConfig(run=PRETRAINED, video=config.video, seconds=config.seconds, num_envs=1, disturbances=False)
    show(TASK, video, prog)
