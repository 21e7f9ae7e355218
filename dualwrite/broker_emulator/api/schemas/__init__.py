"""Message schemas of versions that kio does not have yet, in kio's form; open `message_schemas.py` beside it first.

A file per API and version. kio reads the types of fields when a schema is loaded, so the annotations are not postponed.
"""
