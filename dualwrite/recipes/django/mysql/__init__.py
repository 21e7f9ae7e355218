"""The database ENGINE: Django's backend for MySQL and MariaDB, whose COMMIT is a dual write if there are records."""
