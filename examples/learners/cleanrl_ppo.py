"""Train with PPO in one file, in the style of CleanRL: python cleanrl_ppo.py [task] [iterations]."""

from __future__ import annotations

import sys

import torch
from rsl_rl.modules import MLP

import mjlab_dist

TASK = sys.argv[1] if len(sys.argv) > 1 else "gym-inverted-pendulum"
ITERATIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 100
NUM_ENVS, NUM_STEPS, EPOCHS, NUM_UPDATES, GAMMA, LAM, CLIP = 64, 32, 5, 20, 0.99, 0.95, 0.2

torch.set_num_threads(1)  # the networks are too small for more threads
torch.manual_seed(1)
with mjlab_dist.make(TASK, total_num_envs=NUM_ENVS, final_observations=True) as envs:
    actor, critic = (MLP(envs.observation_widths["actor"], n, [64, 64], "tanh") for n in (envs.num_actions, 1))
    log_std = torch.nn.Parameter(torch.zeros(envs.num_actions))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    obs, episode = envs.reset(seed=1)["actor"], torch.zeros(NUM_ENVS)
    for iteration in range(1, ITERATIONS + 1):
        # Rollout
        rows, finished = [], []
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                policy = torch.distributions.Normal(actor(obs), log_std.exp())
                action = policy.sample()
                step = envs.step(action)
                done = step.terminated | step.truncated
                # If an episode reached the time limit, add the discounted value of its last state
                reward = step.rewards + GAMMA * step.truncated * critic(step.info["final_observations"]["actor"])[:, 0]
                rows.append((obs, action, policy.log_prob(action).sum(1), critic(obs).squeeze(1), reward, ~done))
            episode += step.rewards
            finished += episode[done].tolist()
            episode, obs = torch.where(done, 0.0, episode), step.observations["actor"]
        observed, actions, log_probs, values, rewards, continues = map(torch.stack, zip(*rows, strict=True))
        # Advantages
        advantages, advantage = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        following = [*values[1:], critic(obs).squeeze(1).detach()]
        for t in reversed(range(NUM_STEPS)):
            target = rewards[t] + GAMMA * continues[t] * (following[t] + LAM * advantage)
            advantages[t] = advantage = target - values[t]
        batch = [part.flatten(0, 1) for part in (observed, actions, log_probs, advantages, advantages + values)]
        # Update, with a learning rate that falls to 0
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - iteration / ITERATIONS)
        for mini_batch in torch.cat([torch.randperm(NUM_ENVS * NUM_STEPS) for _ in range(EPOCHS)]).chunk(NUM_UPDATES):
            o, a, old, adv, returns = (part[mini_batch] for part in batch)
            ratio = (torch.distributions.Normal(actor(o), log_std.exp()).log_prob(a).sum(1) - old).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            gain = torch.minimum(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            optimizer.zero_grad()
            (0.5 * (critic(o).squeeze(1) - returns).square().mean() - gain).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        if finished:
            print(f"iteration {iteration}: mean return {sum(finished) / len(finished):.1f}")
