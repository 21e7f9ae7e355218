"""Security: listeners, TLS, SASL logins, principals, and access control.

Open `listener.py` first: a listener is secured by `tls.py` and `sasl/`, and `settings.py` reads listeners from Kafka's
settings. `login.py` runs the login of a connection by its tables. `acl.py` defines the rules of access control, and
`authorizer.py` decides by them. Sockets belong to `net/`.

Imports of its neighbours: `storage`.
"""
