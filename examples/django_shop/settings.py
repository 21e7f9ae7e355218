"""The settings of the shop. The settings of dual writes stand first."""

import os

DATABASES = {
    "default": {
        "ENGINE": "dualwrite.recipes.django.postgresql",
        "NAME": os.environ.get("SHOP_DATABASE", "shop"),
        "HOST": os.environ.get("SHOP_DATABASE_HOST", ""),
        "PORT": os.environ.get("SHOP_DATABASE_PORT", ""),
        "USER": os.environ.get("SHOP_DATABASE_USER", ""),
        "PASSWORD": os.environ.get("SHOP_DATABASE_PASSWORD", ""),
        "ATOMIC_REQUESTS": True,
    }
}

DUALWRITE = {
    "default": {
        "bootstrap_servers": os.environ.get("SHOP_KAFKA", "127.0.0.1:9092"),
        "prefix": "shop",
        "lease_ms": int(os.environ.get("SHOP_LEASE_MS", "15000")),
    }
}

INSTALLED_APPS = ["dualwrite.recipes.django", "orders"]

MIDDLEWARE = ["dualwrite.recipes.django.middleware.RetryLaterMiddleware"]

ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
SECRET_KEY = "only for the example"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
