"""Configuration keys of other programs and of version 0.1.0, and what stands for them: for messages on unknown keys.

The programs are Unstable Baselines, League Training, TRL, prime-rl and RLlib; ``docs/coming-from.md`` has their keys.
"""

from typing import Final

FOREIGN_KEYS: Final = {
    # Unstable Baselines
    "activation_checkpointing": "`trainer.learner.recompute_layers`",
    "gradient_checkpointing": "`trainer.learner.recompute_layers`",
    "algorithm": "`trainer.loss`, as `reinforce`",
    "action_extraction": "`prompts.extractor`",
    "batch_delay_buffer": "`trainer.buffer.batch_delay`",
    "batch_size": "`trainer.rollouts_per_step` in trajectories, or `trainer.buffer.steps_per_batch` in steps",
    "buffer_strategy": "`trainer.buffer.strategy`",
    "ckpt_root": "`blobs.url`; by default adapters are in the run's broker",
    "evaluation_envs": "`game.settings.evaluation_env`",
    "training_envs": "`game.settings.env`",
    "evaluation_opponent": "an agent of kind `remote` in `agents`, named in `evaluation.gatekeepers`",
    "final_reward_transformation": "`trainer.transforms.final`",
    "step_reward_transformation": "`trainer.transforms.step`",
    "sampling_reward_transformation": "`trainer.transforms.sampling`",
    "initial_lora_path": "`model.adapter`",
    "lag_range": "`matchmaking.sampler.settings`, of the sampler `lagged`",
    "lora_config": "`model.lora_rank`, `model.lora_alpha` and `model.lora_targets`",
    "lora_cfg": "`model.lora_rank`, `model.lora_alpha` and `model.lora_targets`",
    "lora_dropout": "nothing: adapters are trained without dropout, so that replies are sampled from what is trained",
    "target_modules": "`model.lora_targets`",
    "max_active_lora": "`matchmaking.max_active_adapters`",
    "max_buffer_size": "`trainer.buffer.capacity`, and `experience.max_messages` for what waits in the broker",
    "max_eval_games_per_ckpt": "`evaluation.max_games_per_environment`",
    "max_generation_len": "`prompts.reply_tokens`; for Dr. GRPO's loss `trainer.loss.settings`",
    "max_tokens": "`prompts.reply_tokens`",
    "max_loras": "`inference.max_adapters`",
    "max_parallel_seq": "`inference.max_rows`",
    "max_model_len": "`inference.options`, with the backend `vllm`",
    "gpu_memory_utilization": "`inference.options`, with the backend `vllm`",
    "mini_batch_size": "`trainer.learner.minibatch_sequences`",
    "model_name": "`model.base`",
    "num_actors": "`inference.servers`",
    "num_eval_workers": "`evaluation.games_in_flight`, and `evaluation.newest_games`",
    "num_workers": "`rollout.games_in_flight`, in `rollout.workers` processes",
    "num_learners": "`trainer.ranks`",
    "sample_mode": "`matchmaking.sampler`",
    "save_every": "`schedule.recent_every`; every step's adapter is kept",
    "use_trainer_cache": "nothing: a training pass has no use for a cache of keys and values",
    "vllm_config": "`inference`, with the backend `vllm`",
    "wandb_project": '`tracker.sinks`, as `{ name = "wandb", settings = { project = … } }`',
    "FLUSH_EVERY": "`tracker.every_s`",
    # League Training
    "base_model_id": "`model.base`",
    "win_bonus": "`game.settings.win_bonus`",
    "winner_threshold_sc": "`game.settings.winner_threshold_sc`",
    # TRL, prime-rl and verifiers, RLlib
    "env_id": "`game.settings.env`, with the game `textarena`; `game.settings.taskset` with `verifiers`",
    "max_async_level": "`trainer.max_lag_steps`, and `rollout.ahead_steps`",
    "max_completion_length": "`prompts.reply_tokens`",
    "num_generations": "`rollout.group_size`",
    "rollouts_per_example": "`rollout.group_size`",
    "num_env_runners": "`rollout.workers`",
    "num_rollout_workers": "`rollout.workers`",
    "policy_mapping_fn": "`matchmaking.sampler`, and `matchmaking.seats`",
    "policies_to_train": "`trainer.policy` and `policies`",
    "train_batch_size": "`trainer.rollouts_per_step`",
}
"""What a key is here, by its name there."""

REMOVED_KEYS: Final = {
    "imitation": "expert iteration was removed",
    "seal_events": "archives are the seal: `history.archive_events`",
    "state_interval": "the trainer's state is stored with every step",
    "workers_max": "the autoscaler was removed: `rollout.workers`, `evaluation.workers`, or KEDA by the stream's lag",
    "workers_min": "the autoscaler was removed: `rollout.workers`, `evaluation.workers`, or KEDA by the stream's lag",
}
"""What became of a key of version 0.1.0."""
