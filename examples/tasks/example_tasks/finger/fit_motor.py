"""Fit the network of the finger's motors, motor.pt, to the measurements of a simulated test bench.

python -m example_tasks.finger.fit_motor

On the bench, a spool pulls a tendon whose length varies at random. The motor has a position controller, a delayed
current, friction and a force limit. With a real motor, replace `measure` by your recordings.
"""

from __future__ import annotations

from pathlib import Path

import torch

STEP_S = 0.004
"""Physics step of the finger."""

HISTORY = (0, 1, 2, 4)
"""Ages of the network's inputs in physics steps, as in the config."""

POSITION_SCALE, VELOCITY_SCALE, EFFORT_SCALE = 50.0, 5.0, 10.0
"""Scales of the network's inputs and of its output, as in the config."""


def measure(num_runs: int, num_steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Simulate the bench. Return position errors in m, velocities in m/s and tensions in N, (num_runs, num_steps)."""
    # Targets and positions: smooth random curves of a few centimeters
    phase, pace = 6.3 * torch.rand(2, num_runs, 4, 1), 3.0 + 20.0 * torch.rand(num_runs, 4, 1)
    time = STEP_S * torch.arange(num_steps)
    position = 0.012 * torch.sin(pace * time + phase[0]).sum(dim=1)
    target = 0.012 * torch.sin(0.5 * pace * time + phase[1]).sum(dim=1)
    velocity = torch.gradient(position, spacing=STEP_S, dim=1)[0]
    # Motor: PD controller, current with a time constant of 12 ms, Coulomb friction, force limits
    wanted = (1500.0 * (target - position) - 20.0 * velocity).clamp(0.0, 25.0)
    current = torch.zeros_like(wanted)
    for step in range(1, num_steps):
        current[:, step] = torch.lerp(current[:, step - 1], wanted[:, step], 1.0 - 2.718 ** (-STEP_S / 0.012))
    tension = (current - 0.8 * torch.tanh(velocity / 0.01)).clamp_min(0.0)
    return target - position, velocity, tension


def main() -> None:
    """Fit the network and write motor.pt."""
    # Network and optimizer
    torch.manual_seed(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(2 * len(HISTORY), 24),
        torch.nn.Softsign(),
        torch.nn.Linear(24, 24),
        torch.nn.Softsign(),
        torch.nn.Linear(24, 1),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    # Fit the network to the measured motions
    first = max(HISTORY)
    loss = torch.tensor(0.0)
    for _ in range(1500):
        error, velocity, tension = measure(64, 60)
        end = error.shape[1]
        rows = [POSITION_SCALE * error[:, first - age : end - age] for age in HISTORY]
        rows += [VELOCITY_SCALE * velocity[:, first - age : end - age] for age in HISTORY]
        wrong = EFFORT_SCALE * network(torch.stack(rows, dim=2)).squeeze(2) - tension[:, first:]
        loss = wrong.square().mean()
        optimizer.zero_grad()
        (loss / EFFORT_SCALE**2).backward()
        optimizer.step()
        schedule.step()
    # File
    file = Path(__file__).with_name("motor.pt")
    torch.save(network.state_dict(), file)
    print(f"{file}: root mean square error {loss.sqrt().item():.2f} N")


if __name__ == "__main__":
    main()
