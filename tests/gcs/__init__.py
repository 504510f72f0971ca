"""Cloud Storage on loopback: an open-source server, a proxy that adds the XML API to it, and what runs against both.

Everything comes from package registries; nothing here talks to Google.
"""
