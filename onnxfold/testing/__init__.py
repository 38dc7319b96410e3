"""Certification of rules: `certify` for some models, and `certify_file` for a table of models."""

from onnxfold.testing.certification import Certificate, certificates, certify, certify_file

__all__ = ["Certificate", "certificates", "certify", "certify_file"]
