"""Message schemas of versions that kio does not have yet, in kio's form; open `message_schemas.py` beside it first.

One file per API and version. Annotations are not postponed, because kio reads field types when it loads a schema.
"""
