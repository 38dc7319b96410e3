"""Certify rules: see `certify`, and `certify_file` for a file of rules with a table of models."""

from onnxfold.testing.certification import Certificate, certificates, certify, certify_file

__all__ = ["Certificate", "certificates", "certify", "certify_file"]
