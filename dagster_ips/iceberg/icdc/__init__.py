"""ICDC tables: naming, writing, reading back and dropping them."""
