"""What the loop needs: dead letters, overrides of shares, versions of the policy, drains and readiness."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "emep_dead_letter",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason_code", sa.String(length=250), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("resolved_at", sa.Double(), nullable=True),
        sa.Column("resolved_by", sa.String(length=250), nullable=False),
        sa.Column("resolution", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["emep_job.id"], name=op.f("emep_dead_letter_job_id_fkey")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("emep_dead_letter_pkey")),
    )
    with op.batch_alter_table("emep_dead_letter", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("idx_emep_dead_letter_state_emep_dead_letter_created_at"),
            ["state", "created_at"],
            unique=False,
        )
    op.create_table(
        "emep_fair_share_override",
        sa.Column("entity", sa.String(length=250), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("set_by", sa.String(length=250), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("entity", name=op.f("emep_fair_share_override_pkey")),
    )
    op.create_table(
        "emep_policy_version",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("emep_policy_version_pkey")),
    )
    with op.batch_alter_table("emep_job", schema=None) as batch_op:
        batch_op.add_column(sa.Column("task_deadline", sa.Double(), nullable=True))
        batch_op.add_column(sa.Column("promoted_from_gpus", sa.Integer(), nullable=True))
    # Rows that are there already get the values that new ones begin with; afterwards the code gives them.
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        batch_op.add_column(sa.Column("drain_reason", sa.Text(), nullable=False, server_default=""))
        batch_op.add_column(sa.Column("is_ready", sa.Boolean(), nullable=False, server_default=sa.true()))
        batch_op.add_column(sa.Column("ready_reason", sa.Text(), nullable=False, server_default=""))
        batch_op.add_column(sa.Column("patched", sa.JSON(), nullable=False, server_default="{}"))
    with op.batch_alter_table("emep_gpu", schema=None) as batch_op:
        batch_op.add_column(sa.Column("drain_reason", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        for column, kind in (
            ("drain_reason", sa.Text()),
            ("is_ready", sa.Boolean()),
            ("ready_reason", sa.Text()),
            ("patched", sa.JSON()),
        ):
            batch_op.alter_column(column, existing_type=kind, existing_nullable=False, server_default=None)
    with op.batch_alter_table("emep_gpu", schema=None) as batch_op:
        batch_op.alter_column(
            "drain_reason", existing_type=sa.Text(), existing_nullable=False, server_default=None
        )
    # Promises are looked for at each plan, and forgotten by the job that they were made to.
    for table in ("emep_gpu", "emep_allocation"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.create_index(batch_op.f(f"idx_{table}_held_for"), ["held_for"], unique=False)


def downgrade() -> None:
    for table in ("emep_allocation", "emep_gpu"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_index(batch_op.f(f"idx_{table}_held_for"))
    with op.batch_alter_table("emep_gpu", schema=None) as batch_op:
        batch_op.drop_column("drain_reason")
    with op.batch_alter_table("emep_node", schema=None) as batch_op:
        batch_op.drop_column("patched")
        batch_op.drop_column("ready_reason")
        batch_op.drop_column("is_ready")
        batch_op.drop_column("drain_reason")
    with op.batch_alter_table("emep_job", schema=None) as batch_op:
        batch_op.drop_column("promoted_from_gpus")
        batch_op.drop_column("task_deadline")
    op.drop_table("emep_policy_version")
    op.drop_table("emep_fair_share_override")
    with op.batch_alter_table("emep_dead_letter", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("idx_emep_dead_letter_state_emep_dead_letter_created_at"))
    op.drop_table("emep_dead_letter")
