"""The log in Kafka, and the spool that keeps reads while Kafka does not acknowledge."""
