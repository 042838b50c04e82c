"""Say which version this is; pyproject.toml reads it for the package."""

VERSION = "0.1.0"
