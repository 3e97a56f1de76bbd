"""Transactions: hosts of the machines, the coordinators, and how coordinators reach participants."""
