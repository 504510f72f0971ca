"""Named objects, stored in a local folder or a Cloud Storage bucket."""
