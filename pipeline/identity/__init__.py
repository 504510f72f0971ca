"""Which permission each call of Google's APIs needs, which of them each part of tidemark makes, and the roles."""
