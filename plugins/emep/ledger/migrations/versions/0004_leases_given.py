"""Whether the lease of work that its asker starts was ever handed out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("emep_allocation", schema=None) as batch_op:
        batch_op.add_column(sa.Column("lease_given_at", sa.Double(), nullable=True))
    # It is not known of the existing rows, so they count as handed out.
    op.execute("UPDATE emep_allocation SET lease_given_at = granted_at WHERE runtime <> 'agent'")


def downgrade() -> None:
    with op.batch_alter_table("emep_allocation", schema=None) as batch_op:
        batch_op.drop_column("lease_given_at")
