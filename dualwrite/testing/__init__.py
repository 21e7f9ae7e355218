"""What tests of a dual write need: servers, crash points, a pytest plugin."""
