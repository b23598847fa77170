"""The log in Kafka, and the spool for when Kafka does not answer."""
