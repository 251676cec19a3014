"""What lies on disk: strict readers for files that nobody vouches for."""
