"""What Readstate is measured against."""
