"""Tools for testing dual writes: a pytest plugin, crashes, a network proxy, a Postgres, conformance tests.

May import the emulator, the client and the recipes, but not the tests of this project. It installs nothing and never
calls a package manager. Open first: `pytest_plugin.py`.
"""
