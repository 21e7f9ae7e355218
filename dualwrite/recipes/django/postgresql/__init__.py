"""The database ENGINE: Django's PostgreSQL backend on psycopg 3, whose COMMIT is a dual write if there are records."""
