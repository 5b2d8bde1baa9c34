"""Reports a template that cannot be rendered in ``execute``, where users read the task's log.

Airflow renders earlier, in a folded group of the log, and writes its own error with the whole traceback. A
field with a user's mistake is therefore left as it is, and the operator raises the error once it executes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

LONGEST_TEMPLATE = 200
"""Characters of a template that a sentence quotes."""
_MISTAKES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors that a template's expression raises, beside Jinja's own. A retry does not help against them."""


class RendersInWords:
    """A mixin that stands before Airflow's operator; ``fail_unrendered`` raises the error of rendering.

    A task that resumes after its deferral is rendered again. Its job has ended by then, so changed files do
    not matter, and no error is raised there.
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
            # The sentence suffices; the traceback of the rendering would not help a reader.
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
