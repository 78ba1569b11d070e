# pdserve for machines without a GPU, the default model included. From the repository's root:
#   docker build -f deploy/docker/cpu.Dockerfile -t registry.example.org/pdserve:0.1.0-cpu .
# NOT BUILT: no build of this file has been run. deploy/install.sh is the way that has.
FROM python:3.11-slim-bookworm

# a compiler: the quicker attention, and kernels that are built at their first use
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The same user, home and paths in every container: workers, controller and proxies must agree on them.
RUN useradd --uid 10001 --create-home --home-dir /home/pdserve pdserve \
    && install -d -o pdserve /opt/pdserve
USER pdserve
ENV PATH=/opt/pdserve/venv/bin:$PATH PIP_NO_CACHE_DIR=1 RAY_USAGE_STATS_ENABLED=0

WORKDIR /opt/pdserve/source
COPY pyproject.toml README.md LICENSE ./
COPY bench bench
COPY cluster cluster
COPY decode_worker decode_worker
COPY deploy deploy
COPY engine engine
COPY kv_transfer kv_transfer
COPY prefill_worker prefill_worker
COPY proxy proxy
COPY rpc rpc
COPY security security
COPY telemetry telemetry
RUN python -m venv /opt/pdserve/venv \
    && PIP_CONSTRAINT=deploy/constraints.txt pip install --extra-index-url https://download.pytorch.org/whl/cpu .

COPY deploy/docker/unpack_model.py /opt/pdserve/
RUN python /opt/pdserve/unpack_model.py /opt/pdserve/model
WORKDIR /home/pdserve
CMD ["pdserve", "--help"]
