"""Output: the families that Prometheus reads, and the server that it reads them from."""
