"""Generators: recording rules, alerts and the Alertmanager's configuration, all made from the catalogue of signals."""
