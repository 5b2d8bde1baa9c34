# Airflow's processes with the EMEP plugin: API server, scheduler, DAG processor, triggerer. No torch in it.
#   docker build -f docker/control-plane.Dockerfile -t emep/control-plane .
FROM python:3.11-slim-bookworm

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/emep/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/emep/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS=emep.db.EmepDBManager \
    AIRFLOW__WORKERS__EXECUTION_API_RETRIES=60 \
    AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX=5 \
    AIRFLOW__EMEP__POLICY_FILE=/opt/emep/include/policy.yaml

WORKDIR /opt/emep
COPY requirements/uv.txt requirements/uv.txt
RUN pip install --no-cache-dir --require-hashes -r requirements/uv.txt
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY plugins plugins
COPY include include
# The lock is the constraint; what the control plane does not depend on (torch and its libraries) is left out.
RUN uv pip install --system --no-cache --constraint requirements.lock --editable '.[postgres]'
COPY dags dags
COPY airflow_settings.yaml ./

RUN useradd --create-home --uid 50000 airflow && install -d -o airflow /opt/airflow
USER airflow
ENTRYPOINT ["airflow"]
CMD ["version"]
