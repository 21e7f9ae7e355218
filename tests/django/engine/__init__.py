"""An ENGINE of an application: another backend with the mixin, as docs/django.md shows it."""
