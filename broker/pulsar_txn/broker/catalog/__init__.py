"""Names: topics, partitions, schemas, namespaces with their policies, and lists of topics."""
