"""Certification of rules by `certify`, or by `certify_file` for a file with a table of models."""

from onnxfold.testing.certification import Certificate, certificates, certify, certify_file

__all__ = ["Certificate", "certificates", "certify", "certify_file"]
