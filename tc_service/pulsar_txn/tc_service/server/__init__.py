"""The server that clients ask for transactions: its commands, its coordinators, and the clusters that take part."""
