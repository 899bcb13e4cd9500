# One image for every kind of worker; `--target gpu` adds vLLM.
FROM python:3.11.14-slim-bookworm AS base
WORKDIR /league
COPY pyproject.toml constraints.txt constraints-gpu.txt README.md ./
COPY schemas schemas
COPY models models
COPY arena arena
COPY league league
COPY trainer trainer
COPY inference inference
COPY players players
COPY workers workers
COPY lifecycle lifecycle
COPY ui ui
COPY configs configs
# uv chooses torch's build for the device.
RUN pip install --no-cache-dir uv==0.13.9
# Nobody in here needs to be root; the folders are where workers keep what may be lost, models of the hub, and charts.
RUN useradd --create-home --uid 10001 league \
    && install -d -o league /run/league /run/league/tracking /home/league/.cache /home/league/.cache/huggingface

FROM base AS gpu
# Triton compiles its kernels at the start, with Debian's compiler of the day.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# vLLM pins packages of its own, hence constraints of its own.
RUN uv pip install --system --no-cache -c constraints-gpu.txt '.[train,vllm,diplomacy,textarena,wandb]'
USER 10001

FROM base AS cpu
RUN uv pip install --system --no-cache --torch-backend cpu -c constraints.txt '.[train,diplomacy,textarena,wandb]'
USER 10001
