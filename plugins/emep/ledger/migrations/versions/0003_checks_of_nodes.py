"""What is known of nodes that fail their jobs, and the nodes that a job avoids."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OF_NODES: tuple[tuple[str, Any, str], ...] = (
    ("check_state", sa.String(length=20), ""),
    ("check_reason", sa.Text(), ""),
    ("check_until", sa.Double(), "0"),
    ("failures", sa.JSON(), "[]"),
)


def upgrade() -> None:
    # Rows that are there already get the values that new ones begin with; afterwards the code gives them.
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        for name, kind, first in _OF_NODES:
            batch_op.add_column(sa.Column(name, kind, nullable=False, server_default=first))
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        for name, kind, _ in _OF_NODES:
            batch_op.alter_column(name, existing_type=kind, existing_nullable=False, server_default=None)
    with op.batch_alter_table("emep_job", schema=None) as batch_op:
        batch_op.add_column(sa.Column("avoid_nodes", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("emep_job", schema=None) as batch_op:
        batch_op.drop_column("avoid_nodes")
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        for name, _, _ in reversed(_OF_NODES):
            batch_op.drop_column(name)
