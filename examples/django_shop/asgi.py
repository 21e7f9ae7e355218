"""The shop for ASGI servers: `uvicorn --workers 3 asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from dualwrite.recipes.django.asgi import with_lifespan

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
application = with_lifespan(get_asgi_application())
