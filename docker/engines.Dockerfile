# What runs on a GPU node: `emep agent`, `emep-engine`. Airflow is not started here.
#   docker build -f docker/engines.Dockerfile -t emep/engines .
#   docker run --gpus all --user root -e EMEP_API_URL=... -e EMEP_AGENT_TOKEN=... emep/engines \
#     emep agent --run-as engine --state-dir /var/lib/emep-agent
# The agent keeps its token and its state to itself (root); engines are another user, `engine`.
FROM python:3.11-slim-bookworm

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1

WORKDIR /opt/emep
COPY requirements/uv.txt requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r uv.txt \
    && uv pip install --system --no-cache --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY plugins plugins
COPY include include
RUN uv pip install --system --no-cache --no-deps --no-build-isolation --editable .

RUN useradd --create-home --uid 50001 emep && useradd --create-home --uid 50002 engine
USER engine
CMD ["emep-engine", "--help"]
