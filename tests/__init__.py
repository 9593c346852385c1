"""Tests mirror the package; labels such as A13 are explained in FAULTS.md."""
