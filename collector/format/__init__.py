"""Defines a run on disk: tables, columns, enums, marks, options."""
