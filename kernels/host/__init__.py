"""Compiled bookkeeping of trees, phrases and rows on the host: no model runs here."""
