"""ICDC tables: what they are called, writing them, reading them back and dropping them."""
