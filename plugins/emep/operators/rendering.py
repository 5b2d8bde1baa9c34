"""Templated fields that cannot be rendered fail the task in ``execute``, where its log is read.

Airflow renders before the log's first open lines, in a group that is folded, and writes its own error with
the whole traceback. A field with a mistake of the user's therefore stays as it is, and the operator raises
what was wrong as soon as it executes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

LONGEST_TEMPLATE = 200
"""Characters of a template that a sentence quotes."""
_MISTAKES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""What a template's expression raises by itself; Jinja's own errors beside them. A retry changes none."""


class RendersInWords:
    """A mixin, before Airflow's operator: ``fail_unrendered`` raises what rendering has met.

    A task that is resumed after its deferral is rendered anew; what its files have become since then does
    not matter to a job that has ended, so nothing is raised there.
    """

    _unrendered: Exception | None = None
    _rendered_field: str | None = None

    def fail_unrendered(self) -> None:
        """Raise what was wrong with the first field that could not be rendered.

        AirflowFailException for a mistake in the field; any other error (a connection that is away) as it
        was, so that the task is tried again.
        """
        error, self._unrendered = self._unrendered, None
        if isinstance(error, AirflowFailException):
            # The sentence says it all; where it was found while rendering helps no reader.
            raise error.with_traceback(None) from None
        if error is not None:
            raise error

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """As Airflow's; within the operator's own fields a template that fails is returned as it is."""
        try:
            return super().render_template(content, context, jinja_env, seen_oids)  # type: ignore[misc]
        except Exception as error:
            if self._rendered_field is None:
                raise
            self._keep(error, content)
            return content

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Any,
        jinja_env: Any,
        seen_oids: set[int],
    ) -> None:
        """Airflow's hook for operators that render in their own way; mapped tasks come here alone."""
        render = super()._do_render_template_fields  # type: ignore[misc]
        if parent is not self:
            render(parent, template_fields, context, jinja_env, seen_oids)
            return
        self._unrendered = None
        for name in template_fields:
            self._rendered_field = name
            try:
                if callable(value := getattr(self, name, None)):
                    self._call(name, value, context, jinja_env)
                else:
                    render(self, (name,), context, jinja_env, seen_oids)
            finally:
                self._rendered_field = None

    def _call(self, name: str, value: Any, context: Any, jinja_env: Any) -> None:
        try:
            setattr(self, name, value(context=context, jinja_env=jinja_env))
        except Exception as error:
            self._unrendered = self._unrendered or error

    def _keep(self, error: Exception, template: Any) -> None:
        from jinja2 import TemplateError

        if isinstance(error, (TemplateError, *_MISTAKES)):
            text = repr(template)
            if len(text) > LONGEST_TEMPLATE:
                text = f"{text[:LONGEST_TEMPLATE]}..."
            said = str(error) or type(error).__name__
            error = AirflowFailException(
                f"{self._rendered_field}: the template {text} cannot be rendered: {said}."
            )
        self._unrendered = self._unrendered or error
