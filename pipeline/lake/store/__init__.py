"""Objects by name: files of a folder, or of a bucket in Cloud Storage."""
